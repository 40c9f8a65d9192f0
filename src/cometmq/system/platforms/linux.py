"""Linux.

Source: fallocate(2), syncfs(2), mincore(2), lseek(2), fcntl_locking(2), posix_fadvise(2), proc(5),
epoll(7), tcp(7), socket(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import re
import select
import struct
import sys
import termios
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

# One statement for all names.
# isort: off
from cometmq.system.platforms.posix import (
    STOP_SIGNALS as STOP_SIGNALS,
    advise_random as advise_random,
    after_fork as after_fork,
    allow_many_files as allow_many_files,
    on_signals as on_signals,
    only_user_can_write as only_user_can_write,
    open_files_limits as open_files_limits,
    open_private as open_private,
    open_to_read as open_to_read,
    read_into as read_into,
    replace as replace,
    statvfs as statvfs,
    sync_directory as sync_directory,
    sync_file as sync_file,
    wait_max_s as wait_max_s,
    write_at as write_at,
)
# isort: on

if TYPE_CHECKING:
    from cometmq.system.platforms.interface import FileSystem, ReadableSockets

NAME = "Linux"
TCP_UNSENT_MAX: int | None = 25  # TCP_NOTSENT_LOWAT of linux/tcp.h
_FIRST_BYTE = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
_MS_SYNC = 4
_READ_BYTES = 1024 * 1024
_SCRATCH_BYTES = 64 * 1024
"""Each read overwrites the same few pages: only its effect on the page cache matters."""
_MAPPINGS_DEFAULT = 65_530

sync_data = os.fdatasync


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))


class _Epoll:
    """Sockets that the kernel reports through one descriptor: an event loop may watch an epoll."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._count = bytearray(4)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def add(self, descriptor: int) -> None:
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLRDHUP)

    def discard(self, descriptor: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._epoll.unregister(descriptor)

    def ready(self, count_max: int) -> list[tuple[int, bool]]:
        ended = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
        found = self._epoll.poll(0, count_max)
        return [(descriptor, events & ended != 0) for descriptor, events in found]

    def unread_bytes(self, descriptor: int) -> int:
        try:
            fcntl.ioctl(descriptor, termios.FIONREAD, self._count)
        except OSError:
            return 0
        return int.from_bytes(self._count, sys.byteorder)

    def close(self) -> None:
        self._epoll.close()


def readable_sockets() -> ReadableSockets | None:
    """Return an empty set of sockets; None if the kernel would leave some of them out.

    Before Linux 5.10 a socket is not reported when its receive window is full before as many bytes
    have arrived as its option SO_RCVLOWAT says. Then its peer cannot send the rest.
    """
    return _Epoll() if _release() >= (5, 10) else None


def lock(descriptor: int, *, wait: bool = False) -> None:
    """Lock byte 0 of an open file.

    The lock is of the open file, not of the process, so that no other close() in this process ends
    it; locks of processes, such as a Java broker's, collide with it all the same.
    """
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, _FIRST_BYTE)


def sync_mapping(mapping: mmap.mmap, path: Path, descriptor: int | None) -> None:
    """Return when what was written through a mapping is on the disk; other threads run meanwhile.

    A page that is written out while it is mapped interrupts every core that might write to it, once
    for each page. So without a descriptor the pages are unmapped first, all at once; a later access
    maps them again.
    """
    if descriptor is not None:
        os.fdatasync(descriptor)
        return
    if _libc is None:
        mapping.flush()
        return
    address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(mapping)))
    length = ctypes.c_size_t(len(mapping))
    _libc.madvise(address, length, mmap.MADV_DONTNEED)
    while _libc.msync(address, length, _MS_SYNC) != 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), path)


def sync_tree(path: Path) -> None:
    """Return when all files below a directory are on the disk, and others of its file system."""
    found = file_system(path)
    if found is None:
        os.sync()
    else:
        found.sync()


