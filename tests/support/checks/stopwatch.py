"""Measures for how long callbacks of one event loop run without yielding."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

WORKLOAD_S = 0.0027
"""The time of `_workload` on the machine for which limits are meant."""


class Stopwatch:
    """Measures the callbacks that the loop of one thread runs, in CPU seconds of that thread.

    CPU time leaves out what other processes and threads do meanwhile, and with it the time in
    which another thread of this process, such as that of the test, keeps the interpreter.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.longest = ""

    @contextmanager
    def measures(self, thread: threading.Thread) -> Iterator[None]:
        """Measure the loop of a thread from now on."""
        watch, run_callback = self, asyncio.Handle._run
        ident = thread.ident

        def run(handle: asyncio.Handle) -> None:
            if threading.get_ident() != ident:
                run_callback(handle)
                return
            began_s = time.thread_time()
            run_callback(handle)
            took_s = time.thread_time() - began_s
            if took_s > watch.longest_s:
                watch.longest_s, watch.longest = took_s, repr(handle)

        asyncio.Handle._run = run  # type: ignore[method-assign]
        try:
            yield
        finally:
            asyncio.Handle._run = run_callback  # type: ignore[method-assign]

    def restart(self) -> None:
        """Forget the longest callback so far; collect garbage before the next one."""
        gc.collect()
        self.longest_s, self.longest = 0.0, ""


def slowness() -> float:
    """How many times slower than the reference this machine is now; at least 1."""
    return max(1.0, max(_workload_s() for _ in range(5)) / WORKLOAD_S)


def _workload_s() -> float:
    began_s = time.thread_time()
    table: dict[str, int] = {}
    for number in range(20_000):
        table[f"key-{number % 500}"] = number
    return time.thread_time() - began_s
