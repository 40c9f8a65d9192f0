"""The bytes of an append, its refusals, and that a refusal changes nothing."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.model.errors import InvalidMessageError
from cometmq.model.flags import SysFlag
from cometmq.model.topic import retry_topic
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.record import decode_record, encode_host, encode_record
from cometmq.store import MessageStore, NewRecord, SegmentCreateError, StoreUnavailableError
from cometmq.store.errors import DeferredFullError
from cometmq.store.inspect import StoreReader
from support.checks.manual_clock import ManualClock
from support.stores.faulty_files import FaultyFiles, NoNewFiles
from support.stores.small_stores import (
    BROKER,
    LOG_FILE_BYTES,
    PRODUCER,
    TOPIC,
    all_messages,
    bodies,
    log_offsets,
    new_record,
    opened,
    put,
    small_settings,
)

BROKER_V6 = encode_host("2001:db8::1", 10911)
PRODUCER_V6 = encode_host("2001:db8::2", 54321)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.binary(max_size=300),
    properties=st.dictionaries(st.text("abcK", min_size=1), st.text("xyz é", min_size=1)),
    flag=st.integers(-(2**31), 2**31 - 1),
    sys_flag=st.sampled_from([0, SysFlag.COMPRESSED, SysFlag.TRANSACTION_COMMIT]),
    queue_id=st.integers(0, 3),
    reconsume_times=st.integers(0, 20),
    born_host=st.sampled_from([PRODUCER, PRODUCER_V6]),
    store_host=st.sampled_from([BROKER, BROKER_V6]),
)
def test_the_log_holds_the_record_as_the_protocol_defines_it(
    store: MessageStore, clock: ManualClock, **made: Any
) -> None:
    text = encode_properties(made.pop("properties"))
    body, queue_id = made.pop("body"), made.pop("queue_id")
    made |= {"born_time_ms": 123, "prepared_offset": 77}
    stored = put(store, body, TOPIC, queue_id, text, **made)
    assert store.record_at(stored.log_offset, stored.size_bytes) == encode_record(
        TOPIC.encode(),
        body,
        text,
        **made,
        queue_id=queue_id,
        queue_offset=stored.queue_offset,
        log_offset=stored.log_offset,
        store_time_ms=clock.now_ms(),
        crc=None if body else 0,
    )


def test_offsets_grow_by_one_per_queue_and_by_the_size_in_the_log(store: MessageStore) -> None:
    first, second = put(store, b"a"), put(store, b"b")
    other = put(store, b"c", queue_id=1)
    assert (first.queue_offset, second.queue_offset, other.queue_offset) == (0, 1, 0)
    assert first.log_offset == 0
    assert second.log_offset == first.size_bytes
    assert other.log_offset == second.log_offset + second.size_bytes == second.log_offset_end
    assert store.written_to == other.log_offset_end


def test_a_full_file_is_closed_by_a_blank(store: MessageStore, tmp_path: Path) -> None:
    while store.written_to < LOG_FILE_BYTES:
        last_end = store.written_to
        put(store, b"x" * 1000)
    names = sorted(path.name for path in (tmp_path / "commitlog").iterdir())
    data = (tmp_path / "commitlog" / names[0]).read_bytes()
    left = LOG_FILE_BYTES - last_end
    assert names[1] == f"{LOG_FILE_BYTES:020d}"
    assert data[last_end : last_end + 8] == struct.pack(">iI", left, 0xCBD43194)
    assert len(bodies(store)) == store.bounds(TOPIC, 0)[1]


@pytest.mark.parametrize("spare", [8, 9])
def test_a_record_that_leaves_eight_bytes_stays_in_the_file(
    store: MessageStore, spare: int
) -> None:
    fixed = put(store, b"").size_bytes
    put(store, b"x" * (LOG_FILE_BYTES - spare - 2 * fixed))
    assert store.written_to == LOG_FILE_BYTES - spare


def test_a_record_that_would_leave_seven_bytes_goes_into_the_next_file(
    store: MessageStore,
) -> None:
    fixed = put(store, b"").size_bytes
    stored = put(store, b"x" * (LOG_FILE_BYTES - 7 - 2 * fixed))
    assert stored.log_offset == LOG_FILE_BYTES


@pytest.mark.parametrize("name", ["t" * 127, retry_topic("g" * 200)])
def test_a_topic_takes_the_record_form_that_its_length_needs(
    store: MessageStore, name: str
) -> None:
    stored = put(store, topic=name)
    record = store.record_at(stored.log_offset)
    assert record is not None
    assert record[4:8].hex() == ("daa320a7" if len(name) <= 127 else "daa320ab")
    assert decode_record(record).topic == name
    assert bodies(store, name) == [b"body"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("t" * 128, "a topic of 128 bytes, at most 127"),
        ("é" * 64, "a topic of 128 bytes, at most 127"),
        (retry_topic("g" * 300), "a topic of 307 bytes, at most 255"),
        ("", "a topic without a name"),
        ("a/b", "cannot name a directory"),
        ("..", "cannot name a directory"),
        ("nul\0", "cannot name a directory"),
    ],
)
def test_a_topic_that_no_record_or_directory_can_hold_is_refused(
    store: MessageStore, tmp_path: Path, name: str, words: str
) -> None:
    with pytest.raises(InvalidMessageError, match=words):
        put(store, topic=name)
    assert store.written_to == 0
    assert store.queue_keys() == []
    assert not (tmp_path / "consumequeue").exists()


def test_long_retry_topics_are_refused_where_the_setting_says_so(
    open_store: Callable[..., MessageStore],
) -> None:
    store = open_store(long_topic_records=False)
    with pytest.raises(InvalidMessageError, match="at most 127"):
        put(store, topic=retry_topic("g" * 200))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"body": b"x" * 5001}, "a body of 5001 bytes, at most 5000"),
        ({"properties": {"k": "v" * 32766}}, "properties of 32769 bytes, at most 32767"),
        ({"flag": 2**31}, "does not fit"),
        ({"queue_id": -1}, "queue -1"),
        ({"queue_id": 2**31}, "does not fit|queue 2147483648"),
        ({"born_host": b"12345"}, "a host of 5 bytes"),
        ({"store_host": b""}, "a host of 0 bytes"),
    ],
)
def test_a_message_that_breaks_a_limit_is_refused_and_not_stored(
    open_store: Callable[..., MessageStore], change: dict[str, Any], words: str
) -> None:
    store = open_store(message_bytes_max=5000)
    with pytest.raises(InvalidMessageError, match=words):
        put(store, **change)
    assert store.written_to == 0
    assert put(store).queue_offset == 0


def test_the_largest_body_can_be_changed_while_the_store_is_open(store: MessageStore) -> None:
    from dataclasses import replace

    store.reconfigure(replace(store.settings, message_bytes_max=10))
    with pytest.raises(InvalidMessageError, match="at most 10"):
        put(store, b"x" * 11)


def test_a_record_larger_than_a_file_is_refused(store: MessageStore) -> None:
    with pytest.raises(SegmentCreateError, match=f"at most {LOG_FILE_BYTES - 8}"):
        put(store, b"x" * LOG_FILE_BYTES)
    assert put(store).log_offset == 0


@pytest.mark.parametrize(
    ("kind", "in_queue", "in_index"),
    [
        (SysFlag.TRANSACTION_NONE, True, True),
        (SysFlag.TRANSACTION_PREPARED, False, True),
        (SysFlag.TRANSACTION_COMMIT, True, True),
        (SysFlag.TRANSACTION_ROLLBACK, False, False),
    ],
)
def test_the_kind_of_transaction_decides_what_follows(
    store: MessageStore, kind: int, in_queue: bool, in_index: bool
) -> None:
    put(store)
    arrivals: list[int] = []
    store.notify_of_arrivals(lambda topic, queue, offset, *rest: arrivals.append(offset))
    stored = put(store, sys_flag=kind, properties={"KEYS": "k"})
    assert stored.queue_offset == (1 if in_queue else 0)
    assert store.bounds(TOPIC, 0) == (0, 2 if in_queue else 1)
    assert arrivals == ([1] if in_queue else [])
    assert len(store.query(TOPIC, "k", 10, 0, 2**62).records) == in_index


def test_an_arrival_tells_everything_a_held_pull_needs(
    store: MessageStore, clock: ManualClock
) -> None:
    told: list[tuple[Any, ...]] = []
    topics: dict[str, int] = {}
    store.notify_of_arrivals(lambda *facts: told.append(facts), topics)
    put(store, properties={"TAGS": "nobody waits for it"})
    topics[TOPIC] = 1
    put(store, properties={"TAGS": "TagA"}, queue_id=2)
    assert told == [(TOPIC, 2, 0, 2598919, clock.now_ms(), b"TAGS\x01TagA\x02")]


@pytest.mark.parametrize(
    ("level", "delay_ms"), [("1", 1000), ("3", 10_000), ("18", 7_200_000), ("30", 7_200_000)]
)
def test_a_unit_of_the_delay_topic_says_when_its_message_is_due(
    store: MessageStore, clock: ManualClock, level: str, delay_ms: int
) -> None:
    put(store, topic="SCHEDULE_TOPIC_XXXX", properties={"DELAY": level, "TAGS": "TagA"})
    ((_, _, code),) = store.consume_queue_units("SCHEDULE_TOPIC_XXXX", 0, 0, 10)
    assert code == clock.now_ms() + delay_ms


@pytest.mark.parametrize("level", ["0", "-1", "x", "1x", "²"])
def test_a_delay_that_is_no_level_leaves_the_tags_code(store: MessageStore, level: str) -> None:
    put(store, topic="SCHEDULE_TOPIC_XXXX", properties={"DELAY": level, "TAGS": "TagA"})
    ((_, _, code),) = store.consume_queue_units("SCHEDULE_TOPIC_XXXX", 0, 0, 10)
    assert code == 2598919


def batch(*items: tuple[bytes, bytes]) -> bytes:
    return encode_batch([BatchItem(7, body, properties) for body, properties in items])


def put_batch(store: MessageStore, body: bytes, properties: bytes = b"", **more: Any) -> Any:
    return store.append_batch(new_record(body, more=properties, **more))


def test_a_batch_with_a_property_string_of_its_own_is_refused(store: MessageStore) -> None:
    record = new_record(batch((b"a", b"")), properties=b"k\x01v\x02")
    with pytest.raises(InvalidMessageError, match="in `more`"):
        store.append_batch(record)
    assert store.written_to == 0


def test_a_batch_becomes_one_record_per_message(store: MessageStore) -> None:
    put(store)
    stored = put_batch(
        store, batch((b"a", b"TAGS\x01x"), (b"", b""), (b"c", b"k\x01v\x02")), b"CLUSTER\x01C\x02"
    )
    messages = all_messages(store)[1:]
    assert [message.body for message in messages] == [b"a", b"", b"c"]
    assert [message.queue_offset for message in messages] == [1, 2, 3]
    assert [message.log_offset for message in messages] == log_offsets(stored)
    assert [message.flag for message in messages] == [7, 7, 7]
    assert messages[0].properties == {"TAGS": "x", "CLUSTER": "C"}
    assert messages[1].properties == {"CLUSTER": "C"}
    assert stored.queue_offset == 1
    assert stored.size_bytes == sum(message.size_bytes for message in messages)
    assert store.written_to == stored.log_offset_end


def test_the_batchs_own_unique_key_wins(store: MessageStore) -> None:
    put_batch(store, batch((b"a", b"UNIQ_KEY\x01own\x02")), b"UNIQ_KEY\x01whole\x02")
    assert all_messages(store)[0].unique_id == "whole"
    assert store.query(TOPIC, "whole", 9, 0, 2**62).records
    assert not store.query(TOPIC, "own", 9, 0, 2**62).records


def test_a_batch_stays_in_one_file(store: MessageStore) -> None:
    put(store, b"x" * (LOG_FILE_BYTES - 1000))
    stored = put_batch(store, batch(*[(b"y" * 100, b"")] * 5))
    assert log_offsets(stored)[0] == LOG_FILE_BYTES


@pytest.mark.parametrize(
    ("body", "more", "words"),
    [
        (b"", {}, "without messages"),
        (b"\0\0\0\x10abc", {}, "lengths do not fit"),
        (batch((b"a", b""))[:-1], {}, "lengths do not fit"),
        (batch((b"a", b"")), {"sys_flag": SysFlag.TRANSACTION_PREPARED}, "transaction"),
        (batch((b"a" * 6000, b"")), {}, "at most 5000"),
        (batch(*[(b"a" * 400, b"")] * 11), {}, "the records of a batch"),
    ],
)
def test_a_batch_that_breaks_a_rule_is_refused_whole(
    open_store: Callable[..., MessageStore], body: bytes, more: dict[str, Any], words: str
) -> None:
    store = open_store(message_bytes_max=5000)
    with pytest.raises(InvalidMessageError, match=words):
        put_batch(store, body, **more)
    assert store.written_to == 0
    assert store.bounds(TOPIC, 0) == (0, 0)


def test_nothing_is_taken_before_open_and_after_close(
    tmp_path: Path, open_store: Callable[..., MessageStore]
) -> None:
    from support.stores.small_stores import small_settings

    with pytest.raises(StoreUnavailableError, match="not open"):
        put(MessageStore(small_settings(tmp_path)))
    store = open_store()
    store.close()
    with pytest.raises(StoreUnavailableError, match="shut"):
        put(store)
    store.close()


# --- several at once ----------------------------------------------------------------------------


def new(body: bytes, topic: str = TOPIC, properties: bytes = b"KEYS\x01k\x02") -> NewRecord:
    return new_record(body, topic, 0, properties)


def test_messages_that_are_appended_together_follow_each_other(store: MessageStore) -> None:
    told: list[str] = []
    store.notify_of_arrivals(lambda topic, *rest: told.append(topic))
    put(store)
    first, second, third = store.append_all([new(b"a"), new(b"b", "other"), new(b"c")])
    assert second.log_offset == first.log_offset + first.size_bytes
    assert (
        third.log_offset
        == second.log_offset + second.size_bytes
        == store.written_to - (third.size_bytes)
    )
    assert (first.queue_offset, second.queue_offset, third.queue_offset) == (1, 0, 2)
    assert (bodies(store)[1:], bodies(store, "other")) == ([b"a", b"c"], [b"b"])
    assert told == [TOPIC, TOPIC, "other", TOPIC]
    assert len(store.query(TOPIC, "k", 9, 0, 2**62).records) == 2


@pytest.mark.parametrize("room", [1, 300, 700])
def test_messages_that_are_appended_together_are_in_one_file(
    store: MessageStore, room: int
) -> None:
    fill = LOG_FILE_BYTES - room - store.written_to
    put(store, bytes(fill - 200))
    stored = store.append_all([new(b"a" * 200), new(b"b" * 200)])
    assert {one.log_offset // LOG_FILE_BYTES for one in stored} in ({0}, {1})
    assert stored[1].log_offset == stored[0].log_offset + stored[0].size_bytes


@pytest.mark.parametrize("wrong", [new(b"x", ""), new(b"x", properties=b"\0"), new(bytes(5 << 20))])
def test_of_messages_that_are_appended_together_one_refused_refuses_all(
    store: MessageStore, wrong: NewRecord
) -> None:
    put(store)
    end = store.written_to
    with pytest.raises(InvalidMessageError):
        store.append_all([new(b"a"), wrong])
    assert (store.written_to, len(bodies(store))) == (end, 1)
    put(store)
    assert len(bodies(store)) == 2


@pytest.mark.parametrize("left", [1, 2, 3])
def test_of_messages_that_are_appended_together_none_is_stored_if_a_queue_cannot_grow(
    open_store: Callable[..., MessageStore], left: int
) -> None:
    files = FaultyFiles()
    store = open_store(files=files, consume_queue_file_bytes=20 * 50, index_enabled=False)
    for _ in range(50 - left):
        put(store)
    end = store.written_to
    files.room_bytes = 0  # the rest of the file is reserved
    with pytest.raises(StoreUnavailableError, match="full"):
        store.append_all([new(b"a"), new(b"b"), new(b"c"), new(b"d")])
    assert (store.written_to, len(bodies(store))) == (end, 50 - left)
    assert store.dispatch_backlog_bytes == 0
    files.room_bytes = None
    store.append_all([new(b"a"), new(b"b"), new(b"c"), new(b"d")])
    assert bodies(store)[50 - left :] == [b"a", b"b", b"c", b"d"]


def test_the_last_record_is_the_one_at_the_end_of_the_log(
    open_store: Callable[..., MessageStore],
) -> None:
    store = open_store()
    assert store.last_record() is None
    for topic in ("first", "second", "first"):
        stored = put(store, topic=topic)
        assert store.last_record() == store.record_at(stored.log_offset)
    store.close()
    store = open_store()
    assert store.last_record() == store.record_at(stored.log_offset)


# --- holding ------------------------------------------------------------------------------------


HELD_BYTES_MAX = 1_000_000
"""Four times what is held; more would only open more files."""


@pytest.mark.parametrize(
    ("run", "body_bytes"),
    [
        (run, body_bytes)
        for run, body_bytes in product([1, 7, 40, 200], [10, 1900, 8000, 16000])
        if run * body_bytes <= HELD_BYTES_MAX
    ],
)
def test_deferred_records_are_in_the_log_after_the_commit(
    store: MessageStore, tmp_path: Path, run: int, body_bytes: int
) -> None:
    """However the runs of held messages lie across the halves and the ends of files."""
    made = []
    while len(made) < max(60, run):
        store.appender.defer()
        for _ in range(run):
            body = b"%06d" % len(made) + b"x" * body_bytes
            end = store.written_to
            try:
                put(store, body, properties={"KEYS": f"k{len(made)}"})
            except DeferredFullError:
                assert store.written_to == end
                store.appender.write_staged()
                store.appender.defer()
                put(store, body, properties={"KEYS": f"k{len(made)}"})
            made.append(body)
        store.appender.write_staged()
        assert store.record_at(store.written_to - 1) is None
    assert bodies(store) == made
    assert len(store.query(TOPIC, f"k{len(made) - 1}", 9, 0, 2**62).records) == 1
    store.close()
    again = opened(tmp_path)
    assert bodies(again) == made
    again.close()


def test_arrivals_are_told_when_what_was_held_can_be_read(store: MessageStore) -> None:
    told: list[int] = []
    store.notify_of_arrivals(lambda topic, queue, offset, *rest: told.append(len(bodies(store))))
    store.appender.defer()
    put(store)
    put(store)
    assert told == []
    store.appender.write_staged()
    assert told == [2, 2]


def test_a_log_that_cannot_be_written_takes_nothing_more(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = opened(tmp_path, files=files)
    kept = [b"one", b"two"]
    for body in kept:
        put(store, body)
    store.appender.defer()
    put(store, b"lost")
    files.fail_write = True
    with pytest.raises(
        StoreUnavailableError, match=r"the log cannot be written: .*the disk is gone"
    ):
        store.appender.write_staged()
    files.fail_write = False
    with pytest.raises(StoreUnavailableError, match="the log cannot be written"):
        put(store, b"after")
    with pytest.raises(StoreUnavailableError, match="the log cannot be written"):
        store.flush()
    store.close()
    again = opened(tmp_path, files=files)
    assert bodies(again) == kept
    assert put(again, b"three").queue_offset == 2
    again.close()


# --- files that cannot be made in the middle of a batch -------------------------------------------


KEYS = [f"k{number}" for number in range(80)]


ITEMS = [(key.encode(), f"KEYS\x01{key}".encode()) for key in KEYS]


def half_indexed(tmp_path: Path) -> tuple[MessageStore, NoNewFiles]:
    """A store whose disk had no room for the keys of its second batch."""
    files = NoNewFiles()
    store = opened(tmp_path, files=files)
    told: list[int] = []
    store.notify_of_arrivals(lambda _topic, _queue, offset, *_: told.append(offset))
    put_batch(store, batch(*ITEMS[:40]))
    files.kind, files.refusals = "index", 10**6
    assert put_batch(store, batch(*ITEMS[40:])).queue_offset == 40
    assert told == list(range(80))
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match=r"disk full: .*space"):
            put(store)
    store.clean()
    assert bodies(store) == [key.encode() for key in KEYS]
    assert store.dispatch_backlog_bytes > 0
    for key in KEYS[:40]:
        assert len(store.query(TOPIC, key, 9, 0, 2**62).records) == 1
    return store, files


def all_is_there(store: MessageStore, *more: bytes) -> None:
    assert bodies(store) == [*(key.encode() for key in KEYS), *more]
    for key in KEYS:
        assert len(store.query(TOPIC, key, 9, 0, 2**62).records) == 1


@pytest.mark.parametrize("mapped_files_max", [0, 1])
def test_a_batch_is_refused_whole_if_the_next_file_of_its_queue_cannot_be_made(
    tmp_path: Path, mapped_files_max: int
) -> None:
    """Else some of its messages could not be read before the disk has room."""
    files = NoNewFiles()
    store = opened(tmp_path, files=files, mapped_queue_files_max=mapped_files_max)
    put(store, b"another", queue_id=1)
    put_batch(store, batch(*ITEMS[:40]))
    end = store.written_to
    files.kind, files.refusals = "consumequeue", 10**6
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match=r"disk full: .*space"):
            put_batch(store, batch(*ITEMS[40:]))
    assert (store.written_to, store.dispatch_backlog_bytes) == (end, 0)
    assert bodies(store) == [key.encode() for key in KEYS[:40]]
    for number in range(10):  # the rest of the file is reserved
        put(store, b"%d" % number)
    with pytest.raises(StoreUnavailableError, match=r"disk full: .*space"):
        put(store)
    files.refusals = 0
    assert put_batch(store, batch(*ITEMS[40:])).queue_offset == 50
    made = bodies(store)
    assert made[50:] == [key.encode() for key in KEYS[40:]]
    store.close()
    again = opened(tmp_path, files=files)
    assert bodies(again) == made
    again.close()
    with StoreReader(small_settings(tmp_path)) as reader:
        assert list(reader.verify()) == []


def test_a_file_made_for_a_batch_that_was_refused_is_the_next_one_of_its_queue(
    tmp_path: Path,
) -> None:
    files = NoNewFiles()
    store = opened(tmp_path, files=files, mapped_queue_files_max=1)
    put_batch(store, batch(*ITEMS[:40]))
    files.kind, files.refusals = "commitlog", 10**6
    while True:
        try:
            put_batch(store, batch(*[(b"x" * 300, b"")] * 30))
        except StoreUnavailableError:
            break
    files.refusals = 0
    put(store, b"another", queue_id=1)  # the files of the first queue are unmapped
    number = store.next_offset(TOPIC, 0)
    assert put(store, b"next").queue_offset == number
    for _ in range(60):
        put(store, b"more")
    assert bodies(store)[number:] == [b"next", *[b"more"] * 60]
    store.close()
    again = opened(tmp_path, files=files)
    assert bodies(again)[number:] == [b"next", *[b"more"] * 60]
    again.close()


def test_keys_that_a_batch_could_not_add_come_with_the_next_start(tmp_path: Path) -> None:
    store, files = half_indexed(tmp_path)
    files.refusals = 0
    store.close()

    again = opened(tmp_path, files=files)

    all_is_there(again)
    again.close()
    with StoreReader(small_settings(tmp_path)) as reader:
        assert list(reader.verify()) == []


@pytest.mark.parametrize("first", ["append", "clean"])
def test_keys_that_a_batch_could_not_add_come_as_soon_as_there_is_room(
    tmp_path: Path, first: str
) -> None:
    store, files = half_indexed(tmp_path)
    files.refusals = 0
    if first == "clean":
        store.clean()
        all_is_there(store)
        assert store.dispatch_backlog_bytes == 0
    assert put(store, b"next").queue_offset == 80
    all_is_there(store, b"next")
    store.close()
    with StoreReader(small_settings(tmp_path)) as reader:
        assert list(reader.verify()) == []


def test_nobody_is_led_past_the_messages_that_a_failed_write_lost(tmp_path: Path) -> None:
    """Else a consumer goes on behind them, and misses those that get their places later."""
    files = FaultyFiles()
    store = opened(tmp_path, files=files)
    put(store, b"kept")
    store.appender.defer()
    for _ in range(70):
        put(store, b"lost")
        put(store, b"lost", queue_id=1)
    files.fail_write = True
    with pytest.raises(StoreUnavailableError, match="the log cannot be written"):
        store.appender.write_staged()
    for queue_id, end in ((0, 1), (1, 0)):
        assert store.bounds(TOPIC, queue_id) == (0, end)
        assert store.get(TOPIC, queue_id, end, 32).next_begin_offset == end
    assert bodies(store) == [b"kept"]
    store.close()


def test_properties_with_zeros_are_refused(store: MessageStore) -> None:
    """A recovery could not tell them from those that a power cut has torn."""
    with pytest.raises(InvalidMessageError, match="character of code 0"):
        put(store, properties={"k": "a\0b"})
    with pytest.raises(InvalidMessageError, match="character of code 0"):
        put_batch(store, batch((b"one", b"k\x01v"), (b"two", b"k\x01v\0")))
    assert put(store).queue_offset == 0
