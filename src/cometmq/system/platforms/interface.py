"""The calls that CometMQ makes to an operating system. Each implementation is a module."""

from __future__ import annotations

import mmap
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol


class FileSystem(Protocol):
    """A file system that can sync all its files at once and reports every failure."""

    def sync(self) -> None:
        """Return when everything written so far is on the disk; from any thread.

        Raises:
            OSError: some of it may not be, be it written by this process or another.
        """


class ReadableSockets(Protocol):
    """Sockets that the kernel reports through one descriptor, some at a time.

    A socket is reported until it is read or discarded.
    """

    def fileno(self) -> int:
        """Return the descriptor, which is readable while there is a socket to report."""

    def add(self, descriptor: int) -> None:
        """Add a socket.

        It is discarded before it is closed: the kernel would go on to report it while a process
        that was forked meanwhile holds it, too.
        """

    def discard(self, descriptor: int) -> None:
        """Remove a socket if it is there."""

    def ready(self, count_max: int) -> list[tuple[int, bool]]:
        """Return the descriptors of readable sockets, and whether each peer sends no more.

        A socket is readable if as many bytes have arrived as its option SO_RCVLOWAT says, if the
        kernel has no room for more, or if the peer sends no more.
        """

    def unread_bytes(self, descriptor: int) -> int:
        """Return how many bytes of a socket have arrived and are not read; 0 if it is broken."""

    def close(self) -> None:
        """Remove all sockets."""


class System(Protocol):
    """The calls that every part uses, including the client."""

    NAME: str
    """The name of the system, for messages."""
    STOP_SIGNALS: tuple[signal.Signals, ...]
    """The signals that ask a program to end."""
    TCP_UNSENT_MAX: int | None
    """The option of TCP sockets that limits what the kernel takes beyond what it can send; None:
    not used there."""

    def readable_sockets(self) -> ReadableSockets | None:
        """Return an empty set of sockets; None: not used there."""

    def on_signals(
        self,
        loop: Any,
        callback: Callable[[], object],
        signals: Sequence[signal.Signals] | None = None,
    ) -> Callable[[], None]:
        """Call ``callback`` in an event loop on each of these signals; from the main thread.

        Args:
            loop: the event loop that runs in this thread.
            callback: the function to call in that loop.
            signals: None for `STOP_SIGNALS`.

        Returns:
            A function that restores the previous handlers.
        """

    def after_fork(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` in each process that is forked from this one, where there are forks."""

    def wait_max_s(self) -> float | None:
        """Return how long a thread may wait at a time without missing Ctrl-C; None: for ever."""

    def processors(self) -> int:
        """Return how many processors this process may use."""

    def replace(self, path: Path, target: Path) -> None:
        """Rename a file, replacing ``target``, also if another program reads it just now.

        Raises:
            OSError: the disk refused, or another program keeps one of them open.
        """

    def open_private(self, path: Path) -> int:
        """Open a file for writing, empty, for this user only; a link is not followed.

        Raises:
            OSError: it cannot be made.
        """

    def only_user_can_write(self, path: Path) -> bool:
        """Return whether a file or directory is of this user, and no other user can write to it."""

    def open_to_read(self, path: str) -> int:
        """Open a file to read its bytes.

        Raises:
            OSError: it cannot be read.
        """

    def read_into(self, descriptor: int, buffer: memoryview, start: int) -> int:
        """Read from a position of a file until a buffer is full; return how many bytes there were.

        Raises:
            OSError: the disk is broken.
        """

    def lock(self, descriptor: int, *, wait: bool = False) -> None:
        """Lock an open file against other processes; closing the descriptor releases the lock.

        Raises:
            BlockingIOError: another process has the lock, and ``wait`` is not set.
        """

    def sync_file(self, descriptor: int) -> None:
        """Return when the content, the size and the times of a file are on the disk.

        Raises:
            OSError: they may not be.
        """

    def sync_directory(self, path: Path) -> None:
        """Return when the names in a directory are on the disk.

        Raises:
            OSError: they may not be.
        """


class ServerSystem(Protocol):
    """The further calls of servers and stores."""

    def sync_data(self, descriptor: int) -> None:
        """Return when the content of a file is on the disk; from any thread.

        Raises:
            OSError: it may not be; the kernel may have dropped it.
        """

    def sync_mapping(self, mapping: mmap.mmap, path: Path, descriptor: int | None) -> None:
        """Return when the content written through a mapping, and to its file, is on the disk.

        Args:
            mapping: of the whole file.
            path: of the file.
            descriptor: of the file, if it is open.

        Raises:
            OSError: it may not be on the disk.
        """

    def write_at(self, descriptor: int, data: bytes | memoryview, start: int) -> None:
        """Write all of ``data`` at a position of a file.

        Raises:
            OSError: the disk is full or broken; any part may have been written.
        """

    def sync_tree(self, path: Path) -> None:
        """Return when all files below a directory are on the disk.

        Raises:
            OSError: some may not be.
        """

    def file_system(self, path: Path) -> FileSystem | None:
        """Return the file system of a directory, if it can sync all its files at once."""

    def reserve(self, descriptor: int, start: int, length: int) -> None:
        """Reserve blocks for a part of a file; a file system that cannot leaves the file sparse.

        Raises:
            OSError: the disk is full (ENOSPC) or broken.
        """

    def next_data(self, descriptor: int, start: int) -> tuple[int, int] | None:
        """Return where the next data from ``start`` on begin and end; None if a hole follows.

        Raises:
            OSError: the disk is broken.
        """

    def data_ranges(self, descriptor: int, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the parts of ``start`` to ``stop`` that are not known to be holes of zeros."""

    def statvfs(self, path: Path) -> Any:
        """Return the facts of a file system, as `os.statvfs` does."""

    def advise_random(self, mapping: mmap.mmap) -> None:
        """Advise the kernel to read single pages of a mapping."""

    def read_through(self, descriptor: int, start: int, stop: int) -> None:
        """Read a part of a file into the page cache, without the GIL and without reading ahead.

        Raises:
            OSError: the disk is broken.
        """

    def is_resident(self, address: int, length: int) -> bool:
        """Return whether a part of a mapping can be read without waiting for the disk.

        Args:
            address: where it begins in memory; the beginning of a page.
            length: its bytes.
        """

    def boot_id(self) -> str:
        """Return a text that differs after each start of the machine; empty if unknown."""

    def since_boot(self) -> float:
        """Return seconds since the boot, also seconds in which the machine was suspended."""

    def memory_bytes(self) -> int:
        """Return the physical memory of the machine."""

    def open_files_limits(self) -> tuple[int | None, int | None]:
        """Return how many files this process may open now, and at most; None: any number."""

    def allow_many_files(self) -> None:
        """Raise this process's limit of open files to what the system grants."""

    def mappings_max(self) -> int | None:
        """Return how many mappings a process may have; None if there is no limit."""
