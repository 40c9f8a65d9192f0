"""Measures for how long callbacks of one event loop run without yielding."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

WORKLOAD_S = 0.0027
"""The time of `_workload` on the machine for which limits are meant."""


class Stopwatch:
    """Measures the callbacks that the loop of one thread runs.

    Time counts while the thread runs, and while it waits for what this process does: the disk, a
    lock, or another thread that keeps the interpreter for itself. Time in which the thread could
    run and the kernel lets others run does not count (Linux; elsewhere only CPU time counts).
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.longest = ""

    @contextmanager
    def measures(self, thread: threading.Thread) -> Iterator[None]:
        """Measure the loop of a thread from now on."""
        watch, run_callback = self, asyncio.Handle._run
        ident, clock = thread.ident, _Clock(thread.native_id or 0)

        def run(handle: asyncio.Handle) -> None:
            if threading.get_ident() != ident:
                run_callback(handle)
                return
            began_s = clock.now_s()
            run_callback(handle)
            took_s = clock.now_s() - began_s
            if took_s > watch.longest_s:
                watch.longest_s, watch.longest = took_s, repr(handle)

        asyncio.Handle._run = run  # type: ignore[method-assign]
        try:
            yield
        finally:
            asyncio.Handle._run = run_callback  # type: ignore[method-assign]
            clock.close()

    def restart(self) -> None:
        """Forget the longest callback so far; collect garbage before the next one."""
        gc.collect()
        self.longest_s, self.longest = 0.0, ""


class _Clock:
    """The time of a thread without the time for which the kernel made it wait for a processor."""

    def __init__(self, native_id: int) -> None:
        try:
            self._file = os.open(f"/proc/self/task/{native_id}/schedstat", os.O_RDONLY)
        except OSError:
            self._file = -1

    def now_s(self) -> float:
        if self._file < 0:
            return time.thread_time()
        _, queued_ns, _ = os.pread(self._file, 80, 0).split()
        return (time.perf_counter_ns() - int(queued_ns)) / 1e9

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)


def slowness() -> float:
    """How many times slower than the reference this machine is now; at least 1."""
    return max(1.0, max(_workload_s() for _ in range(5)) / WORKLOAD_S)


def _workload_s() -> float:
    began_s = time.thread_time()
    table: dict[str, int] = {}
    for number in range(20_000):
        table[f"key-{number % 500}"] = number
    return time.thread_time() - began_s
