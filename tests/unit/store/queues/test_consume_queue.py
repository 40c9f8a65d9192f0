"""The units of a queue: their bytes, their files, and what happens to numbers that do not fit."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.store.log.segments import Segments
from cometmq.store.queues.consume_queue import FILLER_SIZE, ConsumeQueue
from cometmq.system.files import Files

FILE_BYTES = 20 * 10


def queue_in(folder: Path) -> ConsumeQueue:
    queue = ConsumeQueue("t", 0, Segments(Files(), folder / "q", FILE_BYTES))
    queue.load()
    return queue


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[ConsumeQueue]:
    queue = queue_in(tmp_path)
    yield queue
    queue.close()


def fill(queue: ConsumeQueue, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        queue.put(number, number * 100, 100, number + 7, 0)


def raw_units(folder: Path) -> list[tuple[int, int, int]]:
    data = b"".join(path.read_bytes() for path in sorted((folder / "q").iterdir()))
    return list(struct.iter_unpack(">qiq", data))


def test_a_unit_is_place_size_and_code(queue: ConsumeQueue, tmp_path: Path) -> None:
    queue.put(0, 2**40, 345, -5, 0)
    assert raw_units(tmp_path)[0] == (2**40, 345, -5)
    assert queue.unit(0) == (2**40, 345, -5)
    assert raw_units(tmp_path)[1:] == [(0, 0, 0)] * 9


def test_files_follow_each_other_and_are_named_by_their_first_byte(
    queue: ConsumeQueue, tmp_path: Path
) -> None:
    fill(queue, 25)
    names = sorted(path.name for path in (tmp_path / "q").iterdir())
    assert names == [f"{at:020d}" for at in (0, 200, 400)]
    assert [queue.unit(at) for at in range(25)] == [(at * 100, 100, at + 7) for at in range(25)]


@pytest.mark.parametrize("count", [0, 1, 203, 204, 205, 816, 817, 3263, 3264, 4000])
def test_the_end_of_a_long_file_is_found(tmp_path: Path, count: int) -> None:
    queue = ConsumeQueue("t", 0, Segments(Files(), tmp_path / "q", 20 * 4000))
    queue.load()
    fill(queue, count)
    queue.close()

    again = ConsumeQueue("t", 0, Segments(Files(), tmp_path / "q", 20 * 4000))
    again.load(is_zero_behind=True)

    assert again.max_offset == count
    again.close()


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 35])
def test_a_queue_goes_on_where_its_files_end(tmp_path: Path, count: int) -> None:
    queue = queue_in(tmp_path)
    fill(queue, count)
    queue.close()
    for is_zero_behind in (False, True):
        again = ConsumeQueue("t", 0, Segments(Files(), tmp_path / "q", FILE_BYTES))
        again.load(is_zero_behind=is_zero_behind)
        assert (again.min_offset, again.max_offset) == (0, count)
    assert again.max_physical == count * 100
    fill(again, 3, start=count)
    assert again.unit(count + 2) == ((count + 2) * 100, 100, count + 9)


def test_a_unit_that_is_there_is_not_written_again(queue: ConsumeQueue) -> None:
    fill(queue, 5)
    fill(queue, 7)
    assert queue.max_offset == 7
    assert queue.unit(6) == (600, 100, 13)


def test_a_queue_that_begins_late_is_filled_up_to_its_first_unit(
    queue: ConsumeQueue, tmp_path: Path
) -> None:
    queue.put(23, 5000, 100, 1, 0)
    assert (queue.min_offset, queue.max_offset) == (23, 24)
    assert raw_units(tmp_path)[:4] == [(0, FILLER_SIZE, 0)] * 3 + [(5000, 100, 1)]
    assert [path.name for path in (tmp_path / "q").iterdir()] == [f"{400:020d}"]
    queue.close()
    again = queue_in(tmp_path)
    again.correct_min(0)
    assert (again.min_offset, again.max_offset, again.max_physical) == (23, 24, 5100)


def test_units_that_were_lost_leave_a_gap_and_later_ones_keep_their_numbers(
    queue: ConsumeQueue,
) -> None:
    fill(queue, 3)
    queue.put(6, 600, 100, 1, 0)
    assert queue.max_offset == 7
    assert queue.unit(6) == (600, 100, 1)
    assert queue.unit(4) == (0, FILLER_SIZE, 0)


def test_a_number_given_twice_keeps_the_first_message(queue: ConsumeQueue) -> None:
    """As RocketMQ; a unit elsewhere would contradict the offset that its record names."""
    fill(queue, 3)
    queue.put(1, 5000, 100, 1, 0)
    assert queue.max_offset == 3
    assert queue.unit(1) == (100, 100, 8)


def test_a_queue_that_was_deleted_and_made_again_begins_anew(
    queue: ConsumeQueue, tmp_path: Path
) -> None:
    fill(queue, 13)
    queue.put(0, 5000, 100, 1, 0)
    assert (queue.min_offset, queue.max_offset, queue.max_physical) == (0, 1, 5100)
    assert raw_units(tmp_path) == [(5000, 100, 1)] + [(0, 0, 0)] * 9


@pytest.mark.parametrize(
    ("log_end", "left"), [(2500, 25), (2499, 24), (2400, 24), (1000, 10), (1, 0), (0, 0)]
)
def test_units_of_records_that_are_gone_are_cut_and_zeroed(
    queue: ConsumeQueue, tmp_path: Path, log_end: int, left: int
) -> None:
    fill(queue, 25)
    queue.truncate(log_end)
    assert (queue.max_offset, queue.max_physical) == (left, left * 100)
    if left:
        assert raw_units(tmp_path)[left:] == [(0, 0, 0)] * (len(raw_units(tmp_path)) - left)
    fill(queue, 1, start=left)
    assert queue.unit(left) == (left * 100, 100, left + 7)


def test_a_queue_whose_older_files_are_gone_keeps_counting_when_cut_empty(
    queue: ConsumeQueue,
) -> None:
    fill(queue, 25)
    assert queue.drop_before(1500) == 1
    assert queue.segments.items[0].base_offset == 200
    queue.truncate(500)
    assert (queue.max_offset, queue.max_physical) == (10, 0)


@pytest.mark.parametrize(
    ("log_min", "least"), [(0, 0), (1, 1), (100, 1), (101, 2), (1800, 18), (2400, 24), (9999, 25)]
)
def test_the_least_offset_is_that_of_the_first_record_kept(
    queue: ConsumeQueue, log_min: int, least: int
) -> None:
    fill(queue, 25)
    queue.correct_min(log_min)
    assert queue.min_offset == least


@pytest.mark.parametrize(
    ("log_min", "files"), [(0, 3), (900, 3), (901, 2), (1900, 2), (1901, 1), (99999, 1)]
)
def test_files_go_when_their_last_record_is_gone_but_the_newest_stays(
    queue: ConsumeQueue, log_min: int, files: int
) -> None:
    fill(queue, 25)
    assert queue.drop_before(log_min) == 3 - files
    assert len(queue.segments.items) == files


def test_a_hole_ends_the_queue_at_load(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    fill(queue, 10)
    queue.close()
    path = tmp_path / "q" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[4 * 20 : 6 * 20] = bytes(40)
    path.write_bytes(data)
    assert queue_in(tmp_path).max_offset == 4


def test_a_flush_waits_for_enough_pages(tmp_path: Path) -> None:
    queue = ConsumeQueue("t", 0, Segments(Files(), tmp_path / "q", 20 * 1000))
    queue.load()
    fill(queue, 205)
    assert queue.due_pages() == 1
    queue.flush()
    assert queue.due_pages() == 0
    assert queue.flushed_unit == 205
    fill(queue, 1, start=205)
    assert queue.due_pages() == 0
    queue.flush()
    assert queue.flushed_unit == 206


def test_a_unit_outside_the_files_cannot_be_asked_for(queue: ConsumeQueue) -> None:
    fill(queue, 1)
    for offset in (-1, 10, 10**9):
        with pytest.raises(IndexError, match="no unit"):
            queue.unit(offset)


def test_loading_a_queue_reads_the_pages_of_its_units_only(tmp_path: Path) -> None:
    """Not the megabytes that a kernel reads ahead into a mapping, for each of many queues."""
    file_bytes = 20 * 300_000
    queue = ConsumeQueue("t", 0, Segments(Files(), tmp_path / "q", file_bytes))
    queue.load()
    fill(queue, 3)
    queue.close()

    again = ConsumeQueue("t", 0, Segments(Files(), tmp_path / "q", file_bytes))
    again.load(is_zero_behind=True)

    (segment,) = again.segments.items
    pages = range(4096, file_bytes - 4096, 4096)
    read = sum(segment.file.is_resident(at, at + 1) for at in pages)
    again.close()
    assert read == 0
