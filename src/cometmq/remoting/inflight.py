"""Requests in flight, by their opaque numbers."""

from __future__ import annotations

import asyncio
from typing import Protocol

from cometmq.protocol.command import INT32_MAX, Command
from cometmq.remoting.errors import CallTimeoutError, TooManyCallsError

SWEEP_S = 0.05
ROUNDING_S = 1e-6
"""A sweep ends calls whose deadline is this near: times of timers are sums of rounded numbers."""


class ResponseReceiver(Protocol):
    """Gets the response to a request, or the error that ends it; an `asyncio.Future` is one.

    Its methods are called while bytes are received, and must neither raise nor wait.
    """

    def done(self) -> bool:
        """Whether it has ended."""

    def set_result(self, result: Command, /) -> None:
        """The response has arrived."""

    def set_exception(self, exception: Exception, /) -> None:
        """No response will arrive."""


class Inflight:
    """The table of one connection's outgoing requests.

    One timer serves all deadlines. It runs every 50 ms while requests are in flight, so a call ends
    up to 50 ms after its deadline.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, calls_max: int) -> None:
        self._loop = loop
        self._calls_max = calls_max
        self._waiting: dict[int, tuple[ResponseReceiver, float, float]] = {}
        self._last_opaque = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self, timeout: float) -> tuple[int, asyncio.Future[Command]]:
        """Return a new opaque number, and the future of its response.

        Raises:
            TooManyCallsError: the table is full.
        """
        future: asyncio.Future[Command] = self._loop.create_future()
        return self.add(future, timeout), future

    def add(self, receiver: ResponseReceiver, timeout: float) -> int:
        """Return a new opaque number, whose response or error ``receiver`` gets.

        Raises:
            TooManyCallsError: the table is full.
        """
        if len(self._waiting) >= self._calls_max:
            raise TooManyCallsError(f"{len(self._waiting)} requests are in flight already")
        opaque = self.next_opaque()
        self._waiting[opaque] = (receiver, self._loop.time() + timeout, timeout)
        if self._timer is None:
            self._timer = self._loop.call_later(min(SWEEP_S, timeout), self._sweep)
        return opaque

    def next_opaque(self) -> int:
        """Return an opaque number that no request in flight has."""
        while True:
            self._last_opaque = self._last_opaque % INT32_MAX + 1
            if self._last_opaque not in self._waiting:
                return self._last_opaque

    def complete(self, response: Command) -> bool:
        """Complete a request in flight; return False if it has ended."""
        found = self._waiting.pop(response.opaque, None)
        if found is None or found[0].done():
            return False
        found[0].set_result(response)
        return True

    def forget(self, opaque: int) -> None:
        """Stop waiting: a late response is dropped."""
        self._waiting.pop(opaque, None)

    def fail_all(self, problem: Exception) -> None:
        """End every waiting call with the same error."""
        waiting, self._waiting = self._waiting, {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for future, _, _ in waiting.values():
            if not future.done():
                future.set_exception(problem)

    def _sweep(self) -> None:
        now = self._loop.time() + ROUNDING_S
        late = [opaque for opaque, (_, deadline, _) in self._waiting.items() if deadline <= now]
        for opaque in late:
            future, _, timeout = self._waiting.pop(opaque)
            if not future.done():
                future.set_exception(CallTimeoutError(f"no response within {timeout:g} s"))
        self._timer = self._loop.call_later(SWEEP_S, self._sweep) if self._waiting else None
