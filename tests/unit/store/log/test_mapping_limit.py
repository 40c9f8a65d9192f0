"""More streams than a process may map: each is released, and mapped again when it is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.store.log.segments import MappingLimit, Segments
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.system.files import MappedFile, SystemFiles, SystemMappedFile

UNITS = 10
QUEUES = 20


class RecordingFiles(SystemFiles):
    """The machine's files; it notes which are opened only to be synced."""

    def __init__(self) -> None:
        self.synced: list[Path] = []

    def open_mapped(
        self,
        path: Path,
        size_bytes: int,
        *,
        create: bool = False,
        read_only: bool = False,
        keep_open: bool = False,
    ) -> MappedFile:
        if keep_open:
            self.synced.append(path)
        return super().open_mapped(
            path, size_bytes, create=create, read_only=read_only, keep_open=keep_open
        )


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
    assert first.flushed_offset == UNITS + 1
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


class Interrupted(SystemMappedFile):
    """A file; during its sync another thread wants its stream released."""

    stream: Segments
    released: bool | None = None

    def sync(self) -> None:
        self.released = self.stream.release()
        super().sync()


class InterruptedFiles(SystemFiles):
    """The machine's files, interrupted."""

    def open_mapped(
        self,
        path: Path,
        size_bytes: int,
        *,
        create: bool = False,
        read_only: bool = False,
        keep_open: bool = False,
    ) -> Interrupted:
        return Interrupted(
            path, size_bytes, create=create, read_only=read_only, keep_open=keep_open
        )


def test_a_stream_that_is_being_synced_is_not_released(tmp_path: Path) -> None:
    """Its files would be closed, and their sync would do nothing."""
    stream = Segments(InterruptedFiles(), tmp_path, 200, limit=MappingLimit(1))
    file = stream.add(0).file
    file.stream = stream

    stream.sync(0, 200)

    assert file.released is False
    assert [segment.file for segment in stream.items] == [file]
    assert stream.release()
