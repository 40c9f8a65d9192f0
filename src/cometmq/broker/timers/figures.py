"""The figures of the timers."""

from __future__ import annotations

from typing import NamedTuple


class TimerFigures(NamedTuple):
    """How far the timers are, for metrics and the runtime information."""

    waiting: int = 0
    """Messages that wait."""
    behind_ms: int = 0
    """How long the first slot that is not passed is over."""
    queue_behind: int = 0
    """Messages of the queue that are not in their slots yet."""
    enqueued: int = 0
    """Messages that were put into their slots since the start."""
    delivered: int = 0
    recalled: int = 0
    rolled: int = 0
    """How often one was stored again."""
    enqueued_s: float = 0.0
    """Messages a second that were put into their slots, over the last ten."""
    delivered_s: float = 0.0
