"""A limit on what all connections of a process hold: unfinished frames, and unread responses.

A connection is bounded by itself, see `Wire`. Many of them together would fill the memory: each
hostile peer can leave a frame unfinished, or not read its responses. If all connections together
hold more than the limit, these steps follow until they hold less:

- Connections that have been silent for `SILENT_S` are closed, the longest silent one first. The
  server does not read from a peer that leaves responses unread, so this peer counts as silent after
  `UNREAD_S`. So does one whose first frame waits in the kernel (`Arrivals`).
- A connection whose unfinished frame grows is not read for `PAUSE_S` at a time.
- Connections whose bytes have not grown for `STUCK_S` are closed; if there are none, the one whose
  bytes have not grown for longest. A peer that sends single bytes is not silent, but the memory for
  its frame does not grow.

Each call looks at `LOOKS_MAX` connections at most: thousands that are closed in one iteration of
the event loop would stall the others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from heapq import nsmallest
from time import monotonic
from typing import Final, Protocol

BYTES_MAX: Final = 512 * 1024 * 1024
"""The limit unless a server sets another one."""
SILENT_S: Final = 1.0
"""A peer that has sent nothing for so long may be disconnected."""
STUCK_S: Final = 5.0
"""A connection that holds no more than so long ago may be disconnected, whatever it sends."""
UNREAD_S: Final = 0.1
"""A peer that has sent nothing for so long and leaves responses unread may be disconnected."""
SMALL_BYTES_MAX: Final = 4 * 1024
"""A connection that holds so little is read on: all together they hold little."""
PAUSE_S: Final = 0.1
"""How long a connection is not read before the limit is looked at again."""
LOOKS_MAX: Final = 32
"""Connections that one call looks at, to close or to resume them."""


class Holder(Protocol):
    """A connection; `Wire` is one, and `Arrival`."""

    received_s: float
    _writing_paused: bool
    warn: Callable[..., None]

    @property
    def peer_text(self) -> str:
        """The address of the peer."""

    def abort(self) -> None:
        """Close at once."""

    def pause_frames(self) -> None:
        """Read nothing until `resume_frames`."""

    def resume_frames(self) -> None:
        """Read on."""


class BufferBudget:
    """The bytes that the connections of one event loop hold.

    Args:
        loop: the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.bytes_max = BYTES_MAX
        """The limit."""
        self.held_bytes = 0
        """The bytes that all connections hold."""
        self.closed = 0
        """Connections that were closed to keep the limit."""
        self._holders: OrderedDict[Holder, tuple[int, float]] = OrderedDict()
        """The bytes that each connection holds, and since when. The connection that grew or was
        looked at the longest ago is the first."""
        self._paused: OrderedDict[Holder, None] = OrderedDict()
        """In the order in which they were paused."""
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, wire: Holder, size_bytes: int) -> None:
        """Note that a connection holds so much now; 0 for nothing.

        Another connection may be closed before this returns, and this one paused.
        """
        before, since_s = self._holders.get(wire, (0, 0.0))
        if size_bytes > before:
            self._holders.pop(wire, None)
            since_s = monotonic()
        if size_bytes:
            self._holders[wire] = size_bytes, since_s
        else:
            self._holders.pop(wire, None)
            if wire in self._paused:  # it has ended, or holds nothing any more
                del self._paused[wire]
                self._loop.call_soon(wire.resume_frames)
        self.held_bytes += size_bytes - before
        if size_bytes > before and self.held_bytes > self.bytes_max:
            self._close_silent(wire)
            reads_on = size_bytes <= SMALL_BYTES_MAX or wire._writing_paused
            if self.held_bytes > self.bytes_max and not reads_on and wire not in self._paused:
                self._pause(wire)

    def _close_silent(self, asking: Holder | None) -> None:
        """Close silent connections until the limit is kept, or enough have been looked at.

        One that is not silent goes to the end of the table, so each call sees others.
        """
        now_s = monotonic()
        for _ in range(min(LOOKS_MAX, len(self._holders))):
            if self.held_bytes <= self.bytes_max:
                return
            wire = next(iter(self._holders))
            if wire._writing_paused:
                may_close = now_s - wire.received_s >= UNREAD_S
            else:
                may_close = now_s - wire.received_s >= SILENT_S and wire not in self._paused
            if may_close and wire is not asking:
                self._close(wire)
            else:
                self._holders.move_to_end(wire)

    def _close_stuck(self) -> None:
        """Close the connection that has held its bytes for longest, and others that do for long."""
        stuck_to_s = monotonic() - STUCK_S
        longest = nsmallest(LOOKS_MAX, self._holders.items(), key=lambda item: item[1][1])
        for at, (wire, (_, since_s)) in enumerate(longest):
            has_room = self.held_bytes <= self.bytes_max * 3 // 4
            if at > 0 and (has_room or since_s > stuck_to_s):
                return
            self._close(wire)

    def _close(self, wire: Holder) -> None:
        self.closed += 1
        wire.warn(
            "closed a connection: it holds an unfinished frame or unread responses, and all"
            " connections hold more than %d bytes (connectionBuffersMax) peer=%s",
            self.bytes_max,
            wire.peer_text,
        )
        self.hold(wire, 0)
        wire.abort()

    def _pause(self, wire: Holder) -> None:
        self._paused[wire] = None
        wire.pause_frames()
        self._look_again()

    def _look_again(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        """Read paused connections again, if there is room; else make some."""
        self._timer = None
        if self.held_bytes > self.bytes_max:
            self._close_silent(None)
        if self.held_bytes > self.bytes_max:
            self._close_stuck()
        for _ in range(min(LOOKS_MAX, len(self._paused))):
            if self.held_bytes > self.bytes_max:
                break
            oldest, _ = self._paused.popitem(last=False)
            oldest.resume_frames()
        if self._paused:
            self._look_again()
