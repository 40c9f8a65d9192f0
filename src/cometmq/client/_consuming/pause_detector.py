"""Notices that this process stood still: stopped, suspended, or its event loop blocked.

Brokers and other members go on meanwhile. They may have closed its connections and consumed its
queues, and what it has in memory is old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from cometmq.model.times import now_ms

TICK_S = 1.0
"""The interval in which it notes that the event loop runs."""
PAUSE_S = 5.0
"""A shorter time is no pause: within it no other member takes a queue."""


class PauseDetector:
    """Calls a function after each pause, before anything else acts on old state.

    Two clocks are compared: the steady one may stand still while the machine is suspended.

    Args:
        on_pause: called with the seconds of a pause.
        steady_s, wall_ms: the clocks.
    """

    def __init__(
        self,
        on_pause: Callable[[float], None],
        *,
        steady_s: Callable[[], float] = monotonic,
        wall_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._on_pause = on_pause
        self._steady_s = steady_s
        self._wall_ms = wall_ms
        self._ticked_s, self._ticked_ms = steady_s(), wall_ms()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to note that the event loop runs."""
        self._ticked_s, self._ticked_ms = self._steady_s(), self._wall_ms()
        self._tick()

    def stop(self) -> None:
        """Notice no further pauses."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def check(self) -> None:
        """Notice a pause now, if there was one: code that runs before the next tick calls this."""
        if self._timer is not None and self._steady_s() - self._ticked_s > PAUSE_S:
            self._note()

    def _tick(self) -> None:
        self._note()
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _note(self) -> None:
        steady_s, wall_ms = self._steady_s(), self._wall_ms()
        pause_s = max(steady_s - self._ticked_s, (wall_ms - self._ticked_ms) / 1000)
        self._ticked_s, self._ticked_ms = steady_s, wall_ms
        if pause_s > PAUSE_S:
            self._on_pause(pause_s)
