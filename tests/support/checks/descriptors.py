"""Fails a module of tests that leaves descriptors open: files, sockets, event loops, mappings.

A user may open 1,024, on macOS 256. Descriptors of session and package fixtures outlive a module,
and do not count. Descriptors that a garbage collection closes do not count either: only a
collection frees a cycle that a test's own variables hold.
"""

from __future__ import annotations

import gc
import os
import stat
import sys
import time
import warnings
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

FOLDERS = (Path("/proc/self/fd"), Path("/dev/fd"))
"""Linux's and macOS's lists of a process's descriptors; Windows has none."""
LONGER_LIVED = ("session", "package")
UNCHECKED = {
    "tests/interop/": "clients of a shared JVM open connections when first needed, and keep them",
    "tests/spark/": "the same",
    "tests/unit/spark/": "PyArrow and Delta have an event loop of their own until the process ends",
}
"""Folders that are not checked, and why."""
SETTLE_S = 1.0
"""Time for threads that close large files."""
POLL_S = 0.01


class Descriptor(NamedTuple):
    """An open descriptor, and the file behind it."""

    number: int
    device: int
    inode: int
    mode: int

    def __str__(self) -> str:
        for folder in FOLDERS:
            with suppress(OSError):
                return f"{self.number} ({(folder / str(self.number)).readlink()})"
        return f"{self.number} (device {self.device}, inode {self.inode})"


def open_descriptors() -> set[Descriptor]:
    """The open descriptors of this process; none where the system does not list them."""
    folder = next((each for each in FOLDERS if each.exists()), None)
    return set(_described(folder)) if folder else set()


def _described(folder: Path) -> Iterator[Descriptor]:
    for number in [int(entry.name) for entry in folder.iterdir()]:
        with suppress(OSError):  # the one that listed the folder is closed
            found = os.fstat(number)
            yield Descriptor(number, found.st_dev, found.st_ino, found.st_mode)


class DescriptorCheck:
    """Compares the open descriptors before and after each module of tests."""

    def __init__(self) -> None:
        self._module = ""
        self._expected: set[Descriptor] = set()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Record the descriptors that are open before the first test of a module."""
        if self._module != (module := _module_of(item)):
            self._module, self._expected = module, open_descriptors()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object]
    ) -> Generator[None, object, object]:
        """Record the descriptors of fixtures that live longer than a module."""
        if fixturedef.scope not in LONGER_LIVED:
            return (yield)
        before = open_descriptors()
        try:
            return (yield)
        finally:
            self._expected |= open_descriptors() - before

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, None, None]:
        """Fail the last test of a module that leaves descriptors open."""
        yield
        if nextitem is not None and _module_of(nextitem) == self._module:
            return
        if self._module.startswith(tuple(UNCHECKED)) or not self._left():
            return
        getattr(item, "funcargs", {}).clear()  # as pytest does in its next step
        with warnings.catch_warnings():  # of what only a collection closes
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        deadline = time.monotonic() + SETTLE_S
        while left := self._left():
            if time.monotonic() > deadline:
                pytest.fail(
                    f"{self._module} leaves {len(left)} descriptors open, expected none; close"
                    f" what its tests open: {', '.join(map(str, sorted(left)))}",
                    pytrace=False,
                )
            time.sleep(POLL_S)

    def _left(self) -> set[Descriptor]:
        left = open_descriptors() - self._expected
        if left and (kept := set(_kept_by_the_process(left))):
            self._expected |= kept
            left -= kept
        return left


def _kept_by_the_process(descriptors: Iterable[Descriptor]) -> Iterator[Descriptor]:
    """Descriptors that stay open until the process ends, whichever test opens them first.

    ``free_port`` binds the first port of each block of ports that it takes. libuv, uvloop's
    library, makes one pipe for signals, which all its loops share. The server that forks commands
    ends with its pipe.
    """
    ports = sys.modules.get("cometmq.remoting.ports")
    forks = sys.modules.get("support.processes.forks")
    numbers = {*(ports._blocks._marks if ports else ()), *(forks.kept if forks else ())}
    ends = Counter(each.inode for each in descriptors if stat.S_ISFIFO(each.mode))
    for each in descriptors:
        if each.number in numbers or ("uvloop" in sys.modules and ends[each.inode] == 2):
            yield each


def _module_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
