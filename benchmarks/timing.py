"""Times small pieces of code: several runs, their median and spread, in nanoseconds a call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

RUNS = 7
RUN_S = 0.15


@dataclass(frozen=True)
class Timing:
    """What one call costs."""

    name: str
    ns: float
    spread_percent: float

    def __str__(self) -> str:
        return f"{self.name:<44}{self.ns:>10.0f} ns  ±{self.spread_percent:.0f}%"


def measure(name: str, call: Callable[[], object], *, per_call: int = 1) -> Timing:
    """Time a call in CPU seconds of this thread; ``per_call`` is how many pieces it handles."""
    repeat = _calibrate(call)
    costs = [_run(call, repeat) / repeat / per_call * 1e9 for _ in range(RUNS)]
    middle = median(costs)
    return Timing(name, middle, 50 * (max(costs) - min(costs)) / middle)


def _calibrate(call: Callable[[], object]) -> int:
    repeat = 1
    while (spent := _run(call, repeat)) < RUN_S / 4:
        repeat *= 2
    return max(1, round(repeat * RUN_S / spent))


def _run(call: Callable[[], object], repeat: int) -> float:
    began = time.thread_time()
    for _ in range(repeat):
        call()
    return time.thread_time() - began
