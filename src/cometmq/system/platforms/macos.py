"""macOS, for development: the same files, synced to the disk itself.

    fsync       leaves data in the cache of the disk; F_FULLFSYNC does not
    locks       flock, as there are no locks of open files; locks of processes conflict with it
    holes       not used: APFS has reported data that was written just now as a hole
    reserving   F_PREALLOCATE appends blocks to those that a file has

Source: fsync(2), fcntl(2), flock(2), msync(2), mincore(2), sysctl(3) of macOS.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import struct
import time
from pathlib import Path

from cometmq.system.platforms import posix
from cometmq.system.platforms.interface import FileSystem

# One statement for all names.
# isort: off
from cometmq.system.platforms.posix import (
    STOP_SIGNALS as STOP_SIGNALS,
    advise_random as advise_random,
    after_fork as after_fork,
    lock as lock,
    on_signals as on_signals,
    only_user_can_write as only_user_can_write,
    open_private as open_private,
    open_to_read as open_to_read,
    processors as processors,
    read_into as read_into,
    readable_sockets as readable_sockets,
    replace as replace,
    statvfs as statvfs,
    wait_max_s as wait_max_s,
    write_at as write_at,
)
# isort: on

NAME = "macOS"
TCP_UNSENT_MAX: int | None = None
_F_FULLFSYNC, _F_PREALLOCATE, _F_RDAHEAD = 51, 42, 45
_F_ALLOCATEALL, _F_PEOFPOSMODE = 4, 3
_STORE = struct.Struct("Iiqqq")
"""``fstore_t``: flags, mode, offset, length, and how many bytes were allocated."""
_CANNOT_RESERVE = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY)
_MS_SYNC = 0x10
_IN_CORE = 1
_READ_BYTES = 64 * 1024
_BLOCK_BYTES = 512
"""The unit of ``st_blocks``."""
_OPEN_FILES_DEFAULT = 10_240

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.sysctlbyname.argtypes = [
    ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
]  # fmt: skip


def sync_file(descriptor: int) -> None:
    """Return when a file is on the disk, and not only in the cache of the disk."""
    try:
        fcntl.fcntl(descriptor, _F_FULLFSYNC)
    except OSError as problem:
        if problem.errno not in _CANNOT_RESERVE:
            raise
        os.fsync(descriptor)  # a network file system, which has no such cache


sync_data = sync_file


def sync_directory(path: Path) -> None:
    """Return when the names in a directory are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)


def sync_mapping(mapping: mmap.mmap, path: Path, descriptor: int | None) -> None:
    """Return when what was written through a mapping, and to its file, is on the disk."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    while _libc.msync(address, len(mapping), _MS_SYNC) != 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), path)
    if descriptor is not None:
        sync_file(descriptor)
        return
    try:
        opened = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # deleted meanwhile: no start reads it
        return
    try:
        sync_file(opened)
    finally:
        os.close(opened)


def sync_tree(path: Path) -> None:
    """Return when all files and directories below a directory are on the disk."""
    for folder, _, names in os.walk(path):
        for name in names:
            descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)  # noqa: PTH118
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(Path(folder))


def file_system(path: Path) -> FileSystem | None:
    """Return None: no call syncs a whole file system and reports failures."""
    return None


def reserve(descriptor: int, start: int, length: int) -> None:
    """Reserve blocks up to the end of a part; a file system that cannot leaves the file sparse."""
    missing = start + length - os.fstat(descriptor).st_blocks * _BLOCK_BYTES
    if missing <= 0:
        return
    request = _STORE.pack(_F_ALLOCATEALL, _F_PEOFPOSMODE, 0, missing, 0)
    try:
        fcntl.fcntl(descriptor, _F_PREALLOCATE, request)
    except OSError as problem:
        if problem.errno not in _CANNOT_RESERVE:
            raise


def next_data(descriptor: int, start: int) -> tuple[int, int] | None:
    """Return the rest of the file: no hole is known."""
    size = os.fstat(descriptor).st_size
    return (start, size) if start < size else None


def data_ranges(descriptor: int, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the whole part: no hole is known."""
    return [(start, stop)] if start < stop else []


def read_through(descriptor: int, start: int, stop: int) -> None:
    """Read a part of a file into the page cache, without the GIL and without reading ahead."""
    fcntl.fcntl(descriptor, _F_RDAHEAD, 0)
    while start < stop:
        count = len(os.pread(descriptor, min(stop - start, _READ_BYTES), start))
        if count == 0:
            return
        start += count


def is_resident(address: int, length: int) -> bool:
    """Return whether a part of a mapping can be read without waiting for the disk."""
    # Not an array of ctypes: it has a type of its own, which only a garbage collection frees.
    pages = bytearray(b"\1" * max(1, -(-length // mmap.PAGESIZE)))
    if _libc.mincore(address, length, ctypes.byref(ctypes.c_char.from_buffer(pages))) != 0:
        return True
    return all(page & _IN_CORE for page in pages)


def boot_id() -> str:
    """Return a text that differs after each start of the machine; empty if unknown."""
    found = _sysctl("kern.bootsessionuuid", 64)
    return found.rstrip(b"\0").decode(errors="replace")


def since_boot() -> float:
    """Return seconds since the boot, also seconds in which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def memory_bytes() -> int:
    """Return the physical memory of the machine."""
    return _number("hw.memsize") or 0


def open_files_limits() -> tuple[int | None, int | None]:
    """Return how many files this process may open now, and at most.

    The kernel grants no process more than its own limit, whatever the hard limit says.
    """
    soft, hard = posix.open_files_limits()
    most = _number("kern.maxfilesperproc") or _OPEN_FILES_DEFAULT
    return soft, most if hard is None else min(hard, most)


def allow_many_files() -> None:
    """Raise this process's limit of open files to what the system grants."""
    soft, most = open_files_limits()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most is not None and soft is not None and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def mappings_max() -> int | None:
    """Return None: there is no limit of mappings."""
    return None


def _number(name: str) -> int | None:
    found = _sysctl(name, 8)
    return int.from_bytes(found, "little") if found else None


def _sysctl(name: str, size_max: int) -> bytes:
    """Return a value of the kernel; empty if it has no such value."""
    value, size = ctypes.create_string_buffer(size_max), ctypes.c_size_t(size_max)
    if _libc.sysctlbyname(name.encode(), value, ctypes.byref(size), None, 0) != 0:
        return b""
    return value.raw[: size.value]
