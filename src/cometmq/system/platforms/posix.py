"""The calls that Linux and macOS share; on other Unix systems, all calls of the client."""

from __future__ import annotations

import fcntl
import mmap
import os
import resource
import signal
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

NAME = sys.platform
TCP_UNSENT_MAX: int | None = None
STOP_SIGNALS: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)
sync_file = os.fsync
statvfs = os.statvfs


def readable_sockets() -> None:
    """Return None: event loops watch each socket by itself."""


def on_signals(
    loop: Any, callback: Callable[[], object], signals: Sequence[signal.Signals] | None = None
) -> Callable[[], None]:
    """Call ``callback`` in an event loop on each of these signals."""
    before: dict[signal.Signals, Any] = {}
    for number in signals or STOP_SIGNALS:
        handler = signal.getsignal(number)
        try:
            loop.add_signal_handler(number, callback)
        except NotImplementedError:  # a loop without signal support
            break
        before[number] = handler

    def restore() -> None:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            if handler is not None:  # None: it was not set from Python
                signal.signal(number, handler)

    return restore


def after_fork(callback: Callable[[], None]) -> None:
    """Call ``callback`` in each process that is forked from this one."""
    os.register_at_fork(after_in_child=callback)


def wait_max_s() -> float | None:
    """Return None: signals interrupt a wait of any length."""
    return None


def processors() -> int:
    """Return how many processors there are."""
    return os.cpu_count() or 1


def replace(path: Path, target: Path) -> None:
    """Rename a file, replacing ``target``."""
    path.replace(target)


def open_private(path: Path) -> int:
    """Open a file for writing, empty, for this user only; a link is not followed."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)


def only_user_can_write(path: Path) -> bool:
    """Return whether a file or directory is of this user, and no other user can write to it."""
    found = path.stat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def open_to_read(path: str) -> int:
    """Open a file to read its bytes."""
    return os.open(path, os.O_RDONLY)


def read_into(descriptor: int, buffer: memoryview, start: int) -> int:
    """Read from a position of a file until a buffer is full; return how many bytes there were."""
    done = 0
    while done < len(buffer):
        count = os.preadv(descriptor, [buffer[done:]], start + done)
        if count == 0:
            break
        done += count
    return done


def lock(descriptor: int, *, wait: bool = False) -> None:
    """Lock an open file against other processes."""
    fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def sync_directory(path: Path) -> None:
    """Return when the names in a directory are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)


def open_files_limits() -> tuple[int | None, int | None]:
    """Return how many files this process may open now, and at most; None: any number."""
    soft, hard = (
        None if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return soft, hard


def allow_many_files() -> None:
    """Raise this process's limit of open files to what the system grants."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def write_at(descriptor: int, data: bytes | memoryview, start: int) -> None:
    """Write all of ``data`` at a position of a file."""
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, data[written:] if written else data, start + written)


def advise_random(mapping: mmap.mmap) -> None:
    """Advise the kernel to read single pages of a mapping."""
    mapping.madvise(mmap.MADV_RANDOM)
