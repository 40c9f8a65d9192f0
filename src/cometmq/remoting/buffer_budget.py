"""A limit on what all connections of a process hold: unfinished frames, and unread responses.

A connection is bounded by itself, see `Wire`. Many of them together would fill the memory: each
hostile peer can leave a frame unfinished, or not read its responses. If all hold more than the
limit, connections that have been silent for `SILENT_S` are closed, the longest silent one first.
If none is silent, the one that asks for more is not read for a while. If that does not help, those
are closed that hold the same for `STUCK_S`, or else the one that does for longest: a peer that
sends single bytes is not silent, but its frame does not grow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

BYTES_MAX: Final = 512 * 1024 * 1024
"""The limit unless a server sets another one."""
SILENT_S: Final = 1.0
"""A peer that has sent nothing for so long may be disconnected."""
STUCK_S: Final = 5.0
"""A connection that holds no more than so long ago may be disconnected, whatever it sends."""
PAUSE_S: Final = 0.1
"""How long a connection is not read before the limit is looked at again."""


class Holder(Protocol):
    """A connection; `Wire` is one."""

    received_s: float
    warn: Callable[..., None]
    peer_text: str

    def abort(self) -> None:
        """Close at once."""

    def pause_frames(self) -> None:
        """Read nothing until `resume_frames`."""

    def resume_frames(self) -> None:
        """Read on."""


class BufferBudget:
    """What the connections of one event loop hold.

    Args:
        loop: the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.bytes_max = BYTES_MAX
        """The limit."""
        self.held_bytes = 0
        """What all connections hold."""
        self.closed = 0
        """Connections that were closed to keep the limit."""
        self._holders: dict[Holder, tuple[int, float]] = {}
        """What each one holds, and since when; in the order of these times."""
        self._paused: list[Holder] = []
        self._timer: asyncio.TimerHandle | None = None
        self._none_silent_to_s = 0.0
        """Until then no connection is looked for that is silent: there was none."""

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
        self.held_bytes += size_bytes - before
        if size_bytes > before and self.held_bytes > self.bytes_max:
            if since_s >= self._none_silent_to_s:
                self._close_silent(wire)
            if self.held_bytes > self.bytes_max and wire not in self._paused:
                self._pause(wire)

    def _close_silent(self, asking: Holder | None) -> None:
        """Close connections until a quarter of the limit is free, or none is silent."""
        now_s = monotonic()
        for wire in sorted(self._holders, key=lambda one: one.received_s):
            if self.held_bytes <= self.bytes_max * 3 // 4:
                return
            if now_s - wire.received_s < SILENT_S:
                break
            if wire is not asking and wire not in self._paused:
                self._close(wire)
        self._none_silent_to_s = now_s + PAUSE_S

    def _close_stuck(self) -> None:
        """Close the connection that holds the same for longest, and those that do for long."""
        stuck_to_s = monotonic() - STUCK_S
        for at, (wire, (_, since_s)) in enumerate(list(self._holders.items())):
            has_room = self.held_bytes <= self.bytes_max * 3 // 4
            if at > 0 and (has_room or since_s > stuck_to_s):
                return
            self._close(wire)

    def _close(self, wire: Holder) -> None:
        self.closed += 1
        wire.warn(
            "closed a connection: it holds an unfinished frame or unread responses, and all"
            " connections hold more than %d bytes (connectionBuffersMax) peer=%s",
            *(self.bytes_max, wire.peer_text),
        )
        self.hold(wire, 0)
        wire.abort()

    def _pause(self, wire: Holder) -> None:
        self._paused.append(wire)
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
        while self._paused and self.held_bytes <= self.bytes_max:
            self._paused.pop(0).resume_frames()
        if self._paused:
            self._look_again()
