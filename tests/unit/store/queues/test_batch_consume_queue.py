"""Queues that hold batches: topics with queue.type=BatchCQ, as RocketMQ 5 has them."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from struct import Struct

import pytest

from cometmq.model.errors import InvalidMessageError
from cometmq.protocol.batch import MESSAGES_MAX, BatchItem, encode_batch
from cometmq.protocol.record import decode_record
from cometmq.store import GetStatus, MessageStore
from cometmq.store.inspect import StoreReader
from cometmq.store.log.segments import Segments
from cometmq.store.queues.batch_consume_queue import BatchConsumeQueue
from cometmq.store.queues.queue_reader import TagMatcher
from cometmq.system.files import Files
from support.checks.manual_clock import ManualClock
from support.stores.cold_files import ColdDisk
from support.stores.small_stores import (
    TOPIC,
    new_record,
    opened,
    put,
    put_as_one,
    small_settings,
    split,
    unwrapped,
)

UNIT = Struct(">qiqqqhii")
FOLDER = f"batchconsumequeue/{TOPIC}/0"
BASE_MS = 1_700_000_000_000


@pytest.fixture
def store(open_store: Callable[..., MessageStore]) -> MessageStore:
    """An open store whose topic has queues that hold batches."""
    return with_batches(open_store())


def with_batches(store: MessageStore) -> MessageStore:
    store.expect_topics(lambda _: True, lambda _: True)
    return store


def fill(store: MessageStore, count: int, seed: int = 1) -> dict[int, bytes]:
    """Put batches of 1 to 5 messages and single messages; the body of each message by offset."""
    chance = random.Random(seed)
    expected: dict[int, bytes] = {}
    for _ in range(count):
        first = store.next_offset(TOPIC, 0)
        items = [b"%d" % (first + at) for at in range(chance.choice((0, 1, 2, 5)))]
        stored = put_as_one(store, *items) if items else put(store, b"%d" % first)
        assert stored.queue_offset == first
        expected |= {first + at: body for at, body in enumerate(items or [b"%d" % first])}
    return expected


def units_of(root: Path) -> list[tuple[int, ...]]:
    files = sorted((root / FOLDER).iterdir())
    units = [unit for file in files for unit in UNIT.iter_unpack(file.read_bytes())]
    return [unit for unit in units if any(unit)]


def test_a_batch_is_one_record_with_one_unit_of_rocketmq(
    store: MessageStore, clock: ManualClock, tmp_path: Path
) -> None:
    clock.set_wall(BASE_MS)
    first = put(store, b"alone", properties={"TAGS": "Aa"})
    clock.set_wall(BASE_MS + 5)
    second = put_as_one(store, b"x", b"y", b"z")
    third = put(store, b"behind")
    assert [each.queue_offset for each in (first, second, third)] == [0, 1, 4]
    assert store.bounds(TOPIC, 0) == (0, 5)

    record = store.record_at(second.log_offset, second.size_bytes)
    assert record is not None
    stored = decode_record(record)
    assert stored.sys_flag == 0xC0
    assert stored.properties == {"UNIQ_KEY": "B", "INNER_NUM": "3", "INNER_BASE": "1"}
    assert unwrapped(store) == {0: b"alone", 1: b"x", 2: b"y", 3: b"z", 4: b"behind"}
    assert not (tmp_path / "consumequeue" / TOPIC).exists()
    assert units_of(tmp_path) == [
        (first.log_offset, first.size_bytes, 2112, BASE_MS, 0, 1, -1, 0),
        (second.log_offset, second.size_bytes, 0, BASE_MS + 5, 1, 3, -1, 0),
        (third.log_offset, third.size_bytes, 0, BASE_MS + 5, 4, 1, -1, 0),
    ]


def test_the_messages_of_a_batch_with_a_record_each_have_a_unit_each(
    store: MessageStore, tmp_path: Path
) -> None:
    """A batch without a unique id is stored like that."""
    body = encode_batch([BatchItem(0, b"1", b""), BatchItem(0, b"2", b"")])
    put_as_one(store, b"0")
    assert store.append_batch(new_record(body)).queue_offset == 1
    assert [unit[4:6] for unit in units_of(tmp_path)] == [(0, 1), (1, 1), (2, 1)]
    assert unwrapped(store) == {0: b"0", 1: b"1", 2: b"2"}


def test_a_read_counts_messages_and_begins_with_the_whole_batch(store: MessageStore) -> None:
    put_as_one(store, b"0", b"1", b"2")
    put_as_one(store, b"3", b"4")
    put(store, b"5")

    def read(offset: int, count: int) -> tuple[list[int], int, int]:
        found = store.get(TOPIC, 0, offset, count)
        assert found.status is GetStatus.FOUND
        offsets = [each.queue_offset for each in split(b"".join(found.slices))]
        return offsets, found.count, found.next_begin_offset

    assert read(0, 32) == ([0, 3, 5], 6, 6)
    assert read(0, 1) == ([0], 3, 3)  # more than requested: it is one record
    assert read(0, 4) == ([0], 3, 3)
    assert read(0, 5) == ([0, 3], 5, 5)
    assert read(2, 32) == ([0, 3, 5], 6, 6)
    assert read(4, 2) == ([3], 2, 5)
    assert read(5, 1) == ([5], 1, 6)
    assert store.get(TOPIC, 0, 6, 1).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert store.get(TOPIC, 0, 7, 1).next_begin_offset == 6


def test_a_batch_without_tags_of_its_own_passes_a_filter_by_tags(store: MessageStore) -> None:
    """Its messages may have tags, which the client compares; RocketMQ leaves it out."""
    put_as_one(store, b"0", b"1")
    put_as_one(store, b"2", b"3", properties={"UNIQ_KEY": "B", "TAGS": "Aa"})
    put_as_one(store, b"4", b"5", properties={"UNIQ_KEY": "B", "TAGS": "other"})
    found = store.get(TOPIC, 0, 0, 32, TagMatcher(frozenset({2112})))
    assert [each.queue_offset for each in split(b"".join(found.slices))] == [0, 2]
    assert found.next_begin_offset == 6
    found = store.get(TOPIC, 0, 2, 32, TagMatcher(frozenset({7})))
    assert (found.status, found.next_begin_offset) == (GetStatus.NO_MATCHED_MESSAGE, 6)


@pytest.mark.parametrize("count", [0, MESSAGES_MAX + 1])
def test_a_batch_whose_number_of_messages_does_not_fit_is_refused(
    open_store: Callable[..., MessageStore], count: int
) -> None:
    store = with_batches(open_store(commit_log_file_bytes=4 << 20))
    with pytest.raises(InvalidMessageError, match=f"a batch of {count} messages"):
        put_as_one(store, *[b""] * count)
    assert store.bounds(TOPIC, 0) == (0, 0)


def test_every_offset_of_many_files_is_found(store: MessageStore, tmp_path: Path) -> None:
    expected = fill(store, 70)
    assert unwrapped(store) == expected
    assert len(list((tmp_path / FOLDER).iterdir())) == 4
    for offset in expected:
        found = store.get(TOPIC, 0, offset, 1)
        message = split(b"".join(found.slices))[0]
        assert message.queue_offset <= offset < found.next_begin_offset


def test_times_are_found_by_the_unit(store: MessageStore, clock: ManualClock) -> None:
    for at_ms, count in ((10, 3), (20, 1), (30, 2)):
        clock.set_wall(BASE_MS + at_ms)
        put_as_one(store, *[b"m"] * count)
    wanted = (5, 10, 15, 20, 25, 30, 35)
    lower = [store.offset_at_time(TOPIC, 0, BASE_MS + ms) for ms in wanted]
    upper = [store.offset_at_time(TOPIC, 0, BASE_MS + ms, "UPPER") for ms in wanted]
    assert lower == [0, 0, 3, 3, 4, 4, 6]
    assert upper == [0, 2, 2, 3, 3, 5, 5]
    times = [store.store_time_at(TOPIC, 0, offset) - BASE_MS for offset in range(6)]
    assert times == [10, 10, 10, 20, 30, 30]
    pages = store.pages_for_time(TOPIC, 0, BASE_MS + 20)
    assert pages is not None
    pages()


def close(store: MessageStore, root: Path) -> None:
    store.close()


def kill(store: MessageStore, root: Path) -> None:
    store.abandon()


def lose_power(store: MessageStore, root: Path) -> None:
    """The newest units were not synced, and one is torn."""
    store.flush()
    store.abandon()
    (root / "abort").write_text("1\nanother boot")
    file = sorted((root / FOLDER).iterdir())[-1]
    data = bytearray(file.read_bytes())
    end = len(bytes(data).rstrip(b"\0")) // 46 * 46
    data[end - 46 + 25 :] = bytes(len(data) - (end - 46 + 25))
    file.write_bytes(data)


def lose_queue(store: MessageStore, root: Path) -> None:
    store.close()
    shutil.rmtree(root / "batchconsumequeue")
    (root / "checkpoint").unlink()


@pytest.mark.parametrize("end", [close, kill, lose_power, lose_queue])
def test_another_start_finds_all_messages_and_goes_on_behind_them(
    store: MessageStore,
    open_store: Callable[..., MessageStore],
    tmp_path: Path,
    end: Callable[[MessageStore, Path], None],
) -> None:
    expected = fill(store, 50)
    before = units_of(tmp_path)
    end(store, tmp_path)
    # Its log says of batches that they are batches, but of single messages the table does.
    again = open_store()
    again.expect_topics(lambda _: True, lambda _: True)
    assert unwrapped(again) == expected
    assert again.bounds(TOPIC, 0) == (0, len(expected))
    assert put_as_one(again, b"more", b"and more").queue_offset == len(expected)
    again.close()
    assert units_of(tmp_path)[:-1] == before
    with StoreReader(small_settings(tmp_path)) as reader:
        assert list(reader.verify()) == []


def test_a_record_that_the_log_lost_has_no_unit(
    store: MessageStore, open_store: Callable[..., MessageStore], tmp_path: Path
) -> None:
    put_as_one(store, b"0", b"1")
    lost = put_as_one(store, b"2", b"3", b"4")
    store.abandon()
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[lost.log_offset :] = bytes(len(data) - lost.log_offset)
    path.write_bytes(data)
    again = with_batches(open_store())
    assert unwrapped(again) == {0: b"0", 1: b"1"}
    assert put_as_one(again, b"2").queue_offset == 2


def test_deleted_records_move_the_least_offset_and_delete_files(
    open_store: Callable[..., MessageStore], clock: ManualClock, tmp_path: Path
) -> None:
    store = with_batches(open_store(file_reserved_hours=1, commit_log_file_bytes=4096))
    expected = fill(store, 100)
    store.write_out()
    newest = max((tmp_path / "commitlog").iterdir())
    for file in (tmp_path / "commitlog").iterdir():
        if file != newest:
            os.utime(file, (0, 0))
    assert store.clean(expired_at_any_hour=True)
    low, high = store.bounds(TOPIC, 0)
    assert 0 < low < high == len(expected)
    assert unwrapped(store) == {at: body for at, body in expected.items() if at >= low}
    assert store.get(TOPIC, 0, 0, 1).next_begin_offset == low
    assert min((tmp_path / FOLDER).iterdir()).name != f"{0:020d}"
    store.close()
    again = open_store(commit_log_file_bytes=4096)
    assert again.bounds(TOPIC, 0) == (low, high)


def test_a_truncated_log_takes_its_units_along(store: MessageStore) -> None:
    expected = fill(store, 30)
    cut = put_as_one(store, b"gone", b"gone too")
    put(store, b"gone as well")
    store.truncate_log(cut.log_offset)
    assert unwrapped(store) == expected
    assert put_as_one(store, b"new").queue_offset == len(expected)


def test_a_batch_that_is_not_written_leaves_no_unit(tmp_path: Path) -> None:
    queue = BatchConsumeQueue(TOPIC, 0, Segments(Files(), tmp_path / "queue", 46 * 20))
    for number in range(25):
        queue.make_room(1)
        queue.put_batch(number * 3, number * 100, 100, 0, BASE_MS, 3)
    queue.rewind(1900)
    assert (queue.end_unit, queue.max_offset, queue.max_physical) == (19, 57, 1900)
    queue.put_batch(57, 1900, 50, 0, BASE_MS, 2)
    assert queue.span_of(19) == (BASE_MS, 57, 2)
    assert (queue.max_offset, queue.end_at(1900), queue.end_at(1950)) == (59, 57, 59)
    queue.rewind(0)
    assert (queue.min_offset, queue.max_offset) == (0, 0)
    queue.close()


def test_a_slave_has_the_queue_of_its_master(store: MessageStore, tmp_path: Path) -> None:
    """Also if single messages came before it knew the attributes of their topic."""
    single = put(store, b"0")
    expected = {0: b"0"} | fill(store, 20)
    end = store.written_to
    data = store.log_bytes(0, end)
    assert data is not None
    slave = opened(tmp_path / "slave")
    slave.replica.begin()
    slave.replica.append(bytes(data[: single.size_bytes]))
    assert (tmp_path / "slave" / "consumequeue" / TOPIC / "0").exists()
    slave.replica.append(bytes(data[single.size_bytes :]))
    assert unwrapped(slave) == expected
    assert units_of(tmp_path / "slave") == units_of(tmp_path)
    assert not (tmp_path / "slave" / "consumequeue" / TOPIC).exists()


def test_a_cold_file_is_read_in_a_thread_before_it_is_searched(
    open_store: Callable[..., MessageStore],
) -> None:
    store = with_batches(open_store())
    fill(store, 30)
    store.close()
    again = open_store(files=ColdDisk())
    parts = again.reader.cold_units(TOPIC, 0, 3, 1, None)
    assert [part.start for part in parts] == [0]


def test_a_damaged_number_of_messages_skips_none_and_is_found(
    store: MessageStore, open_store: Callable[..., MessageStore], tmp_path: Path
) -> None:
    expected = fill(store, 10)
    store.close()
    file = tmp_path / FOLDER / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[46 * 4 + 36] ^= 0x01
    file.write_bytes(data)
    with StoreReader(small_settings(tmp_path)) as reader:
        [finding] = reader.verify()
    assert finding.position == 46 * 4
    assert "store time, offset and messages" in finding.text
    assert unwrapped(open_store()) == expected
