"""What a load is, and what is counted while it runs."""

from __future__ import annotations

import asyncio
import math
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec

from cometmq.model.errors import CometError, ConfigError

STEPS_PER_OCTAVE = 64
"""Buckets of durations between one duration and its double: they differ by 1.1 %."""
BUCKETS = 40 * STEPS_PER_OCTAVE
"""From a microsecond to twelve days."""
MARK = b"CQB1"
_STAMP = struct.Struct(">4sq")
SIZE_MIN = _STAMP.size
PERCENTILES = (50.0, 90.0, 99.0, 99.9)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is loaded."""

    kind: str
    topic: str
    seconds: float
    warm_s: float
    """Seconds of load before the measured ones."""
    size: int
    """Bytes of a body."""
    in_flight: int
    """Sends, or receives, that wait for their response at a time."""
    batch: int
    """Messages of a batch."""
    rate: float
    """Messages a second that are sent; 0 for as many as possible."""
    fill: int
    """Messages that are sent before a load that consumes."""
    delay_s: float
    """Of delayed messages."""
    queues: int
    """Queues of the topic, if it is created."""
    rollback: float
    """The part of transactions that is rolled back."""

    def without_fill(self) -> Load:
        """Return the same for a topic that is filled."""
        return msgspec.structs.replace(self, fill=0)


class BenchError(CometError):
    """A load could not run; the text says why."""


class Durations:
    """Durations in buckets of 1.1 %, in a memory that does not grow."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.total = 0
        self.largest_s = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count a duration; one below a microsecond, of clocks that differ, is a microsecond."""
        bucket = 0
        if seconds > 1e-6:
            bucket = min(math.ceil(math.log2(seconds * 1e6) * STEPS_PER_OCTAVE), BUCKETS - 1)
        self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.total += count
        self.largest_s = max(self.largest_s, seconds)

    def percentile_s(self, percent: float) -> float:
        """Return the duration that so many percent of all do not exceed; 0 if there are none."""
        rest = math.ceil(self.total * percent / 100)
        for bucket in sorted(self.counts):
            rest -= self.counts[bucket]
            if rest <= 0:
                return min(1e-6 * 2 ** (bucket / STEPS_PER_OCTAVE), self.largest_s)
        return self.largest_s

    def milliseconds(self) -> dict[str, float]:
        """Return percentiles and the largest duration, in ms; empty if there are none."""
        if not self.total:
            return {}
        shown = {f"p{percent:g}": self.percentile_s(percent) for percent in PERCENTILES}
        return {
            name: round(seconds * 1000, 3)
            for name, seconds in {**shown, "max": self.largest_s}.items()
        }


class Meter:
    """Counts messages and durations of the measured time.

    A load calls `done` for each message, and ends soon after `over` is set.
    """

    def __init__(self) -> None:
        self.count = 0
        """Messages since the start, the warm-up included."""
        self.last = 0.0
        """When the last one was counted, by ``time.perf_counter``."""
        self.errors = 0
        self.last_error = ""
        self.begun, self.over = asyncio.Event(), asyncio.Event()
        self.durations = Durations()
        self.recent = Durations()
        """Those since the last line of progress."""

    def done(self, seconds: float | None, count: int = 1) -> None:
        """Count messages, and how long each took; None if that is of no meaning."""
        if not self.count:
            self.begun.set()
        self.count += count
        self.last = time.perf_counter()
        if seconds is not None:
            self.durations.add(seconds, count)
            self.recent.add(seconds, count)

    def failed(self, error: BaseException) -> None:
        """Count a failure."""
        self.errors += 1
        self.last_error = f"{type(error).__name__}: {error}"


class Beside(Meter):
    """Counts what is sent beside a load that consumes: it ends with that, and its failures count.

    Args:
        meter: of the load.
    """

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self.over = meter.over
        self._meter = meter

    def failed(self, error: BaseException) -> None:
        """Count a failure of the load."""
        self._meter.failed(error)


class Pace:
    """Begins at a rate, whether or not what began before has ended.

    A duration counts from the time that was planned: a server that stands still for a second makes
    all messages late that should have been sent in it.

    Args:
        rate: a second; 0 for as fast as possible.
    """

    def __init__(self, rate: float) -> None:
        self._step = 1 / rate if rate else 0.0
        self._next = time.perf_counter()

    async def begin(self) -> float:
        """Wait for the next turn; return the time that counts as its begin."""
        if not self._step:
            return time.perf_counter()
        planned = self._next
        self._next = planned + self._step
        wait = planned - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        return planned


def body_of(size: int) -> bytes:
    """Return a body with the time of now in it."""
    return _STAMP.pack(MARK, time.time_ns()).ljust(size, b"x")


def age_s(body: bytes) -> float:
    """Return the seconds since a body was made.

    Raises:
        BenchError: `body_of` did not make it.
    """
    if len(body) < SIZE_MIN or not body.startswith(MARK):
        raise BenchError(
            f"a message of {len(body)} bytes that is none of a benchmark: expected a topic of its"
            " own; --topic names another"
        )
    _, began_ns = _STAMP.unpack_from(body)
    return (time.time_ns() - int(began_ns)) / 1e9


class Consumed:
    """Counts what is consumed: a backlog, or with a rate only what was sent meanwhile, whose ages
    are the durations."""

    def __init__(self, load: Load, meter: Meter) -> None:
        self._meter = meter
        self._is_backlog = not load.rate
        self._began = time.time()

    def add(self, body: bytes) -> None:
        """Count a message."""
        age = age_s(body)
        if self._is_backlog:
            self._meter.done(None)
        elif time.time() - age >= self._began:
            self._meter.done(age)


Work = Callable[[str, Load, Meter], Awaitable[None]]
"""Loads the servers at an address until the meter is over."""


class System(Protocol):
    """A kind of servers."""

    WORKS: Mapping[str, Work]
    """The loads by their kind."""

    async def version(self, servers: str) -> str:
        """Return what the servers say that they are."""


def work_of(name: str, works: Mapping[str, Work], kind: str) -> Work:
    """Return a load.

    Raises:
        ConfigError: the system has nothing like it.
    """
    if kind not in works:
        raise ConfigError(f"{name} has no load {kind!r}: expected {', '.join(works)}")
    return works[kind]


async def until_over(meter: Meter, work: Callable[[], Awaitable[None]], tasks: int) -> None:
    """Repeat work in tasks until the meter is over; a failure is counted, and ends its round."""

    async def repeat() -> None:
        while not meter.over.is_set():
            try:
                await work()
            except Exception as error:
                meter.failed(error)
                await asyncio.sleep(0.01)  # a server that refuses all is not asked without pause

    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(repeat())
