"""Damaged units and records: what readers make of them, and what starts do."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cometmq.protocol.hashing import java_hash
from cometmq.store import MessageStore, StoreCorruptError, TagMatcher
from cometmq.store.lifecycle import recovery
from cometmq.store.log.segments import Segments
from cometmq.store.queues import repair
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.queue_reader import RESPONSE_BYTES_MAX
from cometmq.system.files import Files
from support.stores.small_stores import TOPIC, all_messages, bodies, put, split

Open = Callable[..., MessageStore]
COUNT = 30
DAMAGED = 12
OTHER = "other"


@pytest.fixture
def closed(open_store: Open) -> None:
    """A closed store of two topics, whose messages are in turn."""
    store = open_store()
    for number in range(COUNT):
        put(store, b"%d-" % number * 9, properties={"TAGS": "TagA", "KEYS": f"k{number}"})
        put(store, b"other", topic=OTHER, properties={"TAGS": "TagB"})
    store.close()


def sent() -> list[bytes]:
    return [b"%d-" % number * 9 for number in range(COUNT)]


def queue_file(tmp_path: Path, topic: str = TOPIC) -> Path:
    return tmp_path / "consumequeue" / topic / "0" / f"{0:020d}"


def log_file(tmp_path: Path) -> Path:
    return tmp_path / "commitlog" / f"{0:020d}"


def flip(path: Path, position: int, mask: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


def unit_at(path: Path, number: int) -> tuple[int, int, int]:
    return struct.unpack_from(">qiq", path.read_bytes(), number * 20)  # type: ignore[return-value]


def pulled(store: MessageStore, offset: int, count: int = 1) -> list[bytes]:
    """The bodies that a pull gets."""
    asked = (TOPIC, 0, offset, count, None, RESPONSE_BYTES_MAX)
    found = store.reader.verified(store.reader.get(*asked), *asked)
    return [message.body for message in split(b"".join(found.slices))]


OUTSIDE = {
    "before the log": (0, 0x80),
    "behind the log": (0, 0x40),
    "of no size": (8, 0x80),
    "longer than its file": (8, 0x40),
}
"""Bits of a unit that put its record outside the log."""


@pytest.mark.parametrize("damage", OUTSIDE)
def test_a_unit_that_cannot_be_right_is_made_again(
    closed: None, open_store: Open, tmp_path: Path, damage: str
) -> None:
    path, (position, mask) = queue_file(tmp_path), OUTSIDE[damage]
    unit = unit_at(path, DAMAGED)
    flip(path, DAMAGED * 20 + position, mask)

    store = open_store()
    assert bodies(store) == sent()
    store.close()

    assert unit_at(path, DAMAGED) == unit


@pytest.mark.parametrize("damage", OUTSIDE)
def test_a_read_of_many_skips_no_message_of_a_damaged_unit(
    closed: None, open_store: Open, tmp_path: Path, damage: str
) -> None:
    flip(queue_file(tmp_path), DAMAGED * 20 + OUTSIDE[damage][0], OUTSIDE[damage][1])
    store = open_store()
    matcher, met, offset = TagMatcher(frozenset({java_hash("TagA")})), [], 0
    while offset < COUNT:
        found = store.get(TOPIC, 0, offset, 32, matcher)
        met += [message.body for message in split(b"".join(found.slices))]
        offset = found.next_begin_offset
    assert met == sent()


def test_a_read_continues_behind_a_unit_whose_record_is_nowhere(
    closed: None, open_store: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = queue_file(tmp_path)
    log_offset = unit_at(path, DAMAGED)[0]
    flip(path, DAMAGED * 20, 0x40)
    store = open_store()
    flip(log_file(tmp_path), log_offset + 20, 0x40)  # its queue offset
    assert bodies(store) == [body for n, body in enumerate(sent()) if n != DAMAGED]
    assert bodies(store) == [body for n, body in enumerate(sent()) if n != DAMAGED]
    message = f"its message is skipped topic={TOPIC} queue=0 offset={DAMAGED} path={path}"
    assert caplog.text.count(message) == 1


@pytest.mark.parametrize("bit", range(0, 96, 3))
def test_a_pull_gets_its_own_message_whatever_bit_of_its_unit_is_changed(
    closed: None, open_store: Open, tmp_path: Path, bit: int
) -> None:
    flip(queue_file(tmp_path), DAMAGED * 20 + bit // 8, 1 << bit % 8)
    store = open_store()
    assert pulled(store, DAMAGED) == [sent()[DAMAGED]]
    assert pulled(store, DAMAGED - 3, 9) == sent()[DAMAGED - 3 : DAMAGED + 6]


@pytest.mark.parametrize(("position", "mask"), [(0, 0x80), (5, 0x04), (6, 0x02), (8, 0x80)])
def test_the_record_of_a_unit_with_one_changed_bit_may_be_far_away(
    closed: None,
    open_store: Open,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    position: int,
    mask: int,
) -> None:
    monkeypatch.setattr(repair, "_SEARCHED_BYTES_MAX", 0)
    flip(queue_file(tmp_path), DAMAGED * 20 + position, mask)
    assert pulled(open_store(), DAMAGED) == [sent()[DAMAGED]]


def test_times_are_searched_past_a_damaged_unit(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    times = []
    for number in range(16):
        store._clock.advance(10)  # type: ignore[attr-defined]
        put(store, b"%d" % number)
        times.append(store.store_time_at(TOPIC, 0, number))
    store.close()
    flip(queue_file(tmp_path), 8 * 20, 0x80)  # the unit in the middle, where the search begins
    store = open_store()
    assert [store.offset_at_time(TOPIC, 0, time) for time in times] == list(range(16))


HEAD = {"size": 2, "magic": 7, "queue": 15, "queue offset": 27, "log offset": 35, "topic": -1}
"""Fields of a record that its unit knows, and a byte of each."""


def at_field(path: Path, log_offset: int, field: str) -> int:
    data = path.read_bytes()
    return data.index(TOPIC.encode(), log_offset) if field == "topic" else log_offset + HEAD[field]


@pytest.mark.parametrize("field", HEAD)
def test_a_damaged_head_of_a_record_is_written_again_from_its_unit(
    closed: None,
    open_store: Open,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    field: str,
) -> None:
    monkeypatch.setattr(recovery, "_WALKED_BYTES", 0)  # as if much more were behind it
    path = log_file(tmp_path)
    before = path.read_bytes()
    flip(path, at_field(path, unit_at(queue_file(tmp_path), DAMAGED)[0], field), 0x02)

    store = open_store()
    assert pulled(store, DAMAGED, 9) == sent()[DAMAGED : DAMAGED + 9]
    store.close()

    assert path.read_bytes() == before


@pytest.mark.parametrize("field", ["body", "checksum", "length of the body", "kinds of hosts"])
def test_a_message_that_cannot_be_repaired_is_named_and_not_served(
    closed: None,
    open_store: Open,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    field: str,
) -> None:
    monkeypatch.setattr(recovery, "_WALKED_BYTES", 0)
    path = log_file(tmp_path)
    log_offset = unit_at(queue_file(tmp_path), DAMAGED)[0]
    position = {"body": 90, "checksum": 9, "length of the body": 87, "kinds of hosts": 39}[field]
    flip(path, log_offset + position, 0x10)
    before = path.read_bytes()

    store = open_store()
    with pytest.raises(StoreCorruptError, match=f"the message at offset {DAMAGED} of") as met:
        pulled(store, DAMAGED)
    assert (met.value.path, met.value.position) == (path, log_offset)
    assert pulled(store, DAMAGED - 2, 9)[0] == sent()[DAMAGED - 2]
    assert pulled(store, DAMAGED + 1, 9) == sent()[DAMAGED + 1 : DAMAGED + 10]
    assert caplog.text.count(f"pulls are refused error={met.value}") == 1
    store.close()
    assert path.read_bytes() == before


def test_a_damaged_body_is_found_neither_by_offset_nor_by_key(
    closed: None, open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be stored again with a checksum of its own: as a retry, or when it is due."""
    monkeypatch.setattr(recovery, "_WALKED_BYTES", 0)
    log_offset = unit_at(queue_file(tmp_path), DAMAGED)[0]
    store = open_store()
    assert store.record_at(log_offset) is not None
    assert len(store.query(TOPIC, f"k{DAMAGED}", 9, 0, 2**62).records) == 1
    store.close()
    flip(log_file(tmp_path), log_offset + 90, 0x10)
    store = open_store()
    assert store.record_at(log_offset) is None
    assert store.query(TOPIC, f"k{DAMAGED}", 9, 0, 2**62).records == []


