"""The bytes of index files, and the way from one file to the next."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from cometmq.store import StoreCorruptError
from cometmq.store.index.key_index import Index, IndexFile
from cometmq.system.files import Files
from support.checks.manual_clock import ManualClock
from support.stores.cold_files import ColdDisk
from support.stores.faulty_files import FaultyFiles

SLOTS, ENTRIES = 4, 6
FILE_BYTES = 40 + SLOTS * 4 + ENTRIES * 20
NOW_MS = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


def chain(file: IndexFile, hashed: int) -> list[tuple[int, int]]:
    """All entries of a hash, newest first, found two at a time."""
    found, number = [], file.newest_of(hashed)
    while number:
        matches, number = file.follow(hashed, number, 2)
        assert len(matches) <= 2
        found += matches
    return found


def index_in(folder: Path, clock: ManualClock) -> Index:
    index = Index(Files(), folder / "index", SLOTS, ENTRIES, clock.now_ms)
    index.load()
    return index


def put(index: Index, *entries: tuple[int, int, int]) -> None:
    for hashed, log_offset, store_ms in entries:
        index.note(hashed, log_offset, store_ms)
        index.add_noted()


def parts(folder: Path, number: int = 0) -> tuple[tuple[int, ...], tuple[int, ...], list[object]]:
    data = sorted((folder / "index").iterdir())[number].read_bytes()
    assert len(data) == FILE_BYTES
    entries = list(struct.iter_unpack(">iqii", data[40 + SLOTS * 4 :]))
    return struct.unpack_from(">qqqqii", data), struct.unpack_from(">4i", data, 40), entries


def test_a_file_is_header_slots_and_entries(tmp_path: Path, clock: ManualClock) -> None:
    index = index_in(tmp_path, clock)
    put(index, (9, 100, NOW_MS), (5, 200, NOW_MS + 2500), (2, 300, NOW_MS + 3000))
    header, slots, entries = parts(tmp_path)
    assert header == (NOW_MS, NOW_MS + 3000, 100, 300, 2, 4)
    assert slots == (0, 2, 3, 0)
    assert entries[1:4] == [(9, 100, 0, 0), (5, 200, 2, 1), (2, 300, 3, 0)]


def test_a_full_file_is_followed_by_one_that_begins_where_it_ends(
    tmp_path: Path, clock: ManualClock
) -> None:
    index = index_in(tmp_path, clock)
    put(index, *[(number, number * 10, NOW_MS + number) for number in range(5)])
    assert index.newest.is_full()
    index.make_room(1)
    assert parts(tmp_path, 1)[0] == (NOW_MS + 4, NOW_MS + 4, 40, 40, 0, 1)
    put(index, (7, 50, NOW_MS + 9))
    assert parts(tmp_path, 1)[0] == (NOW_MS + 9, NOW_MS + 9, 50, 50, 1, 2)


def test_files_are_named_by_local_time_and_in_order(tmp_path: Path, clock: ManualClock) -> None:
    index = index_in(tmp_path, clock)
    put(index, *[(1, number, NOW_MS) for number in range(12)])
    names = [item.path.name for item in index.items]
    assert len(names) == 3
    assert names == sorted(names)
    assert all(len(name) == 17 and name.isdigit() for name in names)


def test_names_stay_in_order_when_the_clock_is_set_back(tmp_path: Path, clock: ManualClock) -> None:
    index = index_in(tmp_path, clock)
    put(index, *[(1, number, NOW_MS) for number in range(5)])
    clock.set_wall(NOW_MS - 10**9)
    put(index, (1, 99, NOW_MS))
    names = [item.path.name for item in index.items]
    assert names == sorted(names)


def test_files_that_are_there_are_gone_on_with(tmp_path: Path, clock: ManualClock) -> None:
    first = index_in(tmp_path, clock)
    put(first, *[(3, number, NOW_MS) for number in range(7)])
    first.close()
    again = index_in(tmp_path, clock)
    put(again, (3, 7, NOW_MS))
    assert [place for place, _ in chain(again.newest, 3)] == [7, 6, 5]
    assert [place for place, _ in chain(again.items[0], 3)] == [4, 3, 2, 1, 0]


def test_a_chain_that_leads_in_circles_ends(tmp_path: Path, clock: ManualClock) -> None:
    index = index_in(tmp_path, clock)
    put(index, (1, 10, NOW_MS), (1, 20, NOW_MS))
    path = index.newest.path
    index.close()
    data = bytearray(path.read_bytes())
    struct.pack_into(">i", data, 40 + SLOTS * 4 + 20 + 16, 2)
    path.write_bytes(data)
    assert [place for place, _ in chain(index_in(tmp_path, clock).newest, 1)] == [20, 10]


@pytest.mark.parametrize("slot", [-1, 3, 2**31 - 1])
def test_a_slot_that_leads_nowhere_finds_nothing(
    tmp_path: Path, clock: ManualClock, slot: int
) -> None:
    index = index_in(tmp_path, clock)
    put(index, (1, 10, NOW_MS), (2, 20, NOW_MS))
    path = index.newest.path
    index.close()
    data = bytearray(path.read_bytes())
    struct.pack_into(">i", data, 40 + 4, slot)
    path.write_bytes(data)
    assert chain(index_in(tmp_path, clock).newest, 1) == []


def test_a_file_that_may_have_holes_takes_those_behind_it_along(
    tmp_path: Path, clock: ManualClock
) -> None:
    """If the clock was set back it may be an older one; keys are indexed again from there on."""
    index = index_in(tmp_path, clock)
    put(index, *[(1, number, NOW_MS + 60_000 - number * 1000) for number in range(60)])
    full = [item.path for item in index.items if item.is_full()]
    assert len(full) >= 3
    synced_ms = index.items[1].end_ms
    assert index.items[0].end_ms > synced_ms
    index.drop_unsynced(synced_ms)
    assert index.items == []


def test_old_and_new_files_can_be_dropped_but_the_newest_stays(
    tmp_path: Path, clock: ManualClock
) -> None:
    index = index_in(tmp_path, clock)
    put(index, *[(1, number, NOW_MS + number) for number in range(12)])
    assert index.drop_before(5) == 1
    assert index.drop_before(10**9) == 1
    assert len(list((tmp_path / "index").iterdir())) == 1
    assert index.drop_unsynced(NOW_MS) == 1
    assert index.newest is None
    put(index, (1, 77, NOW_MS))
    assert index.newest.has(1, 77)


def test_full_files_are_synced_and_say_up_to_when(tmp_path: Path, clock: ManualClock) -> None:
    index = index_in(tmp_path, clock)
    put(index, *[(1, number, NOW_MS + number) for number in range(5)])
    assert index.flush() == 0
    put(index, (1, 5, NOW_MS + 5))
    assert index.flush() == NOW_MS + 4
    assert index.flush() == 0


def test_a_file_of_another_size_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / "20260101000000000").write_bytes(b"short")
    (folder / "notes.txt").write_bytes(b"left alone")
    with pytest.raises(StoreCorruptError, match=f"5 bytes, expected {FILE_BYTES}"):
        index_in(tmp_path, clock)


def test_a_file_whose_first_header_was_never_written_is_found_in_by_time(
    tmp_path: Path, clock: ManualClock
) -> None:
    index = index_in(tmp_path, clock)
    put(index, (9, 100, NOW_MS))
    (path,) = (tmp_path / "index").iterdir()
    path.write_bytes(bytes(40) + path.read_bytes()[40:])
    index = index_in(tmp_path, clock)
    index.count_unregistered()
    put(index, (9, 100, NOW_MS), (9, 200, NOW_MS + 3000))
    assert chain(index.newest, 9) == [
        (200, NOW_MS + 3000),
        (100, NOW_MS),
        (100, NOW_MS),
    ]
    assert parts(tmp_path)[0][:4] == (NOW_MS, NOW_MS + 3000, 100, 200)


def test_a_header_that_counts_more_entries_than_there_are_leads_nowhere(
    tmp_path: Path, clock: ManualClock
) -> None:
    put(index_in(tmp_path, clock), (9, 100, NOW_MS))
    (path,) = (tmp_path / "index").iterdir()
    data = bytearray(path.read_bytes())
    struct.pack_into(">i4i", data, 36, 2**31 - 1, *[2**31 - 2] * 4)
    path.write_bytes(data)
    index = index_in(tmp_path, clock)
    assert chain(index.newest, 9) == []
    assert index.newest.is_full()
    put(index, (9, 200, NOW_MS + 1))
    assert chain(index.newest, 9) == [(200, NOW_MS + 1)]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_never_got_its_size_is_none(
    tmp_path: Path, clock: ManualClock, read_only: bool
) -> None:
    put(index_in(tmp_path, clock), (9, 100, NOW_MS))
    empty = tmp_path / "index" / "29991231235959999"
    empty.touch()
    index = Index(Files(), tmp_path / "index", SLOTS, ENTRIES, clock.now_ms, read_only=read_only)
    index.load()
    assert chain(index.newest, 9) == [(100, NOW_MS)]
    assert empty.exists() == read_only


def test_an_index_goes_back_to_what_a_checkpoint_names(tmp_path: Path, clock: ManualClock) -> None:
    """Of what followed, any sector may be on disk: entries, slots and the header are made again."""
    index = index_in(tmp_path, clock)
    put(index, (1, 10, NOW_MS), (5, 20, NOW_MS), (1, 30, NOW_MS + 5000))
    name, entries, offset = int(index.newest.path.name), index.newest.next_entry, 30
    put(index, (1, 40, NOW_MS), (2, 50, NOW_MS))
    put(index, (3, 60, NOW_MS), (3, 70, NOW_MS))  # the second begins a new file
    assert len(index.items) == 2
    assert index.truncate_to(name, entries, offset)
    (file,) = index.items
    assert (file.next_entry, file.end_log, file.slots_used) == (4, 30, 1)
    assert [log_offset for log_offset, _ in chain(file, 1)] == [30, 10]
    assert [log_offset for log_offset, _ in chain(file, 5)] == [20]
    assert chain(file, 2) == chain(file, 3) == []
    put(index, (2, 50, NOW_MS))
    again = index_in(tmp_path, clock)
    assert [log_offset for log_offset, _ in chain(again.newest, 2)] == [50]
    assert [log_offset for log_offset, _ in chain(again.newest, 1)] == [30, 10]


def test_an_index_without_the_named_file_is_left_as_it_is(
    tmp_path: Path, clock: ManualClock
) -> None:
    index = index_in(tmp_path, clock)
    put(index, (1, 10, NOW_MS))
    assert not index.truncate_to(int(index.newest.path.name) + 1, 1, 0)
    assert [log_offset for log_offset, _ in chain(index.newest, 1)] == [10]
    assert index.truncate_to(0, 0, 0), "no file at all was on disk"
    assert index.items == []


def test_more_keys_than_expected_get_their_space_from_the_disk(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Every entry has space before it is written: a full disk is an error, never a signal."""
    files = FaultyFiles()
    index = Index(files, tmp_path / "index", 4, 200_000, clock.now_ms)
    put(index, (1, 10, NOW_MS))
    files.room_bytes = 0
    space = index.newest.ready - index.newest.next_entry
    assert 0 < space < 200_000 - 1
    with pytest.raises(OSError, match="No space left"):
        put(index, *((1, 20, NOW_MS) for _ in range(space + 1)))
    files.room_bytes = None
    put(index, (1, 30, NOW_MS))
    assert chain(index.newest, 1)[0] == (30, NOW_MS)


def test_slots_are_read_into_memory_while_keys_are_added(
    tmp_path: Path, clock: ManualClock
) -> None:
    files = ColdDisk()
    slots = 600_000  # three reads
    index = Index(files, tmp_path / "index", slots, ENTRIES, clock.now_ms)
    index.load()
    index.bring_in_slots()  # there is no file yet
    put(index, (9, 100, NOW_MS))
    index.bring_in_slots()
    end = 40 + slots * 4
    mib = 1 << 20
    expected = [(0, mib), (mib, 2 * mib), (2 * mib, end), (end + 40, end + 60)]
    assert [read[1:3] for read in files.reads] == expected
    slots_read = files.reads[:3]
    files.reads.clear()
    index.bring_in_slots()  # no key was added
    assert files.reads == []
    put(index, (5, 200, NOW_MS))
    files.reads += slots_read
    index.bring_in_slots()
    assert [read[1:3] for read in files.reads] == [*expected[:3], (end + 60, end + 80)]
    files.is_broken = True
    put(index, (6, 300, NOW_MS))
    files.reads.clear()
    with pytest.raises(OSError, match="the disk is gone"):
        index.bring_in_slots()
    index.close()
