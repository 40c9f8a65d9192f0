"""A file system in memory that can lose its power, or refuse, at any operation.

    bytes of a file    each sector of 512 bytes is as it was at the last sync, as it was written
                       back since, or as it is now
    names and sizes    with a journal, as ext4 has it: a cut keeps the first so many changes, all of
                       them if any file or directory was synced since; without one, as POSIX has it:
                       each directory and each file for itself, and a sync is of this one only

A sync that fails loses what it was for: a later one leaves out pages of the log that were not
written again. Every operation counts; `cut_at` says at which one the power fails, before it is
carried out; `fault` says at which one the disk refuses, and then a write may be short. Only the
thread of the test has the disk: others are refused, so that a case is the same each time.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from cometmq.system.files import DiskUsage, Entry, FileLock, MappedFile
from support.checks.randomness import SeededRandomness

SECTOR_BYTES = 512
PAGE_BYTES = 4096
PREFIXES = 5
"""The shape of a cut that keeps prefixes."""


class PowerCutError(BaseException):
    """The power failed: nothing of the process goes on."""


@dataclass(frozen=True)
class Fault:
    """An error of the disk."""

    at: int
    """The number of the operation; if reserving space is what comes next, that fails."""
    code: int
    """Its errno."""
    lasts: bool
    """Whether all later operations fail too."""


class DiskFaultError(OSError):
    """The disk refused because of a `Fault`."""


class Memory(bytearray):
    """The content of a mapped file; a mapping of its own would cost a fault for each page."""


@dataclass(eq=False)
class Inode:
    """One file: what the page cache has, and what may be on the disk."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    written_back: bytes = b""
    dropped: dict[int, bytes] = field(default_factory=dict)
    """The pages that a failed sync was for, by their numbers: the kernel takes them for clean."""

    def content(self) -> bytes:
        return bytes(self.data)


