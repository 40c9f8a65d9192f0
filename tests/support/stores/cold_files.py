"""A disk whose files are in memory only where they were read."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any, NamedTuple

from cometmq.system.files import Files, MappedFile


class ColdRead(NamedTuple):
    """A part of a file that was read from the disk, and the thread that read it."""

    path: Path
    start: int
    stop: int
    thread: str


class ColdDisk(Files):
    """A disk of which nothing is in memory before it was read."""

    def __init__(self) -> None:
        self.reads: list[ColdRead] = []
        """The parts that are in memory."""
        self.is_broken = False

    def open_mapped(self, path: Path, size_bytes: int, **options: Any) -> MappedFile:
        """Map a file whose reads this disk notes."""
        options = {"create": False, "read_only": False, "keep_open": True} | options
        return ColdFile(self, path, size_bytes, **options)

    def begin_read(self, path: Path, start: int, stop: int) -> None:
        """Raise the error of this read, if it has one."""
        if self.is_broken:
            raise OSError(errno.EIO, "the disk is gone")

    def end_read(self, read: ColdRead) -> None:
        """Note that this part is in memory."""
        self.reads.append(read)


class ColdFile(MappedFile):
    """A file of a disk of which nothing is in memory before it was read."""

    def __init__(self, disk: ColdDisk, path: Path, size_bytes: int, **options: Any) -> None:
        super().__init__(path, size_bytes, **options)
        self._disk = disk

    def is_resident(self, start: int, stop: int) -> bool:
        """Say whether one read brought in this part."""
        return any(
            read.path == self.path and read.start <= start and stop <= read.stop
            for read in self._disk.reads
        )

    def bring_in(self, start: int, stop: int) -> None:
        """Read a part."""
        self._disk.begin_read(self.path, start, stop)
        super().bring_in(start, stop)
        self._disk.end_read(ColdRead(self.path, start, stop, threading.current_thread().name))
