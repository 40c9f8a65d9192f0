# cython: annotation_typing=False
"""Requests in flight, by their opaque numbers."""

from __future__ import annotations

import asyncio
from typing import Protocol

from cometmq.protocol import header_scanner, octets
from cometmq.protocol.command import INT32_MAX, Command
from cometmq.protocol.octets import two_u32
from cometmq.remoting.errors import CallTimeoutError, TooManyCallsError
from cometmq.remoting.wire import FastPath, Wire

SWEEP_S = 0.05
ROUNDING_S = 1e-6
"""A sweep ends calls whose deadline is this near: times of timers are sums of rounded numbers."""
_PREFIX_BYTES = 8
_OPAQUE = b'"opaque":'
_OPAQUE_MAX = INT32_MAX


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


class Call:
    """A request in flight. Its methods must neither raise nor wait."""

    __slots__ = ("deadline_s", "timeout")

    def __init__(self) -> None:
        self.deadline_s = 0.0
        self.timeout = 0.0

    def done(self) -> bool:
        """Whether it has ended."""
        return False

    def set_result(self, response: Command) -> None:
        """The response has arrived."""
        raise NotImplementedError

    def set_exception(self, error: Exception) -> None:
        """No response will arrive."""
        raise NotImplementedError

    def read_response(
        self, data: bytearray, header_at: int, body_at: int, end: int, opaque: int
    ) -> bool:
        """Take the response from the receive buffer; False if it needs a `Command`.

        Args:
            data: the received bytes.
            header_at: where the header begins, which is JSON.
            body_at: where the body begins.
            end: where it ends.
            opaque: the opaque number of this request.
        """
        return False


class _ReceiverCall(Call):
    """A request whose response goes to a `ResponseReceiver`."""

    __slots__ = ("receiver",)

    def __init__(self, receiver: ResponseReceiver) -> None:
        self.receiver = receiver

    def done(self) -> bool:
        return bool(self.receiver.done())

    def set_result(self, response: Command) -> None:
        self.receiver.set_result(response)

    def set_exception(self, error: Exception) -> None:
        self.receiver.set_exception(error)


class Inflight:
    """The table of one connection's outgoing requests.

    One timer serves all deadlines. It runs every 50 ms while requests are in flight, so a call ends
    up to 50 ms after its deadline.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, calls_max: int) -> None:
        self._loop = loop
        self._calls_max = calls_max
        self._waiting: dict[int, Call] = {}
        self._last_opaque = 0
        self._timer: asyncio.TimerHandle | None = None
        self.has_readers = False
        """Whether any request was a `Call` of its own kind, which may read its response."""

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
        return self.add_call(_ReceiverCall(receiver), timeout, self._loop.time())

    def add_call(self, call: Call, timeout: float, now_s: float) -> int:
        """Return a new opaque number, whose response or error ``call`` gets.

        Raises:
            TooManyCallsError: the table is full.
        """
        if len(self._waiting) >= self._calls_max:
            raise TooManyCallsError(f"{len(self._waiting)} requests are in flight already")
        opaque = self.next_opaque()
        call.deadline_s = now_s + timeout
        call.timeout = timeout
        self._waiting[opaque] = call
        if self._timer is None:
            self._timer = self._loop.call_later(min(SWEEP_S, timeout), self._sweep)
        return opaque

    def next_opaque(self) -> int:
        """Return an opaque number that no request in flight has."""
        while True:
            self._last_opaque = self._last_opaque % _OPAQUE_MAX + 1
            if self._last_opaque not in self._waiting:
                return self._last_opaque

    def complete(self, response: Command) -> bool:
        """Complete a request in flight; return False if it has ended."""
        call = self._waiting.pop(response.opaque, None)
        if call is None or call.done():
            return False
        call.set_result(response)
        return True

    def awaits(self, opaque: int) -> bool:
        """Return whether the response to a request is waited for."""
        return opaque in self._waiting

    def forget(self, opaque: int) -> None:
        """Stop waiting: a late response is dropped."""
        self._waiting.pop(opaque, None)

    def calls(self) -> list[Call]:
        """Return the requests in flight."""
        return list(self._waiting.values())

    def fail_all(self, problem: Exception) -> None:
        """End every waiting call with the same error."""
        waiting, self._waiting = self._waiting, {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for call in waiting.values():
            if not call.done():
                call.set_exception(problem)

    def _sweep(self) -> None:
        now = self._loop.time() + ROUNDING_S
        late = [opaque for opaque, call in self._waiting.items() if call.deadline_s <= now]
        for opaque in late:
            call = self._waiting.pop(opaque)
            if not call.done():
                call.set_exception(CallTimeoutError(f"no response within {call.timeout:g} s"))
        self._timer = self._loop.call_later(SWEEP_S, self._sweep) if self._waiting else None


class ResponseReader(FastPath):
    """Passes responses to the calls that read them in the receive buffer.

    Args:
        inflight: the requests of the connection.
        frame_bytes_max: the connection refuses larger frames.
    """

    def __init__(self, inflight: Inflight, frame_bytes_max: int) -> None:
        self._inflight = inflight
        self._frame_bytes_max = frame_bytes_max

    def take(self, data: bytearray, start: int, end: int, wire: Wire) -> int:
        """Pass on the responses at ``start`` that their calls can read; return their bytes."""
        if not self._inflight.has_readers:
            return 0
        at = start
        while end - at > _PREFIX_BYTES:
            length, word = two_u32(data, at)
            header_at = at + _PREFIX_BYTES
            body_at = header_at + word
            frame_end = at + 4 + length
            if word >> 24 or frame_end > end or body_at > frame_end:
                break
            if frame_end - at > self._frame_bytes_max:
                break
            opaque = _opaque_of(data, header_at, body_at)
            call = self._inflight._waiting.get(opaque)
            if call is None or not call.read_response(data, header_at, body_at, frame_end, opaque):
                break
            self._inflight._waiting.pop(opaque, None)
            at = frame_end
        return at - start

    def finish_deferred(self) -> None:
        """Nothing is left for later."""


def _opaque_of(data: bytearray, at: int, end: int) -> int:
    """Return the opaque number in a JSON header; 0, which no request has, if it is not plain.

    A peer may send any number: in C, -1 must not stand for an exception.
    """
    memory = octets.start_of(data)
    at = octets.last_of(memory, at, end, _OPAQUE)  # it is near the end
    if at < 0:
        return 0
    at += len(_OPAQUE)
    stop = header_scanner.end_of_number(memory, at, end)
    return header_scanner.plain_number(memory, at, stop) if stop else 0