@pytest.mark.parametrize("ending", ["closed", "killed"])
@pytest.mark.parametrize(("position", "mask"), [(0, 0x80), (0, 0x40), (5, 1), (6, 0x10), (8, 0x80)])
def test_a_damaged_last_unit_of_an_idle_queue_loses_no_message(
    open_store: Open, tmp_path: Path, ending: str, position: int, mask: int
) -> None:
    store = open_store()
    for number in range(5):
        put(store, b"%d" % number)
    for _ in range(40):
        put(store, b"other", topic=OTHER)
    store.close() if ending == "closed" else store.abandon()
    flip(queue_file(tmp_path), 4 * 20 + position, mask)

    store = open_store()
    assert bodies(store) == [b"%d" % number for number in range(5)]
    assert put(store, b"next").queue_offset == 5
    assert len(all_messages(store, OTHER)) == 40


@pytest.mark.parametrize("kept_bytes", range(12, 20))
def test_a_unit_of_which_only_the_first_part_was_written_is_written_again(
    open_store: Open, tmp_path: Path, kept_bytes: int
) -> None:
    """Else a consumer of its tag would miss the message of a process that was killed just then."""
    store = open_store()
    for number in range(3):
        put(store, b"%d" % number, properties={"TAGS": f"Tag{number}"})
    put(store, b"other", topic=OTHER)
    store.abandon()
    path = queue_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[2 * 20 + kept_bytes : 3 * 20] = bytes(20 - kept_bytes)
    path.write_bytes(data)

    store = open_store()
    found = store.get(TOPIC, 0, 0, 32, TagMatcher(frozenset({java_hash("Tag2")})))
    assert [message.body for message in split(b"".join(found.slices))] == [b"2"]


