"""Streams of segments: appending, cutting, the allocator, and the limit on mappings."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from cometmq.model.errors import InvalidNameError
from cometmq.store import SegmentCreateError, SegmentNotReadyError, StoreUnavailableError
from cometmq.store.config import StoreSettings
from cometmq.store.log import segments as segments_module
from cometmq.store.log.segment_allocator import SegmentAllocator
from cometmq.store.log.segments import RESIDENT_S, MappingLimit, Segment, Segments
from cometmq.store.paths import StorePaths, directory_name, index_name, segment_name
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.system.files import Files, MappedFile
from support.stores.faulty_files import FaultyFiles
from support.stores.small_stores import LOG_FILE_BYTES, opened, put

SIZE = 100


def stream(folder: Path) -> Segments:
    segments = Segments(Files(), folder / "s", SIZE)
    segments.load()
    return segments


class AskedFile(MappedFile):
    """Says as it is told what is in memory, and how often it was asked."""

    resident: range = range(0)
    asked = 0

    def is_resident(self, start: int, stop: int) -> bool:
        self.asked += 1
        return start in self.resident and stop - 1 in self.resident


def test_the_kernel_is_asked_once_a_moment_whether_a_block_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(segments_module, "monotonic", lambda: now_s)
    file = AskedFile(tmp_path / "f", 3 << 20, create=True, read_only=False, keep_open=True)
    segment = Segment(file, 0)
    file.resident = range(1 << 20, 3 << 20)
    assert not segment.is_resident(0, 10)
    assert not segment.is_resident((1 << 20) - 1, (1 << 20) + 1)
    asked = file.asked
    for start in (1 << 20, (2 << 20) - 5, (3 << 20) - 10):
        assert segment.is_resident(start, start + 10)
    assert file.asked == asked + 2

    file.resident = range((2 << 20) + 5000, 3 << 20)
    assert segment.is_resident(2 << 20, (2 << 20) + 10)
    now_s += RESIDENT_S + 0.01
    assert not segment.is_resident(2 << 20, (2 << 20) + 10)
    assert segment.is_resident((2 << 20) + 5000, (2 << 20) + 6000)
    segment.close()


@pytest.mark.parametrize(
    ("offset", "base"), [(299, None), (300, 300), (399, 300), (400, 400), (499, 400), (500, None)]
)
def test_the_segment_of_an_offset_is_found(tmp_path: Path, offset: int, base: int | None) -> None:
    segments = stream(tmp_path)
    segments.add(300)
    segments.add(400)
    found = segments.find(offset)
    assert (None if found is None else found.base_offset) == base


def test_a_cut_deletes_what_begins_later_and_zeroes_the_rest(tmp_path: Path) -> None:
    segments = stream(tmp_path)
    for base in (0, 100, 200):
        segments.add(base).file.map[:] = b"x" * SIZE
    assert segments.truncate(130) == 70
    assert [path.name for path in sorted((tmp_path / "s").iterdir())] == [
        segment_name(0),
        segment_name(100),
    ]
    assert segments.items[1].view[:] == b"x" * 30 + bytes(70)


def test_a_view_outlives_its_file(tmp_path: Path) -> None:
    segments = stream(tmp_path)
    segments.add(0).file.map[:] = b"x" * SIZE
    view = segments.items[0].view[10:20]
    segments.add(100)
    segments.drop_first()
    segments.close()
    assert bytes(view) == b"x" * 10


def test_nobody_writes_through_a_view(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        stream(tmp_path).add(0).view[0] = 1


def test_a_file_without_room_on_the_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.room_bytes = SIZE - 1
    segments = Segments(files, tmp_path / "s", SIZE)
    with pytest.raises(OSError, match="No space"):
        segments.add(0, reserve_bytes=SIZE)
    assert list((tmp_path / "s").iterdir()) == []
    assert segments.items == []


class Gate(Segments):
    """A stream whose files are made when a test says so."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Files(), folder / "s", SIZE)
        self.begun = threading.Event()
        self.allowed = threading.Event()
        self.made_by: list[str] = []

    def make(self, base_offset: int, *, reserve: bool) -> Segment:
        self.made_by.append(threading.current_thread().name)
        self.begun.set()
        assert self.allowed.wait(60)
        return super().make(base_offset, reserve=reserve)