@dataclass
class Names:
    """Which files there are, and how long they are."""

    paths: dict[Path, Inode] = field(default_factory=dict)
    sizes: dict[Inode, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    """A change of names or sizes, and of which directory or file it is."""

    of: Path | Inode
    apply: Callable[[Names], object]


class PowerFiles:
    """The file system.

    Args:
        chance: what it draws from, for what survives a cut and what is written back early.
        has_journal: whether changes of names survive in their order, and with any sync.
        keeps_prefixes: whether half of all cuts leave of each file what was written up to some
            byte, as a log that is written in its order looks.
    """

    def __init__(
        self, chance: SeededRandomness, *, has_journal: bool = True, keeps_prefixes: bool = False
    ) -> None:
        self.chance = chance
        self.fail_sync = False
        self.on_write: Callable[[bytes], object] | None = None
        """Called with what was written to a mapped file."""
        self._has_journal = has_journal
        self._keeps_prefixes = keeps_prefixes
        self.operations = 0
        self.cut_at: int | None = None
        self.fault: Fault | None = None
        self.faults = 0
        """How many operations failed by a fault."""
        self._boots = 1
        self._now = Names()
        self._synced = Names()
        self._pending: list[Change] = []
        self._locked = False
        self._thread = threading.get_ident()

    # --- power ----------------------------------------------------------------------------------

    @property
    def is_off(self) -> bool:
        """Whether the power has failed: every operation does, until `power_on` or `kill`."""
        return self.cut_at is not None and self.operations >= self.cut_at

    def operate(self) -> None:
        """Count one operation; the power may fail before it."""
        if threading.get_ident() != self._thread:
            raise OSError(errno.EIO, "only the thread of the test has this disk")
        self.operations += 1
        if self.is_off:
            raise PowerCutError
        self.raise_fault()
        if self.chance.below(16) == 0:
            for inode in self._now.paths.values():  # the kernel writes some files on its own
                if self.chance.below(3) == 0:
                    inode.written_back = inode.content()

    def raise_fault(self) -> None:
        """Fail if the disk refuses operations now."""
        fault = self.fault
        if fault is not None and self.operations >= fault.at:
            if not fault.lasts:
                self.fault = None
            self.faults += 1
            raise DiskFaultError(fault.code, os.strerror(fault.code))

    def _change(self, of: Path | Inode, apply: Callable[[Names], object]) -> None:
        self.operate()
        apply(self._now)
        self._pending.append(Change(of, apply))

    def _commit(self, of: Path | Inode) -> None:
        """Bring changes of names and sizes to the disk."""
        left = []
        for change in self._pending:
            if self._has_journal or change.of == of:
                change.apply(self._synced)
            else:
                left.append(change)
        self._pending = left

    def _commit_by_chance(self) -> None:
        whole = self.chance.below(len(self._pending) + 1)
        limits: dict[Path | Inode, int] = {}
        for number, change in enumerate(self._pending):
            limit = whole
            if not self._has_journal:
                limit = limits.setdefault(change.of, self.chance.below(len(self._pending) + 1))
            if number < limit:
                change.apply(self._synced)
        self._pending.clear()

    def sync(self, inode: Inode, *, is_log: bool = False) -> None:
        """Bring a file to the disk."""
        try:
            self.operate()
        except DiskFaultError:
            if is_log:
                self._drop_pages(inode, inode.content())
            raise
        content = inode.content()
        if self.fail_sync:
            if is_log:
                self._drop_pages(inode, content)
            raise OSError(errno.EIO, "the disk is gone")
        synced = bytearray(content)
        for number, page in inode.dropped.items():
            at = number * PAGE_BYTES
            if content[at : at + PAGE_BYTES] == page:
                old = inode.synced[at : at + PAGE_BYTES]
                synced[at : at + len(page)] = old.ljust(len(page), b"\0")
        inode.synced = inode.written_back = bytes(synced)
        self._commit(inode)

    @staticmethod
    def _drop_pages(inode: Inode, content: bytes) -> None:
        for at in range(0, len(content), PAGE_BYTES):
            page = content[at : at + PAGE_BYTES]
            if page != inode.synced[at : at + PAGE_BYTES]:
                inode.dropped[at // PAGE_BYTES] = page

    def power_on(self) -> None:
        """Let the disk be what a cut at this moment leaves, and boot again."""
        self._commit_by_chance()
        shape = self.chance.below(5)
        if self._keeps_prefixes and self.chance.below(2):
            shape = PREFIXES
        survivors = Names()
        for path, inode in self._synced.paths.items():
            survivor = self._survivor(inode, self._synced.sizes.get(inode, 0), shape)
            survivors.paths[path] = survivor
            survivors.sizes[survivor] = len(survivor.synced)
        self._synced = survivors
        self._now = Names(dict(survivors.paths), dict(survivors.sizes))
        self._locked = self.fail_sync = False
        self._boots += 1
        self.cut_at = self.fault = None

    def kill(self) -> None:
        """Let the process be gone, but not what it has written to the page cache."""
        self._locked = self.fail_sync = False
        self.cut_at = self.fault = None

    def _survivor(self, inode: Inode, size: int, shape: int) -> Inode:
        versions = [
            version[:size].ljust(size, b"\0")
            for version in (inode.synced, inode.written_back or inode.synced, inode.content())
        ]
        if shape == PREFIXES:
            data = self._prefix(versions[2], versions[0])
        elif shape < 2:
            data = versions[2 * shape]
        else:
            unit = SECTOR_BYTES if shape == 2 else PAGE_BYTES
            data = b"".join(
                versions[self.chance.below(3)][start : start + unit]
                for start in range(0, size, unit)
            )
        return Inode(bytearray(data), data)

    def _prefix(self, now: bytes, synced: bytes) -> bytes:
        """Keep a part of what was written since the last sync, from its first byte on."""
        differs = [at for at in range(0, len(now), 64) if now[at : at + 64] != synced[at : at + 64]]
        if not differs:
            return synced
        end = differs[0] + self.chance.below(differs[-1] + 65 - differs[0])
        return now[:end] + synced[end:]

    def image(self) -> dict[Path, bytes]:
        """Return the content of all files, as a process sees it."""
        return {path: inode.content() for path, inode in self._now.paths.items()}

    def put_back(self, image: dict[Path, bytes]) -> None:
        """Let the disk have these files and no others, on a machine that has just booted."""
        self._now = Names({path: Inode(bytearray(data), data) for path, data in image.items()})
        self._now.sizes = {inode: len(inode.data) for inode in self._now.paths.values()}
        self._synced = Names(dict(self._now.paths), dict(self._now.sizes))
        self._pending.clear()
        self._locked = self.fail_sync = False
        self._boots += 1
        self.cut_at = self.fault = None

    # --- Files ----------------------------------------------------------------------------------

    def make_dirs(self, path: Path) -> None:
        """Directories come with the files in them."""

    def entries(self, path: Path) -> list[Entry]:
        found: dict[str, Entry] = {}
        for name in _below(path, self._now.paths):
            entry, *below = str(name)[len(str(path)) + 1 :].split("/", 1)
            is_dir = bool(below)
            size = 0 if is_dir else self._now.sizes.get(self._now.paths[name], 0)
            found[entry] = Entry(entry, size, is_dir)
        return [found[name] for name in sorted(found)]

    def exists(self, path: Path) -> bool:
        return path in self._now.paths or bool(_below(path, self._now.paths))

    def read(self, path: Path) -> bytes | None:
        inode = self._now.paths.get(path)
        return None if inode is None else inode.content()

    def _create(self, path: Path) -> Inode:
        inode = Inode()
        self._change(path.parent, lambda names: names.paths.__setitem__(path, inode))
        return inode

    def _resize(self, inode: Inode, size: int) -> None:
        self._change(inode, lambda names: names.sizes.__setitem__(inode, size))

    def write(self, path: Path, data: bytes) -> None:
        inode = self._create(path)
        inode.data = bytearray(data)
        self._resize(inode, len(data))
        self.sync(inode)

    def overwrite(self, path: Path, data: bytes) -> None:
        inode = self._now.paths.get(path)
        is_new = inode is None
        if inode is None:
            inode = self._create(path)
        assert not isinstance(inode.data, Memory) or len(data) <= len(inode.data)
        inode.data[: len(data)] = data
        if self._now.sizes.get(inode, 0) < len(data):
            self._resize(inode, len(data))
        self.sync(inode)
        if is_new:
            self.sync_dir(path.parent)

    def rename(self, path: Path, target: Path) -> None:
        """Rename a file, or a directory with all that is in it."""

        def change(names: Names) -> None:
            if path in names.paths:
                names.paths[target] = names.paths.pop(path)
            for name in _below(path, names.paths):
                names.paths[target / name.relative_to(path)] = names.paths.pop(name)

        is_directory = path not in self._now.paths
        self._change(path.parent, change)
        if is_directory and not self._has_journal:
            # Names are known by their paths here, so a directory cannot be renamed later.
            for pending in self._pending:
                pending.apply(self._synced)
            self._pending.clear()

    def link(self, path: Path, target: Path) -> None:
        def change(names: Names) -> None:
            if path in names.paths:
                names.paths[target] = names.paths[path]

        self._change(target.parent, change)

    def remove(self, path: Path) -> None:
        if path in self._now.paths:
            self._change(path.parent, lambda names: names.paths.pop(path, None))

    def remove_tree(self, path: Path) -> None:
        for name in _below(path, self._now.paths):
            self.remove(name)

    def file_system(self, path: Path) -> None:
        """No sync of all files at once: it would hide which ones a program has synced."""

    def sync_dir(self, path: Path) -> None:
        self.operate()
        if self.fail_sync:
            raise OSError(errno.EIO, "the disk is gone")
        self._commit(path)

    def modified_ms(self, path: Path) -> int:
        return 0

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(used_bytes=1, available_bytes=99)

    def boot_id(self) -> str:
        return f"boot-{self._boots}"

    def lock(self, path: Path, content: bytes) -> FileLock:
        if self._locked:
            raise BlockingIOError(errno.EAGAIN, "locked")
        self._locked = True
        return MemoryLock(self)

    def unlock(self) -> None:
        self._locked = False

    def write_part(
        self,
        path: str,
        start: int,
        data: bytes,
        *,
        new_size_bytes: int | None = None,
        reserve_bytes: int = 0,
    ) -> None:
        self.operate()
        if new_size_bytes is not None:
            self.open_mapped(_path(path), new_size_bytes, create=True)
        size = self._now.sizes.get(self._now.paths.get(_path(path)), 0)
        if data:
            self.open_mapped(_path(path), size).write(start, data)

    def open_mapped(
        self,
        path: Path,
        size_bytes: int,
        *,
        create: bool = False,
        read_only: bool = False,
        keep_open: bool = True,
    ) -> MappedFile:
        inode = self._create(path) if create else self._now.paths.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        if create:
            self._resize(inode, size_bytes)
        if not isinstance(inode.data, Memory):
            inode.data = Memory(inode.data.ljust(size_bytes, b"\0"))
        return MemoryMappedFile(self, path, inode)


_path = lru_cache(1000)(Path)


def _below(directory: Path, paths: Iterable[Path]) -> list[Path]:
    """Return the paths below a directory; `Path.parents` is slow."""
    prefix = f"{directory}/"
    return [path for path in paths if str(path).startswith(prefix)]


class MemoryLock:
    """The lock of the store."""

    def __init__(self, files: PowerFiles) -> None:
        self._files = files

    def release(self) -> None:
        self._files.unlock()


class MemoryMappedFile:
    """A mapped file of this file system."""

    def __init__(self, files: PowerFiles, path: Path, inode: Inode) -> None:
        assert isinstance(inode.data, Memory)
        self._files = files
        self._inode = inode
        self.path = path
        self.map: Any = inode.data
        self.size_bytes = len(inode.data)
        self.was_brought_in = False

    def reserve(self, start: int, stop: int) -> None:
        """There is space, unless the disk refuses."""
        self._files.raise_fault()

    def sync(self) -> None:
        self._files.sync(self._inode, is_log="commitlog" in self.path.parts)

    def zero(self, start: int, stop: int) -> int:
        met = self.map[start:stop]
        self.map[start:stop] = bytes(len(met))
        return len(met) - met.count(0)

    def data_ranges(self, start: int, stop: int) -> list[tuple[int, int]]:
        return [(start, stop)]

    def is_resident(self, start: int, stop: int) -> bool:
        return True

    def bring_in(self, start: int, stop: int) -> None:
        """Everything is in memory."""

    def advise_random(self) -> None:
        """A hint."""

    def write(self, start: int, data: bytes | memoryview) -> None:
        try:
            self._files.operate()
        except DiskFaultError:  # a short write
            done = self._files.chance.below(len(data) + 1)
            self.map[start : start + done] = bytes(data[:done])
            raise
        self.map[start : start + len(data)] = bytes(data)
        for number in range(start // PAGE_BYTES, (start + len(data) - 1) // PAGE_BYTES + 1):
            self._inode.dropped.pop(number, None)
        if self._files.on_write is not None:
            self._files.on_write(bytes(data))

    def close(self) -> None:
        """The memory stays as long as the inode."""
