# cython: annotation_typing=False
"""Counters with time windows: samples for the last minute, hour and day.

A :class:`Cell` only counts; samples of all cells are taken together, so that the times of the
samples are kept once::

    window   a sample every   samples kept   reaches back
    MINUTE   10 s             7              1 minute
    HOUR     10 min           7              1 hour
    DAY      1 h              25             1 day

What happened in a window is the newest sample minus the oldest one. A cell starts with a sample
of zero at the instant before its first real one, so nothing that it counted is lost.

Source: StatsItem, RocketMQ 5.3 (periods and lengths); the shared times are an addition.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from cometmq.remoting.slices import Slices

MINUTE: Final = 0
HOUR: Final = 1
DAY: Final = 2
PERIODS_MS: Final = (10_000, 600_000, 3_600_000)
SAMPLES: Final = (7, 7, 25)

SIZE_BOUNDS: Final = (1024, 4096, 524_288, 1_048_576, 2_097_152, 4_194_304)
"""The upper bounds of RocketMQ's buckets of message sizes, in bytes."""

_EARLY_MS_MAX: Final = 5_000
"""A sample this much early is in time: a timer rarely fires on the millisecond."""

Sample = tuple[int, int, int]
_ZERO: Final[Sample] = (0, 0, 0)
_WIDTH: Final = 3


class Cell:
    """One counter: three numbers that only grow.

    Its samples are numbers in arrays, because a broker has a cell for each of its queues.
    """

    __slots__ = ("_day", "_hour", "_minute", "calls", "idle_hours", "messages", "size_bytes")

    def __init__(self) -> None:
        self.calls = 0
        self.messages = 0
        self.size_bytes = 0
        self.idle_hours = 0
        """Hourly samples in a row that counted nothing."""
        self._minute: array[int] | None = None
        self._hour: array[int] | None = None
        self._day: array[int] | None = None

    def add(self, messages: int, size_bytes: int = 0, calls: int = 1) -> None:
        """Count ``calls`` events with these messages and bytes."""
        self.calls += calls
        self.messages += messages
        self.size_bytes += size_bytes

    def sample(self, window: int) -> None:
        """Take a sample of the counter."""
        samples = self._samples(window)
        if samples is None:
            samples = array("q", _ZERO)
            if window == MINUTE:
                self._minute = samples
            elif window == HOUR:
                self._hour = samples
            else:
                self._day = samples
        samples.extend((self.calls, self.messages, self.size_bytes))
        if len(samples) > SAMPLES[window] * _WIDTH:
            del samples[:_WIDTH]
        if window == DAY:
            is_idle = samples[-_WIDTH:] == samples[-2 * _WIDTH : -_WIDTH]
            self.idle_hours = self.idle_hours + 1 if is_idle else 0

    def change(self, window: int) -> tuple[Sample, int]:
        """Return what was counted within a window, and its number of samples."""
        samples = self._samples(window)
        if samples is None:
            return _ZERO, 0
        change = samples[-3] - samples[0], samples[-2] - samples[1], samples[-1] - samples[2]
        return change, len(samples) // _WIDTH

    def _samples(self, window: int) -> array[int] | None:
        return self._minute if window == MINUTE else self._hour if window == HOUR else self._day


class StoredCell(Cell):
    """A counter of messages stored, which also counts the larger ones by their size."""

    __slots__ = ("over_1k", "over_1m", "over_2m", "over_4k", "over_4m", "over_512k")

    def __init__(self) -> None:
        super().__init__()
        self.over_1k = self.over_4k = self.over_512k = 0
        self.over_1m = self.over_2m = self.over_4m = 0

    def add_large(self, messages: int, size_bytes: int) -> None:
        """Count messages of this size, which is more than 1 KiB."""
        if size_bytes <= 4096:
            self.over_1k += messages
        elif size_bytes <= 524_288:
            self.over_4k += messages
        elif size_bytes <= 1_048_576:
            self.over_512k += messages
        elif size_bytes <= 2_097_152:
            self.over_1m += messages
        elif size_bytes <= 4_194_304:
            self.over_2m += messages
        else:
            self.over_4m += messages

    def size_counts(self) -> list[int]:
        """Return how many messages belong to each bucket of `SIZE_BOUNDS`, and above all."""
        larger = [
            self.over_1k, self.over_4k, self.over_512k, self.over_1m, self.over_2m, self.over_4m,
        ]  # fmt: skip
        return [self.messages - sum(larger), *larger]


class WindowSum(NamedTuple):
    """The sum of some cells within one window."""

    calls: int
    messages: int
    size_bytes: int
    span_ms: int

    def per_second(self, amount: int) -> float:
        """``amount`` spread over the window; 0 while there is no second sample."""
        return amount * 1000 / self.span_ms if self.span_ms > 0 else 0.0

    def per_call(self, amount: int) -> float:
        """``amount`` spread over the calls."""
        return amount / self.calls if self.calls else 0.0


class SampledCells:
    """All cells, and the times of their samples.

    Args:
        now_ms: wall time of the start, from which the first samples count.
    """

    def __init__(self, now_ms: int) -> None:
        self._cells: set[Cell] = set()
        self._times: list[deque[int]] = [deque([now_ms], maxlen=count) for count in SAMPLES]

    def __len__(self) -> int:
        return len(self._cells)

    def new(self) -> Cell:
        """Return a cell that is sampled from now on."""
        cell = Cell()
        self._cells.add(cell)
        return cell

    def new_stored(self) -> StoredCell:
        """Return a cell of messages stored."""
        cell = StoredCell()
        self._cells.add(cell)
        return cell

    def drop(self, cell: Cell) -> None:
        """Stop sampling a cell."""
        self._cells.discard(cell)

    async def sample(self, now_ms: int) -> None:
        """Take every sample that is due at ``now_ms``."""
        for window, period_ms in enumerate(PERIODS_MS):
            times = self._times[window]
            if now_ms - times[-1] >= period_ms - _EARLY_MS_MAX or now_ms < times[-1]:
                times.append(now_ms)
                slices = Slices()
                async for cell in slices.each(list(self._cells)):
                    cell.sample(window)

    async def sum(self, window: int, cells: Iterable[Cell], slices: Slices) -> WindowSum:
        """Add up what the given cells counted in one window."""
        calls = messages = size_bytes = samples_max = 0
        async for cell in slices.each(cells):
            change, samples = cell.change(window)
            calls += change[0]
            messages += change[1]
            size_bytes += change[2]
            samples_max = max(samples_max, samples)
        return WindowSum(calls, messages, size_bytes, self._span_ms(window, samples_max))

    def _span_ms(self, window: int, samples: int) -> int:
        times = self._times[window]
        if samples < 2 or len(times) < 2:
            return 0
        return max(0, times[-1] - times[-min(samples, len(times))])