@pytest.mark.parametrize("number", range(0, COUNT, 3))
def test_a_damaged_unit_is_not_the_end_of_its_queue(
    closed: None, open_store: Open, tmp_path: Path, number: int
) -> None:
    flip(queue_file(tmp_path), number * 20, 0x80)
    store = open_store()
    assert store.bounds(TOPIC, 0) == (0, COUNT)
    assert bodies(store) == sent()


@pytest.mark.parametrize("number", [COUNT, COUNT + 1, COUNT + 7, 49])
@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_a_changed_bit_behind_a_queue_is_no_unit(
    closed: None, open_store: Open, tmp_path: Path, ending: str, number: int
) -> None:
    if ending == "killed":
        open_store().abandon()
    flip(queue_file(tmp_path), number * 20 + 10, 0x02)
    store = open_store()
    assert store.bounds(TOPIC, 0) == (0, COUNT)
    assert put(store, b"next").queue_offset == COUNT
    assert bodies(store) == [*sent(), b"next"]


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[ConsumeQueue]:
    """A queue of several files with 1000 bytes of log for each message."""
    queue = ConsumeQueue("t", 0, Segments(Files(), tmp_path / "q", 20 * 10))
    queue.load()
    for number in range(64):
        queue.put(number, number * 1000, 1000, 7, 0)
    yield queue
    queue.close()


@pytest.mark.parametrize("damaged", range(64))
@pytest.mark.parametrize("log_offset", [-(2**62), 0, 2**62])
def test_a_damaged_unit_hides_no_other_behind_the_least_offset(
    queue: ConsumeQueue, damaged: int, log_offset: int
) -> None:
    for log_min in (0, 5_000, 31_000, 32_000, 62_000):
        for number in range(64):
            queue.replace(number, number * 1000, 1000, 7)
        queue.replace(damaged, log_offset, 1000, 7)
        first = queue.first_at_or_after(log_min)
        least = log_min // 1000
        assert first <= least or (damaged == least and first == least + 1 and log_offset == 0)


def test_files_stay_whose_last_unit_only_seems_old(queue: ConsumeQueue) -> None:
    queue.replace(9, -(2**63) + 9000, 1000, 7)
    assert queue.drop_before(5_000) == 0
    assert queue.drop_before(11_000) == 1


