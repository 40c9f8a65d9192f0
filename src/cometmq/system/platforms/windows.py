"""Windows, for the client.

    signals     event loops handle none; handlers of the process call into the loop
    renames     fail while another program, such as a virus scanner, has one of the files open
    waits       of a thread without a limit do not end on Ctrl-C

Source: the documentation of signal, asyncio's platform support and msvcrt in Python's library;
MoveFileExW and LockFileEx of Windows.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

NAME = "Windows"
TCP_UNSENT_MAX: int | None = None
STOP_SIGNALS: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGBREAK")
    if hasattr(signal, name)  # only Windows has SIGBREAK
)
_REPLACE_S = 1.0
"""How long a rename is tried while another program has the file open."""
_PAUSE_S = 0.01
_WAIT_S = 0.2

sync_file = os.fsync


def readable_sockets() -> None:
    """Return None: event loops watch each socket by itself."""


def on_signals(
    loop: Any, callback: Callable[[], object], signals: Sequence[signal.Signals] | None = None
) -> Callable[[], None]:
    """Call ``callback`` in an event loop on each of these signals."""

    def handle(*_: object) -> None:
        loop.call_soon_threadsafe(callback)

    before = {number: signal.signal(number, handle) for number in signals or STOP_SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    return restore


def after_fork(callback: Callable[[], None]) -> None:
    """Do nothing: there are no forks."""


def wait_max_s() -> float | None:
    """Return how long a thread may wait at a time without missing Ctrl-C."""
    return _WAIT_S


def processors() -> int:
    """Return how many processors there are."""
    return os.cpu_count() or 1


def replace(path: Path, target: Path) -> None:
    """Rename a file, replacing ``target``; wait a second for a program that has one of them open.

    Raises:
        PermissionError: after that second it is still open, or the rename is not allowed.
    """
    end_s = time.monotonic() + _REPLACE_S
    while True:
        try:
            path.replace(target)
            return
        except PermissionError:
            if time.monotonic() >= end_s:
                raise
            time.sleep(_PAUSE_S)


def open_private(path: Path) -> int:
    """Open an empty file for writing bytes; it has the access rights of its folder."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    return os.open(path, flags | os.O_BINARY, 0o600)  # type: ignore[attr-defined]


def only_user_can_write(path: Path) -> bool:
    """Return whether the file exists: other users cannot write below a user's profile."""
    return path.exists()


def open_to_read(path: str) -> int:
    """Open a file to read its bytes."""
    return os.open(path, os.O_RDONLY | os.O_BINARY)  # type: ignore[attr-defined]


def read_into(descriptor: int, buffer: memoryview, start: int) -> int:
    """Read from a position of a file until a buffer is full; by one thread at a time."""
    os.lseek(descriptor, start, os.SEEK_SET)
    done = 0
    while done < len(buffer):
        part = os.read(descriptor, len(buffer) - done)
        if not part:
            break
        buffer[done : done + len(part)] = part
        done += len(part)
    return done


def lock(descriptor: int, *, wait: bool = False) -> None:
    """Lock the first byte of an open file against other processes."""
    import msvcrt

    while True:
        os.lseek(descriptor, 0, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
            return
        except OSError as problem:
            if not wait:
                raise BlockingIOError(problem.errno, problem.strerror) from problem
            time.sleep(_PAUSE_S)


def sync_directory(path: Path) -> None:
    """Do nothing: names are written with the metadata of the file system, which has a journal."""
