"""The file system: the servers do every file operation through `Files`.

Tests replace `Files` to fail a sync, fill the disk or lose data that was not synced.

    entry of a directory := name, size, whether it is a directory
    mapped file          := a file of fixed size, written through its mapping, synced by descriptor

Space is reserved before it is written, so that a full disk is an ``OSError`` here and never a
signal in the middle of a store.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import logging
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from cometmq.system.platforms import SERVERS, SYSTEM

if TYPE_CHECKING:
    from cometmq.system.platforms.interface import FileSystem

log = logging.getLogger(__name__)

_CREATE = os.O_CREAT | os.O_TRUNC

FRESH_END, BACKUP_END = ".tmp", ".bak"
"""The ends of the names of a file's new and old content while it is saved."""
_ZEROS = bytes(64 * 1024)
_LARGE_BYTES = 64 * 1024 * 1024
"""Deleting a file of this size takes a while: 250 ms for a GiB in memory."""
_DESCRIPTORS_DEFAULT = 131_060
"""The limit that is assumed if the system has no limit of open files."""
_RESERVED_LEAST, _RESERVED_MOST = 16, 256
"""Descriptors that sockets leave to files, which are open for a moment: tables and directories."""
_NO_DESCRIPTOR = -1
_MAPPED_FILES_LEAST = 64
_MAPPED_FILES_MOST = 4096
"""More of them cost memory and save no time."""
T = TypeVar("T")


def is_disk_full(problem: OSError) -> bool:
    """Return whether an operation failed for lack of space, on the disk or in a quota."""
    return problem.errno in (errno.ENOSPC, errno.EDQUOT)


def is_out_of_descriptors(problem: OSError) -> bool:
    """Return whether a file could not be opened because too many are open; nothing was done."""
    return problem.errno in (errno.EMFILE, errno.ENFILE)


def reserve_ahead(reserve: Callable[[int, int], object], start: int, stop: int, ahead: int) -> int:
    """Reserve space from ``start`` to ``ahead``; only to ``stop`` if the disk has no more.

    Args:
        reserve: reserves space from one byte up to another, as `MappedFile.reserve`.
        start: where the space begins.
        stop: where the space ends that is needed now.
        ahead: where the space ends that is needed soon.

    Returns:
        Where the reserved space ends.

    Raises:
        OSError: the disk is full or broken.
    """
    try:
        reserve(start, ahead)
    except OSError:  # a nearly full disk may still have what is needed now, or has reserved it
        reserve(start, stop)
        return stop
    return ahead


class Entry(msgspec.Struct, frozen=True):
    """One entry of a directory."""

    name: str
    size_bytes: int
    is_dir: bool


