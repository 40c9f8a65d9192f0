"""Takes the files of a store out of the page cache, though servers have them mapped.

``posix_fadvise`` drops only pages that no process maps. So the pages are first taken out of the
mappings of the servers (``process_madvise`` with ``MADV_PAGEOUT``, which needs Linux 5.10 and the
right to trace them), and then dropped. ``mincore`` says what is left.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

PAGEOUT = 21
PIDFD_OPEN, PROCESS_MADVISE = 434, 440
FILE_MIN = 1 << 20
"""Smaller files are settings, which a server may replace at any moment."""
PASSES_MAX = 6
"""A page that another processor has just touched leaves only in a later pass."""
COLD_ENOUGH = 0.02
CHUNK = 64 << 20
"""A call advises no more than 2 GiB."""
PAGE = mmap.PAGESIZE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]


class ColdError(OSError):
    """The kernel refuses to take pages out of another process's mapping."""


class _Range(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("length", ctypes.c_size_t))


def drop(pids: Sequence[int], folder: Path, enough_mib: float) -> float:
    """Drop all files below a folder until no more than so much is cached; returns what is left."""
    files = [
        path for path in folder.rglob("*") if path.is_file() and path.stat().st_size >= FILE_MIN
    ]
    left_mib = cached_mib(files)
    for _ in range(PASSES_MAX):
        if left_mib <= enough_mib:
            break
        _drop_once(pids, folder, files)
        left_mib = cached_mib(files)
    return left_mib


def read_all(folder: Path) -> None:
    """Read all files below a folder into the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as stream:
                while stream.read(CHUNK):
                    pass


def _drop_once(pids: Sequence[int], folder: Path, files: Sequence[Path]) -> None:
    for path in files:
        descriptor = os.open(path, os.O_RDWR)
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
    for pid in pids:
        _page_out(pid, list(_mappings(pid, folder)))
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def cached_mib(files: Sequence[Path]) -> float:
    """How much of the files is in the page cache."""
    return sum(_cached_pages(path) for path in files) * PAGE / 2**20


def _mappings(pid: int, folder: Path) -> Iterator[tuple[int, int]]:
    """Start and length of each mapping of a file below the folder."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if f" {folder}/" in line:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            yield start, end - start


def _page_out(pid: int, ranges: Sequence[tuple[int, int]]) -> None:
    if not ranges:
        return
    descriptor = _libc.syscall(PIDFD_OPEN, pid, 0)
    if descriptor < 0:
        raise ColdError(ctypes.get_errno(), f"no handle of process {pid}")
    try:
        for start, length in ranges:
            for at in range(0, length, CHUNK):
                part = _Range(start + at, min(CHUNK, length - at))
                done = _libc.syscall(PROCESS_MADVISE, descriptor, ctypes.byref(part), 1, PAGEOUT, 0)
                if done < 0:
                    error = ctypes.get_errno()
                    raise ColdError(
                        error,
                        f"process_madvise of process {pid}: {os.strerror(error)}; dropping mapped "
                        "pages needs the right to trace the server",
                    )
    finally:
        os.close(descriptor)


def _cached_pages(path: Path) -> int:
    size = path.stat().st_size
    descriptor = os.open(path, os.O_RDONLY)
    try:
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address in (None, ctypes.c_void_p(-1).value):
        raise ColdError(ctypes.get_errno(), f"{path} cannot be mapped")
    pages = (ctypes.c_ubyte * ((size + PAGE - 1) // PAGE))()
    try:
        if _libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages):
            raise ColdError(ctypes.get_errno(), f"mincore of {path}")
    finally:
        _libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
    return sum(page & 1 for page in bytes(pages))