@pytest.mark.parametrize("bit", [*range(8, 63, 5), 61, 62])
def test_an_impossible_queue_offset_of_a_record_fills_no_disk(
    queue: ConsumeQueue, bit: int
) -> None:
    queue.put(64 ^ 1 << bit, 64_000, 1000, 7, 0)
    assert queue.max_offset <= 64 + 10
    empty = ConsumeQueue("t", 1, Segments(Files(), queue.segments.directory.parent / "r", 200))
    empty.load()
    empty.put(1 << bit, 64_000, 1000, 7, 0)
    assert empty.max_offset - empty.min_offset <= 1
    empty.close()


def lost_power(tmp_path: Path) -> None:
    (tmp_path / "abort").write_bytes(b"1\nanother boot")


@pytest.mark.parametrize("bit", range(0, 40, 3))
@pytest.mark.parametrize("number", [DAMAGED, COUNT - 1])
def test_a_record_with_another_queue_offset_is_dispatched_in_its_place(
    open_store: Open, tmp_path: Path, bit: int, number: int
) -> None:
    """Else the units of many messages would be fillers, or theirs."""
    store = open_store()
    stored = [put(store, body) for body in sent()]
    store.abandon()
    for path in (tmp_path / "checkpoint", queue_file(tmp_path)):
        path.unlink(missing_ok=True)
    path = log_file(tmp_path)
    flip(path, stored[number].log_offset + 27 - bit // 8, 1 << bit % 8)

    store = open_store()
    if number == COUNT - 1 and bit == 0:  # perhaps the one before it is missing
        return
    assert bodies(store) == sent()
    assert [message.queue_offset for message in all_messages(store)] == list(range(COUNT))


@pytest.mark.parametrize("field", ["queue", "topic"])
def test_a_record_of_another_queue_is_dispatched_to_that_which_lacks_it(
    closed: None, open_store: Open, tmp_path: Path, field: str
) -> None:
    path = log_file(tmp_path)
    log_offset = unit_at(queue_file(tmp_path), DAMAGED)[0]
    lost_power(tmp_path)
    for topic in (TOPIC, OTHER):
        queue_file(tmp_path, topic).unlink()
    (tmp_path / "checkpoint").unlink()
    flip(path, at_field(path, log_offset, field), 0x02)
    store = open_store()
    assert bodies(store) == sent()


def test_neighbours_that_are_damaged_too_do_not_count_as_deleted(
    open_store: Open, tmp_path: Path
) -> None:
    """The disk has zeroed a part of a queue, and older messages are deleted."""
    store = open_store()
    for number in range(COUNT):
        put(store, b"%d" % number * 500)
    store.close()
    log_file(tmp_path).unlink()
    store = open_store()
    assert store.min_log_offset > 0
    path = queue_file(tmp_path)
    data = bytearray(path.read_bytes())
    first = DAMAGED + 10
    units = bytes(data[first * 20 : (first + 4) * 20])
    data[first * 20 : (first + 4) * 20] = bytes(4 * 20)
    path.write_bytes(data)

    assert pulled(store, first - 1, 2) + pulled(store, first + 1, 9) == [
        b"%d" % number * 500 for number in range(first - 1, COUNT)
    ]
    store.close()
    assert path.read_bytes()[first * 20 : (first + 4) * 20] == units


@pytest.mark.parametrize("field", HEAD)
def test_a_search_by_time_does_not_keep_a_record_from_its_repair(
    closed: None,
    open_store: Open,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    field: str,
) -> None:
    monkeypatch.setattr(recovery, "_WALKED_BYTES", 0)
    path = log_file(tmp_path)
    before = path.read_bytes()
    flip(path, at_field(path, unit_at(queue_file(tmp_path), DAMAGED)[0], field), 0x02)

    store = open_store()
    assert store.store_time_at(TOPIC, 0, DAMAGED) > 0
    assert pulled(store, DAMAGED, 9) == sent()[DAMAGED : DAMAGED + 9]
    store.close()

    assert path.read_bytes() == before


def test_a_message_whose_unit_could_not_be_repaired_is_not_served(
    closed: None, open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of the record has two changed bytes, and its body one."""
    monkeypatch.setattr(recovery, "_WALKED_BYTES", 0)
    path = log_file(tmp_path)
    log_offset = unit_at(queue_file(tmp_path), DAMAGED)[0]
    flip(path, log_offset + 2, 0x02)
    flip(path, log_offset + 90, 0x10)
    store = open_store()
    store.store_time_at(TOPIC, 0, DAMAGED)
    with pytest.raises(StoreCorruptError, match=f"the message at offset {DAMAGED} of"):
        pulled(store, DAMAGED)


def test_a_damaged_message_that_a_filter_skips_does_not_stop_others(
    open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_WALKED_BYTES", 0)
    store = open_store()
    stored = [put(store, b"%d-" % n * 9, properties={"TAGS": f"Tag{n % 2}"}) for n in range(COUNT)]
    store.close()
    path = log_file(tmp_path)
    flip(path, stored[4].log_offset + 90, 0x10)  # cannot be repaired
    flip(path, stored[5].log_offset + 15, 0x02)  # can be
    store = open_store()
    asked = (TOPIC, 0, 0, 32, TagMatcher(frozenset({java_hash("Tag1")})), RESPONSE_BYTES_MAX)
    found = store.reader.verified(store.reader.get(*asked), *asked)
    met = [message.body for message in split(b"".join(found.slices))]
    assert met == [b"%d-" % n * 9 for n in range(1, COUNT, 2)]


def test_one_read_searches_few_records_of_a_zeroed_queue(
    open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each search may take ten milliseconds, and the read is done in the event loop."""
    store = open_store(consume_queue_file_bytes=20 * 500)
    for number in range(400):
        put(store, b"%d" % number)
    path = queue_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[20 * 20 : 300 * 20] = bytes(280 * 20)
    path.write_bytes(data)
    monkeypatch.setattr(repair, "_NEIGHBOURS_MAX", 0)  # as if no record were found
    searches: list[int] = []
    find = repair.Repair.find

    def counted(self: repair.Repair, queue: ConsumeQueue, offset: int) -> object:
        searches.append(offset)
        return find(self, queue, offset)

    monkeypatch.setattr(repair.Repair, "find", counted)
    offset = reads = 0
    met = []
    while offset < 400:
        searches.clear()
        found = store.get(TOPIC, 0, offset, 512)
        met += [message.body for message in split(b"".join(found.slices))]
        assert len(searches) <= 16
        assert found.next_begin_offset > offset
        offset = found.next_begin_offset
        reads += 1
    sound = [b"%d" % number for number in [*range(20), *range(300, 400)]]
    assert [body for body in met if body in sound] == sound
    assert reads > 10


def test_queues_that_lack_units_change_no_whole_record(open_store: Open, tmp_path: Path) -> None:
    """The last units are lost, and all records are whole: whichever queue and offset they have."""
    store = open_store(index_enabled=False)
    for number in range(6):
        for queue_id in (1, 0):
            put(store, b"%d" % number, queue_id=queue_id)
    put(store, topic=OTHER)
    for queue_id in (1, 0):
        put(store, b"6", queue_id=queue_id)
    store.abandon()
    for queue_id in (0, 1):
        path = tmp_path / "consumequeue" / TOPIC / str(queue_id) / f"{0:020d}"
        data = bytearray(path.read_bytes())
        data[5 * 20 : 7 * 20] = bytes(2 * 20)
        path.write_bytes(data)
    before = log_file(tmp_path).read_bytes()

    store = open_store(index_enabled=False)
    assert log_file(tmp_path).read_bytes() == before
    for queue_id in (0, 1):
        assert bodies(store, queue_id=queue_id) == [b"%d" % number for number in range(7)]


def test_an_offset_behind_lost_units_is_not_changed(open_store: Open, tmp_path: Path) -> None:
    store = open_store(index_enabled=False)
    for number in range(7):
        put(store, b"%d" % number)
    put(store, topic=OTHER)
    put(store, b"7")
    store.abandon()
    path = queue_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[5 * 20 : 8 * 20] = bytes(3 * 20)
    path.write_bytes(data)
    before = log_file(tmp_path).read_bytes()

    store = open_store(index_enabled=False)
    assert log_file(tmp_path).read_bytes() == before
    assert bodies(store) == [b"%d" % number for number in range(8)]
