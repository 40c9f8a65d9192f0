"""An event loop whose clock stands still while there is work, and jumps when there is none.

Code that waits for timers then takes no time, the order of what happens follows from the timers
alone, and a test may compare times exactly. A module asks for it by

    pytestmark = pytest.mark.usefixtures("virtual_time")

While a call runs in the loop's executor, time passes as it really does. For what runs in other
threads this is of no use: the loop cannot know that such a thread is busy, and time passes at once.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

SOCKETS_S = 0.02
"""How long, by the wall clock, sockets get to deliver what was written before time passes."""
STUCK_S = 60.0
"""How long, by the wall clock, a loop without timers waits for a socket or a thread."""


class _Selector:
    """A selector that lets time pass instead of waiting for it."""

    def __init__(self, selector: selectors.BaseSelector, clock: _Clock) -> None:
        self._selector = selector
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        has_sockets = len(self._selector.get_map()) > 1  # one wakes the loop for threads
        ready = self._selector.select(SOCKETS_S if timeout != 0 and has_sockets else 0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            ready = self._selector.select(STUCK_S)
            if not ready:
                raise RuntimeError(f"nothing has happened for {STUCK_S:.0f} s, and no timer is set")
        elif self._clock.threads:
            began_s = time.monotonic()
            ready = self._selector.select(timeout)
            self._clock.now_s += max(timeout if not ready else 0, time.monotonic() - began_s)
        else:
            self._clock.now_s += timeout
        return ready


class _Clock:
    """The time of the loop."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self.threads = 0
        """How many calls run in the loop's executor."""


@contextmanager
def virtual(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Give a running loop a clock of its own until the end of the block."""
    assert isinstance(loop, asyncio.SelectorEventLoop)
    clock = _Clock(loop.time())
    inner, run_in_executor = loop._selector, loop.run_in_executor

    def counted(executor: Any, call: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = run_in_executor(executor, call, *args)
        clock.threads += 1

        def ended(_: asyncio.Future[Any]) -> None:
            clock.threads -= 1

        future.add_done_callback(ended)
        return future

    loop._selector = _Selector(inner, clock)
    loop.time = lambda: clock.now_s  # type: ignore[method-assign]
    loop.run_in_executor = counted  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        del loop.time, loop.run_in_executor
        loop._selector = inner


@pytest.fixture
async def virtual_time() -> AsyncIterator[None]:
    """Let the test's loop run on virtual time."""
    with virtual(asyncio.get_running_loop()):
        yield
