"""A real disk that can refuse, fill up, and lose what was not synced.

Faults it knows, and nothing else:

    fail_write      nothing can be written to mapped files but through their mappings
    fail_sync       every sync fails, and what it was for may be lost: of the log, which is written
                    with `write`, a later sync leaves out what was not written again
    room_bytes      so many bytes can still be reserved; then the disk is full, and a file that is
                    written anew is empty
    usage           what the disk says of itself
    crash           each page that was never synced is kept or lost, as a seed has it
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cometmq.system.files import DiskUsage, Files, MappedFile
from support.checks.randomness import SeededRandomness

PAGE_BYTES = 4096


class Content:
    """The content that the disk has of a file that is or was mapped."""

    def __init__(self, path: Path, durable: bytes | None = None) -> None:
        self.path = path
        self.durable = self.written() if durable is None else durable
        self.reserved_to = 0
        self.dropped: dict[int, bytes] = {}
        """The pages that a failed sync was for, by their numbers; the kernel takes them for
        clean."""

    def written(self) -> bytes:
        """The content that the kernel has of the file."""
        return self.path.read_bytes()


class FaultyFileSystem:
    """All files of the disk, synced at once."""

    def __init__(self, disk: FaultyFiles) -> None:
        self._disk = disk

    def sync(self) -> None:
        self._disk.refuse_sync()
        for content in self._disk.contents.values():
            if not content.dropped:
                content.durable = content.written()


class FaultyFiles(Files):
    """Files whose faults a test sets."""

    def __init__(self) -> None:
        self.fail_write = False
        self.writes = 0
        self.fail_sync = False
        self.room_bytes: int | None = None
        self.disk: DiskUsage | None = None
        self.syncs = 0
        self.boots = 1
        self.contents: dict[Path, Content] = {}
        """By path; a file keeps no mapping open."""

    def open_mapped(
        self,
        path: Path,
        size_bytes: int,
        *,
        create: bool = False,
        read_only: bool = False,
        keep_open: bool = True,
    ) -> MappedFile:
        file = FaultyMappedFile(
            path, size_bytes, create=create, read_only=read_only, keep_open=keep_open
        )
        file.disk = self
        known = None if create else self.contents.get(path)  # another process had it open
        new = bytes(size_bytes) if create else None  # not read: a new file is zero
        file.content = self.contents[path] = known or Content(path, new)
        return file

    def write_part(
        self,
        path: str,
        start: int,
        data: bytes,
        *,
        new_size_bytes: int | None = None,
        reserve_bytes: int = 0,
    ) -> None:
        if data and self.fail_write:
            raise OSError(errno.EIO, "the disk is gone")
        if new_size_bytes is not None:
            super().write_part(path, 0, b"", new_size_bytes=new_size_bytes)
        if new_size_bytes is not None or Path(path) not in self.contents:
            self.contents[Path(path)] = Content(Path(path))
        self.reserve(self.contents[Path(path)], start, start + reserve_bytes)
        super().write_part(path, start, data, reserve_bytes=reserve_bytes)

    def take_space(self, size_bytes: int) -> None:
        if self.room_bytes is not None:
            if size_bytes > self.room_bytes:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.room_bytes -= size_bytes

    def reserve(self, content: Content, start: int, stop: int) -> None:
        """Reserve a part of a file; files are reserved from their start on."""
        needed = stop - max(start, content.reserved_to)
        if needed > 0:
            self.take_space(needed)
            content.reserved_to = stop

    def write(self, path: Path, data: bytes) -> None:
        if self.room_bytes is not None and self.room_bytes < len(data):
            super().write(path, b"")
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(path, data)  # to the page cache
        self.refuse_sync()

    def overwrite(self, path: Path, data: bytes) -> None:
        self.refuse_sync()
        super().overwrite(path, data)

    def remove(self, path: Path) -> None:
        self.contents.pop(path, None)
        super().remove(path)

    def remove_tree(self, path: Path) -> None:
        super().remove_tree(path)
        gone = [each for each in self.contents if each.is_relative_to(path)]
        for each in gone:
            del self.contents[each]

    def usage(self, path: Path) -> DiskUsage:
        return self.disk if self.disk is not None else super().usage(path)

    def file_system(self, path: Path) -> FaultyFileSystem:
        return FaultyFileSystem(self)

    def refuse_sync(self) -> None:
        self.syncs += 1
        if self.fail_sync:
            raise OSError(errno.EIO, "the disk is gone")

    def boot_id(self) -> str:
        return f"boot-{self.boots}"

    def crash(self, keeps: Callable[[Path, int], bool]) -> None:
        """Stop the machine.

        Args:
            keeps: whether the page of that number of a file reached the disk without a sync.
        """
        for path, content in self.contents.items():
            written, data = content.written(), bytearray(content.durable)
            for number, start in enumerate(range(0, len(data), PAGE_BYTES)):
                if keeps(path, number):
                    data[start : start + PAGE_BYTES] = written[start : start + PAGE_BYTES]
            path.unlink()  # the old mapping goes on in its own file
            path.write_bytes(data)
        self.contents.clear()
        self.boots += 1

    def crash_by_chance(self, seed: int) -> None:
        """Stop the machine with about half of the unsynced pages on the disk."""
        chance = SeededRandomness(seed)
        self.crash(lambda path, number: chance.below(2) == 1)


class FaultyMappedFile(MappedFile):
    """A mapped file of that disk."""

    disk: FaultyFiles
    content: Content

    def reserve(self, start: int, stop: int) -> None:
        self.disk.reserve(self.content, start, min(stop, self.size_bytes))
        super().reserve(start, stop)

    def write(self, start: int, data: bytes | memoryview) -> None:
        self.disk.writes += 1
        if self.disk.fail_write:
            raise OSError(errno.EIO, "the disk is gone")
        super().write(start, data)
        for number in range(start // PAGE_BYTES, (start + len(data) - 1) // PAGE_BYTES + 1):
            self.content.dropped.pop(number, None)

    def sync(self) -> None:
        written = bytes(self.map)
        try:
            self.disk.refuse_sync()
        except OSError:
            if "commitlog" in self.path.parts:
                self._drop_pages(written)
            raise
        super().sync()
        durable = self.content.durable
        if self.content.dropped:
            synced = bytearray(written)
            for number, page in self.content.dropped.items():
                at = number * PAGE_BYTES
                if written[at : at + PAGE_BYTES] == page:
                    synced[at : at + PAGE_BYTES] = durable[at : at + PAGE_BYTES]
            written = bytes(synced)
        self.content.durable = written

    def _drop_pages(self, written: bytes) -> None:
        for at in range(0, len(written), PAGE_BYTES):
            page = written[at : at + PAGE_BYTES]
            if page != self.content.durable[at : at + PAGE_BYTES]:
                self.content.dropped[at // PAGE_BYTES] = page


class NoNewFiles(FaultyFiles):
    """A disk that has no room for another file of one kind, as often as it is told."""

    kind = ""
    refusals = 0

    def open_mapped(self, path: Path, size_bytes: int, **more: Any) -> Any:
        if self.refusals and more.get("create") and self.kind in path.parts:
            self.refusals -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().open_mapped(path, size_bytes, **more)


def nearly_full_disk(percent: int = 80) -> FaultyFiles:
    """A disk so full that expired files go at any hour."""
    files = FaultyFiles()
    files.disk = DiskUsage(used_bytes=percent, available_bytes=100 - percent)
    return files
