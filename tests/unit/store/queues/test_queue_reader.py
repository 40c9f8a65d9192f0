"""The results of reads of a queue, from every offset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import thread_time

import pytest

from cometmq.protocol.hashing import java_hash
from cometmq.protocol.properties import decode_properties
from cometmq.store import GetStatus, MessageStore, TagMatcher
from support.checks.manual_clock import ManualClock
from support.stores.faulty_files import nearly_full_disk
from support.stores.small_stores import LOG_FILE_BYTES, TOPIC, put, split


def fill(store: MessageStore, count: int, **more: object) -> None:
    for number in range(count):
        put(store, b"%d" % number, **more)


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (0, GetStatus.FOUND, 3),
        (2, GetStatus.FOUND, 3),
        (3, GetStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, GetStatus.OFFSET_OVERFLOW_BADLY, 3),
        (2**63 - 1, GetStatus.OFFSET_OVERFLOW_BADLY, 3),
    ],
)
def test_each_offset_has_its_status_and_says_where_to_go_on(
    store: MessageStore, offset: int, status: GetStatus, following: int
) -> None:
    fill(store, 3)
    result = store.get(TOPIC, 0, offset, 32)
    assert (result.status, result.next_begin_offset) == (status, following)
    assert (result.min_offset, result.max_offset) == (0, 3)


@pytest.mark.parametrize("topic", ["nobody", "../x", ""])
def test_a_queue_that_is_not_there_is_empty_and_stays_away(
    store: MessageStore, tmp_path: Path, topic: str
) -> None:
    result = store.get(topic, 0, 5, 32)
    assert result.status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert result.next_begin_offset == 0
    assert store.bounds(topic, 0) == (0, 0)
    assert store.offset_at_time(topic, 0, 0) == 0
    assert store.store_time_at(topic, 0, 0) == -1
    assert store.consume_queue_units(topic, 0, 0, 9) == []
    assert not (tmp_path / "consumequeue").exists()


def test_records_side_by_side_leave_as_one_slice(store: MessageStore) -> None:
    fill(store, 5)
    result = store.get(TOPIC, 0, 0, 32)
    assert len(result.slices) == 1
    assert (result.count, result.size_bytes) == (5, len(result.slices[0]))
    assert [message.body for message in split(bytes(result.slices[0]))] == [
        b"%d" % number for number in range(5)
    ]


def test_records_apart_leave_as_several_slices(store: MessageStore) -> None:
    for number in range(6):
        put(store, b"%d" % number, queue_id=number % 2)
    result = store.get(TOPIC, 1, 0, 32)
    assert [split(bytes(part))[0].body for part in result.slices] == [b"1", b"3", b"5"]


def test_a_slice_never_spans_two_files(store: MessageStore) -> None:
    fill(store, 400)
    read = 0
    while read < 400:
        result = store.get(TOPIC, 0, read, 32)
        read += sum(len(split(bytes(part))) for part in result.slices)
        assert result.next_begin_offset == read
    assert store.written_to > 2 * LOG_FILE_BYTES


@pytest.mark.parametrize(("asked", "count"), [(1, 1), (5, 5), (32, 32), (1000, 32)])
def test_the_count_is_limited_by_the_caller_and_by_the_settings(
    store: MessageStore, asked: int, count: int
) -> None:
    fill(store, 40)
    assert store.get(TOPIC, 0, 0, asked).count == count


def test_the_bytes_are_limited_but_one_message_always_fits(
    open_store: Callable[..., MessageStore],
) -> None:
    store = open_store(transfer_bytes_memory_max=2500)
    for _ in range(4):
        put(store, b"x" * 1000)
    assert store.get(TOPIC, 0, 0, 32).count == 2
    assert store.get(TOPIC, 0, 0, 32, None, 100).count == 1
    assert store.get(TOPIC, 0, 0, 32, None, 0).count == 1


def test_messages_beyond_memory_leave_in_smaller_answers(
    open_store: Callable[..., MessageStore],
) -> None:
    store = open_store(memory_ratio=0)
    fill(store, 40)
    result = store.get(TOPIC, 0, 0, 32)
    assert result.count == 8
    assert store.bulk_reader.get(TOPIC, 0, 0, 1_024, None, 1 << 20).count == 40
    assert result.suggest_slave


def test_a_read_of_a_backlog_has_at_most_512_kib(open_store: Callable[..., MessageStore]) -> None:
    store = open_store(memory_ratio=0, commit_log_file_bytes=1 << 20)
    for _ in range(6):
        put(store, bytes(100 * 1024))
    assert store.bulk_reader.get(TOPIC, 0, 0, 1_024, None, 1 << 20).count == 5


def test_messages_in_memory_do_not_suggest_another_broker(store: MessageStore) -> None:
    fill(store, 3)
    assert not store.get(TOPIC, 0, 0, 32).suggest_slave


def tagged(store: MessageStore, tags: str) -> None:
    for tag in tags:
        put(store, tag.encode(), properties={"TAGS": tag})


def test_only_matching_tags_leave(store: MessageStore) -> None:
    tagged(store, "abcabc")
    matcher = TagMatcher(frozenset({java_hash("a"), java_hash("b")}))
    result = store.get(TOPIC, 0, 0, 32, matcher)
    assert [message.body for message in split(b"".join(result.slices))] == [b"a", b"b", b"a", b"b"]
    assert len(result.slices) == 2
    assert result.next_begin_offset == 6


def test_a_queue_without_matches_says_where_the_search_ended(store: MessageStore) -> None:
    tagged(store, "aaaa")
    result = store.get(TOPIC, 0, 1, 32, TagMatcher(frozenset({java_hash("z")})))
    assert result.status is GetStatus.NO_MATCHED_MESSAGE
    assert result.next_begin_offset == 4
    assert result.slices == []


def test_a_search_without_matches_looks_at_a_limited_number_of_units(
    open_store: Callable[..., MessageStore],
) -> None:
    store = open_store(filter_units_bytes_max=200)
    tagged(store, "a" * 30)
    matcher = TagMatcher(frozenset({java_hash("z")}))
    assert store.get(TOPIC, 0, 0, 4, matcher).next_begin_offset == 10
    assert store.get(TOPIC, 0, 0, 20, matcher).next_begin_offset == 20


class Even:
    """Wants messages whose property n is even."""

    needs_properties = True

    def matches_tags(self, tags_code: int) -> bool:
        return True

    def matches_properties(self, properties: bytes) -> bool:
        return int(decode_properties(properties)["n"]) % 2 == 0


def test_no_count_that_a_client_asks_for_makes_a_search_longer(
    open_store: Callable[..., MessageStore],
) -> None:
    store = open_store(consume_queue_file_bytes=400_000, commit_log_file_bytes=1 << 21)
    fill(store, 10_000)
    matcher = TagMatcher(frozenset([java_hash("nothing has it")]))
    result = store.get(TOPIC, 0, 0, 2**31 - 1, matcher)
    assert result.status is GetStatus.NO_MATCHED_MESSAGE
    assert result.next_begin_offset == 8192


def test_a_matcher_of_properties_sees_every_record(store: MessageStore) -> None:
    for number in range(7):
        put(store, b"%d" % number, properties={"n": str(number)})
    result = store.get(TOPIC, 0, 0, 32, Even())
    found = [message.body for message in split(b"".join(result.slices))]
    assert found == [b"0", b"2", b"4", b"6"]
    assert (result.count, result.next_begin_offset) == (4, 7)
    assert result.size_bytes == sum(len(part) for part in result.slices)


class Slow:
    """Takes a millisecond for each message, and wants none."""

    needs_properties = True

    def matches_tags(self, tags_code: int) -> bool:
        return True

    def matches_properties(self, properties: bytes) -> bool:
        end_s = thread_time() + 0.001
        while thread_time() < end_s:
            pass
        return False


def test_a_search_that_takes_long_continues_in_the_next_read(store: MessageStore) -> None:
    fill(store, 50)
    first = store.get(TOPIC, 0, 0, 32, Slow())
    assert first.status is GetStatus.NO_MATCHED_MESSAGE
    assert first.next_begin_offset == 4
    assert store.get(TOPIC, 0, 4, 32, Slow()).next_begin_offset == 8


def test_a_search_in_large_messages_looks_at_the_clock_at_each(store: MessageStore) -> None:
    for _ in range(8):
        put(store, bytes(5_000))
    assert store.get(TOPIC, 0, 0, 32, Slow()).next_begin_offset == 2


def test_slices_stay_readable_after_their_file_is_deleted(
    open_store: Callable[..., MessageStore], clock: ManualClock
) -> None:
    store = open_store(files=nearly_full_disk(), file_reserved_hours=0)
    fill(store, 400)
    held = store.get(TOPIC, 0, 0, 32).slices
    before = b"".join(held)
    store.write_out()
    clock.advance(10**12)
    while store.clean():
        pass
    assert store.min_log_offset > 0
    assert b"".join(held) == before
    store.close()
    assert b"".join(held) == before


def test_reading_goes_on_where_the_kept_files_begin(
    open_store: Callable[..., MessageStore], clock: ManualClock
) -> None:
    store = open_store(files=nearly_full_disk(), file_reserved_hours=0)
    fill(store, 400)
    store.write_out()
    clock.advance(10**12)
    assert store.clean() > 0
    low, high = store.bounds(TOPIC, 0)
    assert 0 < low < high == 400
    result = store.get(TOPIC, 0, 0, 32)
    assert (result.status, result.next_begin_offset) == (GetStatus.OFFSET_TOO_SMALL, low)
    assert store.get(TOPIC, 0, low, 32).status is GetStatus.FOUND
