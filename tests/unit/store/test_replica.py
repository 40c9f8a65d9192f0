"""A store that copies the bytes of another one: same files, whole records only, nothing hostile."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from cometmq.store import MessageStore, ReplicaError, StoreUnavailableError
from support.stores.faulty_files import FaultyFiles
from support.stores.small_stores import (
    LOG_FILE_BYTES,
    TOPIC,
    all_messages,
    bodies,
    files_of,
    opened,
    put,
)


def filled(root: Path, *, count: int = 60, topic: str = TOPIC) -> MessageStore:
    """A store with some files of messages of many sizes, and keys."""
    store = opened(root)
    sizes = random.Random(7)
    for number in range(count):
        body = b"%d" % number + b"x" * sizes.choice([0, 10, 500, 3000])
        put(store, body, topic=topic, queue_id=number % 3, properties={"KEYS": f"k{number}"})
    return store


def log_of(store: MessageStore, start: int = 0) -> bytes:
    """The bytes of the log from an offset on."""
    found = b""
    while (data := store.log_bytes(start + len(found), LOG_FILE_BYTES)) is not None:
        found += bytes(data)
    return found


def copy_in_pieces(store: MessageStore, data: bytes, start: int, pieces: list[int]) -> None:
    """Append the bytes cut at some positions, and at the ends of files."""
    first_end = LOG_FILE_BYTES - start % LOG_FILE_BYTES
    cuts = {*pieces, *range(first_end, len(data), LOG_FILE_BYTES), 0, len(data)}
    ordered = sorted(cut for cut in cuts if cut <= len(data))
    for at, stop in pairwise(ordered):
        store.replica.expect(start + at)
        store.replica.append(data[at:stop])


def data_files(root: Path) -> dict[str, bytes]:
    files = files_of(root)
    return {name: files[name] for name in files if name.startswith(("commitlog", "consumequeue"))}


@pytest.mark.parametrize("seed", range(8))
def test_any_cut_gives_the_files_of_the_master(tmp_path: Path, seed: int) -> None:
    master, slave = filled(tmp_path / "m"), opened(tmp_path / "s")
    data = log_of(master)
    assert len(data) == master.written_to > 3 * LOG_FILE_BYTES
    cuts = random.Random(seed)
    slave.replica.begin()
    copy_in_pieces(slave, data, 0, [cuts.randrange(len(data)) for _ in range(10**seed % 997)])
    assert slave.written_to == slave.replica.received_to == master.written_to
    for queue in range(3):
        assert all_messages(slave, queue_id=queue) == all_messages(master, queue_id=queue)
    for number in (0, 30, 59):
        span = (TOPIC, f"k{number}", 8, 0, 2**62)
        assert slave.query(*span).records == master.query(*span).records != []
    master.close()
    slave.close()
    assert data_files(tmp_path / "s") == data_files(tmp_path / "m")


def test_every_byte_alone_gives_whole_records_only(tmp_path: Path) -> None:
    master, slave = opened(tmp_path / "m"), opened(tmp_path / "s")
    ends = [put(master, b"%d" % number).log_offset for number in range(5)]
    ends.append(master.written_to)
    slave.replica.begin()
    for at, byte in enumerate(log_of(master)):
        slave.replica.append(bytes([byte]))
        whole = max(end for end in ends if end <= at + 1)
        assert slave.written_to == whole
        assert len(bodies(slave)) == ends.index(whole)


def test_after_a_kill_it_continues_behind_the_last_whole_record(tmp_path: Path) -> None:
    master, slave = filled(tmp_path / "m"), opened(tmp_path / "s")
    data = log_of(master)
    for cut in (10, 3000, LOG_FILE_BYTES + 5, 2 * LOG_FILE_BYTES):
        start = slave.replica.begin()
        copy_in_pieces(slave, data[start : start + cut], start, [])
        end = slave.written_to
        assert start <= end <= start + cut
        slave.abandon()
        slave = opened(tmp_path / "s")
        assert slave.replica.begin() == end
    start = slave.replica.begin()
    copy_in_pieces(slave, data[start:], start, [])
    assert bodies(slave) == bodies(master)
    master.close()
    slave.close()
    assert data_files(tmp_path / "s") == data_files(tmp_path / "m")


def test_a_new_connection_receives_the_part_of_a_record_again(tmp_path: Path) -> None:
    master, slave = filled(tmp_path / "m", count=3), opened(tmp_path / "s")
    data = log_of(master)
    slave.replica.begin()
    slave.replica.append(data[:-1])
    start = slave.replica.begin()
    assert start == slave.written_to < len(data) - 1
    slave.replica.append(data[start:])
    assert slave.written_to == len(data)


@pytest.mark.parametrize("ending", [MessageStore.close, MessageStore.abandon])
def test_a_record_without_the_end_of_its_properties_is_received_again(
    tmp_path: Path, ending: Callable[[MessageStore], None]
) -> None:
    """Its checksum matches: it covers the body only."""
    master, slave = filled(tmp_path / "m", count=3), opened(tmp_path / "s")
    data = log_of(master)
    slave.replica.begin()
    slave.replica.append(data[:-1])
    whole = slave.written_to
    ending(slave)
    slave = opened(tmp_path / "s")
    assert slave.replica.begin() == whole < len(data) - 1
    slave.replica.append(data[whole:])
    assert log_of(slave) == data


def test_an_empty_slave_begins_where_a_file_of_the_master_begins(tmp_path: Path) -> None:
    master, slave = filled(tmp_path / "m"), opened(tmp_path / "s")
    start = master.file_start(master.written_to)
    assert start >= 3 * LOG_FILE_BYTES
    assert slave.replica.begin() == 0
    slave.replica.expect(start)
    copy_in_pieces(slave, log_of(master, start), start, [100, 101])
    assert slave.written_to == master.written_to
    assert slave.min_log_offset == start
    for queue in range(3):
        end = slave.bounds(TOPIC, queue)
        assert end[1] == master.bounds(TOPIC, queue)[1] > end[0] > 0
        expected = [m for m in all_messages(master, queue_id=queue) if m.log_offset >= start]
        assert all_messages(slave, queue_id=queue) == expected
    slave.close()
    again = opened(tmp_path / "s")
    assert again.replica.begin() == master.written_to
    assert all_messages(again, queue_id=2) == expected


def test_a_slave_appends_behind_what_it_copied_when_it_becomes_a_master(tmp_path: Path) -> None:
    master, slave = filled(tmp_path / "m"), opened(tmp_path / "s")
    slave.replica.begin()
    copy_in_pieces(slave, log_of(master), 0, [])
    for number in range(40):
        ours, theirs = (put(store, b"%d" % number + b"y" * 900) for store in (slave, master))
        assert (ours.log_offset, ours.queue_offset) == (theirs.log_offset, theirs.queue_offset)
    assert bodies(slave) == bodies(master)


def test_held_pulls_are_notified_of_copied_messages(tmp_path: Path) -> None:
    master, slave = filled(tmp_path / "m", count=4), opened(tmp_path / "s")
    arrived: list[tuple[object, ...]] = []
    slave.notify_of_arrivals(lambda *arrival: arrived.append(arrival[:3]))
    slave.replica.begin()
    slave.replica.append(log_of(master))
    assert arrived == [(TOPIC, 0, 0), (TOPIC, 1, 0), (TOPIC, 2, 0), (TOPIC, 0, 1)]


@pytest.mark.parametrize("offset", [-1, 1, LOG_FILE_BYTES - 1, -LOG_FILE_BYTES])
def test_an_empty_slave_begins_nowhere_else(tmp_path: Path, offset: int) -> None:
    slave = opened(tmp_path)
    slave.replica.begin()
    with pytest.raises(ReplicaError, match=f"offset {offset} on, expected the start of a file"):
        slave.replica.expect(offset)
    assert slave.written_to == 0


@pytest.mark.parametrize("gap", [-1, 1, LOG_FILE_BYTES])
def test_bytes_for_another_offset_are_refused(tmp_path: Path, gap: int) -> None:
    slave = filled(tmp_path, count=3)
    end = slave.replica.begin()
    with pytest.raises(ReplicaError, match=f"from log offset {end + gap} on, expected {end}"):
        slave.replica.expect(end + gap)


@pytest.mark.parametrize(
    ("position", "value", "named"),
    [
        (0, 0x7F, "no record"),  # its size
        (4, 0x11, "no record"),  # its magic number
        (28 + 7, 0x11, "a record that says it is at"),  # its log offset
        (84, 0x7F, "damaged"),  # the length of its body
    ],
)
def test_what_is_no_record_does_not_become_part_of_the_log(
    tmp_path: Path, position: int, value: int, named: str
) -> None:
    master, slave = filled(tmp_path / "m", count=3), opened(tmp_path / "s")
    first = master.get(TOPIC, 0, 0, 1).size_bytes
    data = bytearray(log_of(master))
    data[first + position] = value
    slave.replica.begin()
    with pytest.raises(ReplicaError, match=named):
        slave.replica.append(data)
    assert slave.written_to == first
    assert len(bodies(slave)) == 1
    start = slave.replica.begin()
    slave.replica.append(log_of(master, start))  # another master
    assert all_messages(slave) == all_messages(master)


def test_files_of_another_size_are_named(tmp_path: Path) -> None:
    master = filled(tmp_path / "m")
    data = log_of(master)
    smaller = opened(tmp_path / "s", commit_log_file_bytes=LOG_FILE_BYTES // 2)
    smaller.replica.begin()
    with pytest.raises(ReplicaError, match="mappedFileSizeCommitLog"):
        smaller.replica.append(data[:LOG_FILE_BYTES])
    larger = opened(tmp_path / "l", commit_log_file_bytes=LOG_FILE_BYTES * 2)
    larger.replica.begin()
    with pytest.raises(ReplicaError, match="mappedFileSizeCommitLog"):
        larger.replica.append(data[:LOG_FILE_BYTES])
    assert 0 < larger.written_to < LOG_FILE_BYTES


def test_a_record_of_an_impossible_queue_is_left_out(tmp_path: Path) -> None:
    master, slave = opened(tmp_path / "m"), opened(tmp_path / "s")
    put(master, b"lost", topic="T", queue_id=1)
    put(master, b"kept", topic="T", queue_id=2)
    data = bytearray(log_of(master))
    data[12:16] = (2**32 - 1).to_bytes(4, "big")  # its queue, -1
    slave.replica.begin()
    slave.replica.append(data)
    assert slave.written_to == master.written_to
    assert slave.queue_keys() == [("T", 2)]


def test_a_failed_sync_ends_the_copy(tmp_path: Path) -> None:
    master, files = filled(tmp_path / "m", count=3), FaultyFiles()
    slave = opened(tmp_path / "s", files=files)
    slave.replica.begin()
    data = log_of(master)
    slave.replica.append(data[:-1])
    files.fail_sync = True
    with pytest.raises(StoreUnavailableError):
        slave.flush()
    with pytest.raises(StoreUnavailableError, match="sync has failed"):
        slave.replica.append(data[-1:])
    with pytest.raises(StoreUnavailableError, match="sync has failed"):
        slave.replica.begin()


def test_queues_may_begin_many_files_later_than_those_of_the_master(tmp_path: Path) -> None:
    master, slave = opened(tmp_path / "m"), opened(tmp_path / "s")
    for number in range(500):
        put(master, b"%d" % number)
    start = master.file_start(master.written_to)
    slave.replica.begin()
    slave.replica.expect(start)
    slave.replica.append(log_of(master, start))
    low, high = slave.bounds(TOPIC, 0)
    assert high == 500
    assert low > 400
    assert [message.queue_offset for message in all_messages(slave)] == list(range(low, 500))


def test_with_a_full_disk_nothing_is_left_out_of_the_queues(tmp_path: Path) -> None:
    master, files = opened(tmp_path / "m"), FaultyFiles()
    slave = opened(tmp_path / "s", files=files, index_enabled=False)
    for number in range(120):  # more than two files of a queue
        put(master, b"%d" % number, queue_id=0)
    data = log_of(master)
    slave.replica.begin()
    slave.replica.append(data[:5000])
    files.room_bytes = 0
    with pytest.raises(StoreUnavailableError, match="disk full"):
        copy_in_pieces(slave, data[5000:], 5000, list(range(0, len(data), 500)))
    with pytest.raises(StoreUnavailableError, match="disk full"):
        slave.replica.begin()
    files.room_bytes = None
    start = slave.replica.begin()
    copy_in_pieces(slave, data[start:], start, [])
    assert all_messages(slave) == all_messages(master)