def allocator_of(gate: Gate, *, wait_ms: int = 60_000) -> SegmentAllocator:
    return SegmentAllocator(gate, ahead=True, wait_ms=wait_ms)


def test_the_next_segment_is_made_by_another_thread_before_it_is_needed(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    allocator = allocator_of(gate)
    allocator.request(100)
    assert gate.begun.wait(60)
    gate.allowed.set()
    allocator.wait()
    assert allocator.take(100).base_offset == 100
    assert gate.made_by == ["segment-allocator"]
    allocator.stop()


def test_no_append_waits_for_a_segment(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    allocator = allocator_of(gate)
    for _ in range(2):
        with pytest.raises(SegmentNotReadyError, match="commit-log file 100 is being allocated"):
            allocator.take(100)
    gate.allowed.set()
    allocator.wait()
    assert allocator.take(100).base_offset == 100
    assert len(gate.made_by) == 1
    allocator.stop()


def test_waiting_for_a_segment_has_a_limit(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    allocator = allocator_of(gate, wait_ms=10)
    allocator.request(100)
    assert gate.begun.wait(60)
    with pytest.raises(SegmentNotReadyError, match=r"not allocated after 0\.01 s"):
        allocator.wait()
    gate.allowed.set()
    allocator.stop()


def test_a_segment_that_was_never_used_is_deleted_at_the_end(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    allocator = allocator_of(gate)
    allocator.request(100)
    assert gate.begun.wait(60)
    gate.allowed.set()
    allocator.stop()
    assert list((tmp_path / "s").iterdir()) == []


def test_a_segment_at_another_offset_is_thrown_away(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    gate.allowed.set()
    allocator = allocator_of(gate)
    allocator.request(100)
    allocator.wait()
    with pytest.raises(SegmentNotReadyError):
        allocator.take(300)
    allocator.wait()
    assert allocator.take(300).base_offset == 300
    allocator.stop()
    assert [path.name for path in (tmp_path / "s").iterdir()] == [segment_name(300)]


def test_a_full_disk_is_told_to_the_append_that_needs_the_segment(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.room_bytes = 0
    segments = Segments(files, tmp_path / "s", SIZE)
    allocator = SegmentAllocator(segments, ahead=True, wait_ms=60_000)
    allocator.request(0)
    with pytest.raises(OSError, match="No space"):
        allocator.wait()
    files.room_bytes = None
    with pytest.raises(SegmentNotReadyError):
        allocator.take(0)
    allocator.wait()
    assert allocator.take(0).base_offset == 0
    allocator.stop()


def test_a_log_file_that_cannot_be_made_refuses_the_message_only(tmp_path: Path) -> None:
    class NoFiles(FaultyFiles):
        broken = False

        def open_mapped(self, path: Path, size_bytes: int, **more: bool):  # type: ignore[override]
            if self.broken and path.parent.name == "commitlog":
                raise OSError(errno.EMFILE, "too many open files")
            return super().open_mapped(path, size_bytes, **more)

    files = NoFiles()
    store = opened(tmp_path, files=files)
    files.broken = True
    with pytest.raises(SegmentCreateError, match="too many open files"):
        put(store)
    files.broken = False
    assert put(store).log_offset == 0
    store.close()


def test_the_next_log_file_is_there_before_it_is_needed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, b"x" * (LOG_FILE_BYTES * 3 // 4))
    put(store)
    store.abandon()
    names = sorted(path.name for path in (tmp_path / "commitlog").iterdir())
    assert names[0] == segment_name(0)
    assert set(names[1:]) <= {segment_name(LOG_FILE_BYTES)}


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "x\0y", "x" * 256, "é" * 128])
def test_a_name_that_is_no_directory_of_its_own_is_refused(name: str) -> None:
    with pytest.raises(InvalidNameError):
        directory_name(name)


@pytest.mark.parametrize("name", ["TopicA", "%RETRY%g", "...", "a b", "x" * 255])
def test_a_topic_is_its_own_directory(name: str, tmp_path: Path) -> None:
    paths = StorePaths(StoreSettings(root=tmp_path))
    assert paths.queue(name, 3) == tmp_path / "consumequeue" / name / "3"
    assert paths.queue_ext(name, 3) == tmp_path / "consumequeue_ext" / name / "3"


def test_files_have_rocketmqs_names(tmp_path: Path) -> None:
    assert segment_name(1073741824) == "00000000001073741824"
    assert index_name(1_700_000_000_007)[-3:] == "007"
    assert len(index_name(0)) == 17
    paths = StorePaths(StoreSettings(root=tmp_path, commit_log_dir=tmp_path / "elsewhere"))
    assert paths.commit_log == tmp_path / "elsewhere"


def test_a_full_disk_at_the_end_of_a_file_refuses_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    files = FaultyFiles()
    store = opened(tmp_path, files=files)
    first = put(store, b"x" * 7000)
    files.room_bytes = 0
    put(store, b"x" * 7000)
    with pytest.raises(StoreUnavailableError, match=r"No space left|disk full"):
        put(store, b"x" * 7000)
    end = store.written_to
    files.room_bytes = None
    third = put(store, b"x" * 7000)
    assert third.queue_offset == first.queue_offset + 2
    assert third.log_offset == LOG_FILE_BYTES > end
    store.close()


def test_a_cut_at_the_beginning_of_the_oldest_file_keeps_it(tmp_path: Path) -> None:
    """Its name says where the stream goes on."""
    segments = Segments(Files(), tmp_path / "s", SIZE)
    for base in (2 * SIZE, 3 * SIZE):
        segments.add(base).file.map[:3] = b"old"
    assert segments.truncate(2 * SIZE) == 3
    assert [segment.base_offset for segment in segments.items] == [2 * SIZE]
    assert segments.truncate(0) == 0
    assert segments.items == []


UNITS = 10
QUEUES = 20


class RecordingFiles(Files):
    """The machine's files; it notes which are opened only to be synced."""

    def __init__(self) -> None:
        self.synced: list[Path] = []

    def open_mapped(self, path: Path, size_bytes: int, **options: Any) -> MappedFile:
        if options.get("keep_open"):
            self.synced.append(path)
        return super().open_mapped(path, size_bytes, **options)


class Queues:
    """Queues that share a limit."""

    def __init__(self, folder: Path, files_max: int, count: int = QUEUES) -> None:
        self.limit = MappingLimit(files_max)
        self.files = RecordingFiles()
        self.folder = folder
        self.items = [self.make(number) for number in range(count)]

    def make(self, number: int) -> ConsumeQueue:
        folder = self.folder / str(number)
        segments = Segments(self.files, folder, 20 * UNITS, limit=self.limit)
        queue = ConsumeQueue("t", number, segments)
        queue.load()
        return queue

    def put(self, queue: ConsumeQueue) -> None:
        number = queue.max_offset
        queue.put(number, number * 100, 100, queue.queue_id * 1000 + number, 0)


def mapped_files(folder: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(folder))


@pytest.mark.parametrize("files_max", [1, 3, QUEUES, 1000])
def test_units_of_more_queues_than_may_be_mapped_are_all_there(
    tmp_path: Path, files_max: int
) -> None:
    queues = Queues(tmp_path, files_max)
    for _ in range(25):
        for queue in queues.items:
            queues.put(queue)
            # A queue counts with all its files, and the one in use stays.
            assert queues.limit.mapped <= max(files_max, len(queue.segments.items)) + 2
    for queue in queues.items:
        units = [queue.unit(at) for at in range(25)]
        assert units == [(at * 100, 100, queue.queue_id * 1000 + at) for at in range(25)]
    assert mapped_files(tmp_path) == queues.limit.mapped

    for queue in queues.items:
        queue.close()
    assert queues.limit.mapped == 0


def test_queues_within_the_limit_are_never_mapped_again(tmp_path: Path) -> None:
    queues = Queues(tmp_path, 3 * QUEUES)
    for _ in range(25):
        for queue in queues.items:
            queues.put(queue)

    assert (queues.limit.restored, queues.limit.mapped) == (0, 3 * QUEUES)


def test_a_loaded_store_has_no_more_files_mapped_than_the_limit(tmp_path: Path) -> None:
    before = Queues(tmp_path, 1000)
    for queue in before.items:
        before.put(queue)
        queue.close()

    after = Queues(tmp_path, 5)

    assert mapped_files(tmp_path) == after.limit.mapped == 5
    assert [queue.max_offset for queue in after.items] == [1] * QUEUES
    assert after.limit.restored == 0


def test_a_flush_syncs_the_files_of_released_queues(tmp_path: Path) -> None:
    queues = Queues(tmp_path, 1, count=2)
    first, second = queues.items
    for _ in range(UNITS + 1):
        queues.put(first)
    queues.put(second)
    assert queues.limit.mapped == 1

    first.flush()

    names = [tmp_path / "0" / f"{base:020d}" for base in (0, 20 * UNITS)]
    assert queues.files.synced == names
    assert first.flushed_unit == UNITS + 1
    assert queues.limit.mapped == 1  # it is not mapped for that


def test_a_released_queue_that_is_deleted_meanwhile_is_flushed_without_an_error(
    tmp_path: Path,
) -> None:
    queues = Queues(tmp_path, 1, count=2)
    for queue in queues.items:
        queues.put(queue)
    (tmp_path / "0" / f"{0:020d}").unlink()

    queues.items[0].flush()


def test_released_queues_drop_files_and_are_truncated_as_others(tmp_path: Path) -> None:
    queues = Queues(tmp_path, 1, count=2)
    first, second = queues.items
    for _ in range(25):
        queues.put(first)
    queues.put(second)

    assert first.drop_before(1000) == 1
    assert [segment.base_offset for segment in first.segments.items] == [200, 400]
    queues.put(second)
    first.truncate(2000)
    assert (first.min_offset, first.max_offset) == (10, 20)
    queues.put(second)
    queues.put(first)
    assert first.unit(20) == (2000, 100, 20)


def test_looking_for_old_files_does_not_map_released_queues(tmp_path: Path) -> None:
    queues = Queues(tmp_path, 2)
    for queue in queues.items:
        queues.put(queue)

    assert sum(queue.drop_before(10**9) for queue in queues.items) == 0
    assert queues.limit.restored == 0


class Interrupted(MappedFile):
    """A file; during its sync another thread wants its stream released."""

    stream: Segments
    released: bool | None = None

    def sync(self) -> None:
        self.released = self.stream.release()
        super().sync()


class InterruptedFiles(Files):
    """The machine's files, interrupted."""

    def open_mapped(self, path: Path, size_bytes: int, **options: Any) -> Interrupted:
        return Interrupted(path, size_bytes, **{"create": False, "read_only": False} | options)


def test_a_stream_that_is_being_synced_is_not_released(tmp_path: Path) -> None:
    """Its files would be closed, and their sync would do nothing."""
    stream = Segments(InterruptedFiles(), tmp_path, 200, limit=MappingLimit(1))
    file = stream.add(0).file
    file.stream = stream

    stream.sync(0, 200)

    assert file.released is False
    assert [segment.file for segment in stream.items] == [file]
    assert stream.release()