class _SyncedFileSystem:
    """See `FileSystem`.

    The descriptor is kept, because the kernel reports to each of them the failures since it was
    opened.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def sync(self) -> None:
        assert _syncfs is not None
        if _syncfs(self._descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def file_system(path: Path) -> FileSystem | None:
    """Return the file system of a directory, if it can sync all its files at once."""
    if _syncfs is None:
        return None
    return _SyncedFileSystem(os.open(path, os.O_RDONLY | os.O_DIRECTORY))


def reserve(descriptor: int, start: int, length: int) -> None:
    """Reserve blocks; a file system that cannot leaves the file sparse."""
    if _libc is None or not hasattr(_libc, "fallocate"):
        return
    arguments = ctypes.c_long(start), ctypes.c_long(length)
    while _libc.fallocate(ctypes.c_int(descriptor), ctypes.c_int(0), *arguments) != 0:
        number = ctypes.get_errno()
        if number == errno.EINTR:
            continue
        if number in (errno.EOPNOTSUPP, errno.ENOSYS):
            return
        raise OSError(number, os.strerror(number))


def next_data(descriptor: int, start: int) -> tuple[int, int] | None:
    """Return where the next data from ``start`` on begin and end; None if only a hole follows."""
    try:
        first = os.lseek(descriptor, start, os.SEEK_DATA)
        return first, os.lseek(descriptor, first, os.SEEK_HOLE)
    except OSError as problem:
        if problem.errno == errno.ENXIO:
            return None
        if problem.errno in (errno.EINVAL, errno.EOPNOTSUPP):  # the file system knows no holes
            return start, os.fstat(descriptor).st_size
        raise


def data_ranges(descriptor: int, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the parts of ``start`` to ``stop`` that are not known to be holes of zeros."""
    ranges = []
    # ext4 and XFS take reserved space for data while its pages are in memory, even if they were
    # only read. Each start would read ahead of the one before: 16 MiB more.
    os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_DONTNEED)
    while start < stop:
        try:
            found = next_data(descriptor, start)
        except OSError:
            found = start, stop
        if found is None or found[0] >= stop:
            break
        ranges.append((found[0], min(found[1], stop)))
        start = found[1]
    return ranges


def read_through(descriptor: int, start: int, stop: int) -> None:
    """Read a part of a file into the page cache, without the GIL and without reading ahead."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    scratch = memoryview(bytearray(min(stop - start, _SCRATCH_BYTES)))
    while start < stop:
        size = min(stop - start, _READ_BYTES)
        whole, rest = divmod(size, len(scratch))
        count = os.preadv(descriptor, [scratch] * whole + [scratch[:rest]], start)
        if count == 0:
            return
        start += count


def is_resident(address: int, length: int) -> bool:
    """Return whether a part of a mapping can be read without waiting for the disk."""
    if _mincore is None:
        return True
    # Not an array of ctypes: it has a type of its own, which only a garbage collection frees.
    pages = bytearray(b"\1" * max(1, -(-length // mmap.PAGESIZE)))
    if _mincore(address, length, ctypes.byref(ctypes.c_char.from_buffer(pages))) != 0:
        return True
    return 0 not in pages


def boot_id() -> str:
    """Return a text that differs after each start of the machine; empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def since_boot() -> float:
    """Return seconds since the boot, also seconds in which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def memory_bytes() -> int:
    """Return the physical memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def mappings_max() -> int | None:
    """Return how many mappings a process may have."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return _MAPPINGS_DEFAULT


def _release() -> tuple[int, ...]:
    """Return the first two numbers of the release of the kernel."""
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])


def _load_libc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None, use_errno=True)
    except OSError:
        return None


def _load_syncfs() -> Callable[[int], int] | None:
    """The call that syncs a file system; before Linux 5.8 it reports no failure."""
    if _libc is None or not hasattr(_libc, "syncfs"):
        return None
    call: Callable[[int], int] = _libc.syncfs
    return call if _release() >= (5, 8) else None


def _load_mincore() -> Callable[..., int] | None:
    """The call that says which pages of a mapping are in memory; it does not wait."""
    try:
        mincore = ctypes.PyDLL(None).mincore
    except (OSError, AttributeError):
        return None
    mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return mincore


_libc = _load_libc()
_syncfs = _load_syncfs()
_mincore = _load_mincore()