class DiskUsage(msgspec.Struct, frozen=True):
    """How full the partition of a path is."""

    used_bytes: int
    available_bytes: int

    @property
    def ratio(self) -> float:
        """The used share, rounded up to whole percents; 0 to 1."""
        whole = self.used_bytes + self.available_bytes
        return -(-self.used_bytes * 100 // whole) / 100 if whole else 0.0


class Files:
    """All file operations of the servers."""

    def make_dirs(self, path: Path) -> None:
        """Make a directory and those above it, where they are missing."""
        path.mkdir(parents=True, exist_ok=True)

    def entries(self, path: Path) -> list[Entry]:
        """Return the entries of a directory, by name; none if it is missing."""
        try:
            with os.scandir(path) as found:
                entries = [Entry(e.name, e.stat().st_size, e.is_dir()) for e in found]
        except FileNotFoundError:
            return []
        return sorted(entries, key=lambda entry: entry.name)

    def exists(self, path: Path) -> bool:
        """Return whether there is a file or directory."""
        return path.exists()

    def read(self, path: Path) -> bytes | None:
        """Return the whole of a file, or None if it is missing."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: Path, data: bytes) -> None:
        """Write a whole file and sync it."""
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            SYSTEM.sync_file(file.fileno())

    def overwrite(self, path: Path, data: bytes) -> None:
        """Write and sync bytes at the start of a file that keeps its size; make it if missing.

        An existing file needs no space on the disk for this. A power cut may leave any of its
        sectors old and any new.
        """
        is_new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            SERVERS.write_at(descriptor, data, 0)
            SYSTEM.sync_file(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            self.sync_dir(path.parent)

    def rename(self, path: Path, target: Path) -> None:
        """Rename a file, replacing ``target``."""
        SYSTEM.replace(path, target)

    def link(self, path: Path, target: Path) -> None:
        """Give a file a second name.

        Raises:
            OSError: the file system has no such names, or the disk refused.
        """
        os.link(path, target)

    def remove(self, path: Path) -> None:
        """Remove a file; does nothing if it is missing."""
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and its content; does nothing if it is missing."""
        import shutil  # loads three compression libraries

        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def sync_dir(self, path: Path) -> None:
        """Return when the names in a directory are on the disk."""
        SYSTEM.sync_directory(path)

    def file_system(self, path: Path) -> FileSystem | None:
        """Return the file system of a directory, if it can sync all its files at once."""
        return SERVERS.file_system(path)

    def modified_ms(self, path: Path) -> int:
        """Return when a file was last written, in ms since 1970."""
        return path.stat().st_mtime_ns // 1_000_000

    def usage(self, path: Path) -> DiskUsage:
        """Return how full the partition of ``path`` is; the path may not exist yet."""
        while not path.exists() and path != path.parent:
            path = path.parent
        found = SERVERS.statvfs(path)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        return DiskUsage(used, found.f_bavail * found.f_frsize)

    def boot_id(self) -> str:
        """Return a text that differs after each start of the machine; empty if unknown."""
        return SERVERS.boot_id()

    def lock(self, path: Path, content: bytes) -> FileLock:
        """Lock byte 0 of a file and write ``content`` into it.

        Raises:
            BlockingIOError: another process holds the lock, or this one does.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            SYSTEM.lock(descriptor)
            SERVERS.write_at(descriptor, content, 0)
        except OSError:
            os.close(descriptor)
            raise
        return FileLock(descriptor)

    def write_part(
        self,
        path: str,
        start: int,
        data: bytes,
        *,
        new_size_bytes: int | None = None,
        reserve_bytes: int = 0,
    ) -> None:
        """Write bytes into a file without mapping it; they are not synced.

        Args:
            path: where it is.
            start: where the bytes go.
            data: the bytes.
            new_size_bytes: make the file with this size, sparse and all zero; None if it exists.
            reserve_bytes: take space on the disk for this number of bytes from ``start`` on.

        Raises:
            OSError: the disk is full or broken, or there is no such file.
        """
        flags = os.O_WRONLY if new_size_bytes is None else os.O_WRONLY | _CREATE
        descriptor = os.open(path, flags, 0o644)
        try:
            if new_size_bytes is not None:
                os.ftruncate(descriptor, new_size_bytes)
            if reserve_bytes > 0:
                SERVERS.reserve(descriptor, start, reserve_bytes)
            SERVERS.write_at(descriptor, data, start)
        finally:
            os.close(descriptor)

    def open_mapped(
        self,
        path: Path,
        size_bytes: int,
        *,
        create: bool = False,
        read_only: bool = False,
        keep_open: bool = True,
    ) -> MappedFile:
        """Map a whole file of ``size_bytes``.

        Args:
            path: where it is.
            size_bytes: its fixed size.
            create: make it new, sparse and all zero.
            read_only: refuse to write it.
            keep_open: keep a descriptor, for files that are synced often.

        Raises:
            OSError: it is missing, cannot be made, or is shorter.
        """
        return MappedFile(path, size_bytes, create=create, read_only=read_only, keep_open=keep_open)


class FileLock:
    """A lock on a file, held against other processes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class MappedFile:
    """A file of fixed size that is read and written through its mapping."""

    def __init__(
        self, path: Path, size_bytes: int, *, create: bool, read_only: bool, keep_open: bool
    ) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.was_brought_in = False
        """Whether `bring_in` has read any part of it from the disk."""
        self._closing = threading.Lock()
        self._closed = False
        self._address = 0
        self._flags = os.O_RDONLY if read_only else os.O_RDWR
        flags = self._flags | _CREATE if create else self._flags
        self._descriptor = os.open(path, flags, 0o644)
        try:
            if create:
                os.ftruncate(self._descriptor, size_bytes)
            access = mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE
            self.map = mmap.mmap(self._descriptor, size_bytes, access=access)
        except ValueError as problem:
            os.close(self._descriptor)
            raise OSError(errno.EINVAL, f"cannot map {size_bytes} bytes: {problem}", path) from None
        except OSError:
            os.close(self._descriptor)
            raise
        if not keep_open:
            self._drop_descriptor()

    def reserve(self, start: int, stop: int) -> None:
        """Reserve space on the disk for bytes ``start`` to ``stop``.

        Whole pages are reserved: a write to a mapping needs all blocks of its page, which are
        smaller on some file systems, and is a signal if one cannot be had.

        Raises:
            OSError: the disk is full (ENOSPC) or broken.
        """
        start -= start % mmap.PAGESIZE
        stop += -stop % mmap.PAGESIZE
        length = min(stop, self.size_bytes) - start
        if length > 0:
            with self._opened() as descriptor:
                SERVERS.reserve(descriptor, start, length)

    def sync(self) -> None:
        """Return when all bytes written so far are on the disk; from any thread.

        Raises:
            OSError: they may not be; the kernel may have dropped them.
        """
        with self._closing:
            if self._descriptor >= 0:
                SERVERS.sync_mapping(self.map, self.path, self._descriptor)
            elif not self._closed:
                SERVERS.sync_mapping(self.map, self.path, None)

    def zero(self, start: int, stop: int) -> int:
        """Make bytes ``start`` to ``stop`` zero; return how many were not."""
        erased = 0
        for first, last in self.data_ranges(start, stop):
            for position in range(first, last, len(_ZEROS)):
                end = min(position + len(_ZEROS), last)
                met = self.map[position:end]
                if (filled := len(met) - met.count(0)) > 0:
                    self.map[position:end] = _ZEROS[: end - position]
                    erased += filled
        return erased

    def advise_random(self) -> None:
        """Advise the kernel to read single pages."""
        SERVERS.advise_random(self.map)

    def is_resident(self, start: int, stop: int) -> bool:
        """Return whether bytes ``start`` to ``stop`` can be read without waiting for the disk."""
        first = start - start % mmap.PAGESIZE
        if self._address == 0:
            self._address = _address(self.map)
        return SERVERS.is_resident(self._address + first, stop - first)

    def bring_in(self, start: int, stop: int) -> None:
        """Read bytes ``start`` to ``stop`` into memory; from any thread, without the GIL.

        The kernel reads nothing ahead: it would only fetch pages, and the first one to touch such
        a page pays for it, on a virtual machine up to ten times what copying it takes. It would
        also read more than flow control has admitted, by as much as the disk's read_ahead_kb.

        The descriptor is one of its own: another thread may close the kept one at any moment, and
        the advice is not for those who map the file.

        Raises:
            OSError: the disk is broken.
        """
        self.was_brought_in = True
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:  # deleted meanwhile: nobody needs it
            return
        try:
            SERVERS.read_through(descriptor, start, stop)
        except OSError as problem:
            raise OSError(problem.errno, problem.strerror, str(self.path)) from problem
        finally:
            os.close(descriptor)

    def write(self, start: int, data: bytes | memoryview) -> None:
        """Write bytes from ``start`` on, for which there is space; readers of ``map`` see them.

        Raises:
            OSError: the disk is full or broken; any part may have been written.
        """
        SERVERS.write_at(self._descriptor, data, start)

    def close(self) -> None:
        """Close the file; holders of ``map`` or of a slice of it can still read.

        The last close frees the pages of a deleted file: for a large file, in a thread,
        as soon as the mapping is gone.
        """
        with self._closing:
            if self.size_bytes >= _LARGE_BYTES and not self._closed:
                # Without a further thread or descriptor, closing takes longer, and that is all.
                with contextlib.suppress(OSError, RuntimeError), self._opened() as descriptor:
                    _closer.start()
                    last = weakref.finalize(self.map, _closer.close, os.dup(descriptor))
                    last.atexit = False
            self._closed = True
            self._drop_descriptor()

    def data_ranges(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the parts of ``start`` to ``stop`` that are not known to be holes of zeros."""
        with self._opened() as descriptor:
            return SERVERS.data_ranges(descriptor, start, stop)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """The kept descriptor, or one for this use."""
        if self._descriptor >= 0:
            yield self._descriptor
            return
        descriptor = os.open(self.path, self._flags)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _drop_descriptor(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _Closer:
    """Closes descriptors in a thread, one after another.

    The thread has begun before a descriptor comes, and ends before the interpreter does: CPython
    before 3.11.6 crashes if a thread begins while it ends.
    Source: https://github.com/python/cpython/issues/108987
    """

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Begin without a thread, as a fork does."""
        self._descriptors: SimpleQueue[int] = SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread if it does not run.

        Raises:
            RuntimeError: the system grants no further thread, or the interpreter ends.
        """
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="close-files", daemon=True)
                thread.start()
                atexit.register(self._stop)
                self._thread = thread

    def close(self, descriptor: int) -> None:
        """Close a descriptor in the thread; also a garbage collection may call this."""
        self._descriptors.put(descriptor)

    def _run(self) -> None:
        while (descriptor := self._descriptors.get()) != _NO_DESCRIPTOR:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _stop(self) -> None:
        self._descriptors.put(_NO_DESCRIPTOR)
        if self._thread is not None:
            self._thread.join()


_closer: Final = _Closer()
SYSTEM.after_fork(_closer.begin_anew)


def find_in_mapping(mapping: mmap.mmap, wanted: bytes, start: int, stop: int) -> int:
    """Return where ``wanted`` begins in bytes ``start`` to ``stop`` of a mapping, or -1.

    `mmap.find` of CPython before 3.11.5 also reads the byte behind its range. Behind a mapping that
    byte may not exist, so a search ends before the mapping's last byte.
    Source: https://github.com/python/cpython/issues/105235
    """
    at = mapping.find(wanted, start, min(stop, len(mapping) - 1))
    last = len(mapping) - len(wanted)
    if at < 0 and start <= last and stop >= len(mapping) and mapping[last:] == wanted:
        return last
    return at


def mapped_files_max() -> int:
    """Return how many files this process may keep mapped, with room for everything else it opens.

    Python keeps a descriptor of each mapped file.
    """
    descriptors, _ = SERVERS.open_files_limits()
    allowed = (_DESCRIPTORS_DEFAULT if descriptors is None else descriptors) * 45 // 100
    mappings = SERVERS.mappings_max()
    if mappings is not None:
        allowed = min(allowed, mappings * 75 // 100)
    return max(_MAPPED_FILES_LEAST, min(_MAPPED_FILES_MOST, allowed))


def end_of_socket_descriptors() -> int | None:
    """Return the descriptor from which on a new socket is closed, so that files can be opened.

    A new descriptor is the lowest free one, so it shows how many are in use. None: no limit.
    """
    limit, _ = SERVERS.open_files_limits()
    if limit is None:
        return None
    return limit - max(_RESERVED_LEAST, min(_RESERVED_MOST, limit // 16))


def save_with_backup(files: Files, path: Path, data: bytes) -> None:
    """Replace a small file as `save` does; its old content goes to ``X.bak``.

    Source: MixAll.string2File, RocketMQ 4.9, which does not sync.

    Raises:
        OSError: the disk refused; ``X`` is as it was.
    """
    save(files, path, data, backup=path.with_name(path.name + BACKUP_END))


def save(files: Files, path: Path, data: bytes, *, backup: Path | None = None) -> None:
    """Replace a small file; a crash at any point leaves the old or the new content.

    The new content goes to ``X.tmp``, which then becomes ``X``.

    Args:
        files: where it is.
        path: of the file.
        data: its new content.
        backup: gets the old content.

    Raises:
        OSError: the disk refused; ``X`` is as it was.
    """
    files.make_dirs(path.parent)
    fresh = path.with_name(path.name + FRESH_END)
    files.write(fresh, data)
    old = files.read(path) if backup is not None else None
    if backup is not None and old:
        files.write(backup, old)
    files.rename(fresh, path)
    files.sync_dir(path.parent)


def load_with_backup(files: Files, path: Path, parse: Callable[[bytes], T]) -> T | None:
    """Return the parsed content of a small file, or of ``X.bak`` where ``X`` is gone or broken.

    Args:
        files: where they are.
        path: of the file itself.
        parse: returns the value of its bytes; raises ``ValueError`` if they are damaged.

    Returns:
        The value, or None where neither file has any content.

    Raises:
        ValueError: there is content and none of it can be parsed; names the file.
    """
    broken: ValueError | None = None
    for candidate in (path, path.with_name(path.name + BACKUP_END)):
        data = files.read(candidate)
        if not data:
            continue
        try:
            content = parse(data)
        except ValueError as problem:
            broken = broken or ValueError(f"{candidate}: {problem}")
            continue
        if candidate != path:
            why = broken or f"{path} is missing or empty"
            log.warning("using the previous version of a file path=%s reason=%s", candidate, why)
        return content
    if broken is not None:
        raise broken
    return None


def _address(mapping: mmap.mmap) -> int:
    """Address of a writable mapping in memory; only valid while the mapping is held."""
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))
