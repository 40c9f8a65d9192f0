"""Takes the figures of all brokers every few seconds, and keeps half an hour of their sums."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping

import msgspec

from cometmq.console.live import Viewers
from cometmq.console.overview.lags import Lags, LagSamples
from cometmq.console.reads import Reads
from cometmq.model.errors import CometError
from cometmq.model.nouns import counted
from cometmq.model.runtime_figures import number, rate, ratio, totals
from cometmq.model.times import now_ms
from cometmq.protocol.bodies.route import RegisteredBroker

log = logging.getLogger(__name__)

INTERVAL_S = 5.0
KEPT = 360
"""Half an hour."""
VIEWERS_MAX = 64
DISK_ALARM_RATIO = 0.85
"""Brokers delete old files before their time from here on: diskSpaceCleanForciblyRatio."""

WAIT_ALARM_MS = 200
"""Brokers refuse sends that wait as long: waitTimeMillsInSendQueue."""


class BrokerState(msgspec.Struct):
    """The figures of one broker; None for a figure that it does not have."""

    cluster: str
    broker: str
    id: int
    address: str
    role: str
    error: str = ""
    version: str = ""
    in_per_s: float | None = None
    out_per_s: float | None = None
    in_today: int | None = None
    out_today: int | None = None
    disk_ratio: float | None = None
    oldest_time_ms: int | None = None
    send_wait_ms: int | None = None


class Point(msgspec.Struct):
    """The sums of all brokers at one time."""

    time_ms: int
    in_per_s: float
    out_per_s: float
    lag: int | None = None
    """The lag of all groups; None if not all were read."""


class Overview(msgspec.Struct):
    """The state of a cluster."""

    time_ms: int = 0
    """The time at which it was read; 0 if it was not read yet."""
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    brokers: list[BrokerState] = msgspec.field(default_factory=list)
    alarms: list[str] = msgspec.field(default_factory=list)
    history: list[Point] = msgspec.field(default_factory=list)
    lags: Lags = msgspec.field(default_factory=Lags)


class Samples:
    """The newest sample, and a point for each of the samples before it.

    Args:
        reads: requests to the cluster.
        interval_s: seconds between two samples.
    """

    def __init__(self, reads: Reads, interval_s: float = INTERVAL_S) -> None:
        self._reads = reads
        self._lags = LagSamples(reads)
        self._interval_s = interval_s
        self._points: deque[Point] = deque(maxlen=KEPT)
        self._newest = Overview()
        self._arrival = asyncio.Condition()
        self._taken = 0
        self._viewers = Viewers(VIEWERS_MAX)

    async def run(self) -> None:
        """Take samples until the task is cancelled."""
        while True:
            try:
                await self.take()
            except Exception:  # a defect must not end the figures of all viewers
                log.exception("a sample of the cluster failed, the next one is taken in time")
            await asyncio.sleep(self._interval_s)

    async def take(self) -> None:
        """Take one sample, and give it to the viewers."""
        try:
            brokers = await self._reads.brokers()
            figures = await self._reads.each(brokers, self._figures_of)
            lags = await self._lags.take()
        except CometError as error:
            self._newest = Overview(
                now_ms(), alarms=[f"name servers: {error}"], history=list(self._points)
            )
        else:
            states = [state_of(*each) for each in zip(brokers, figures, strict=True)]
            self._newest = self._sum(states, lags)
        self._taken += 1
        async with self._arrival:
            self._arrival.notify_all()

    async def newest(self) -> Overview:
        """Return the newest sample; the first one is awaited."""
        async with self._arrival:
            await self._arrival.wait_for(lambda: self._taken)
        return self._newest

    @contextlib.asynccontextmanager
    async def viewer(self) -> AsyncIterator[AsyncIterator[Overview]]:
        """Give samples as they are taken, within ``with``; one who is slow misses some.

        Raises:
            TooManyViewersError: there are `VIEWERS_MAX` already.
        """
        with self._viewers.one():
            yield self._samples()

    async def _samples(self) -> AsyncIterator[Overview]:
        seen = 0
        while True:
            async with self._arrival:
                await self._arrival.wait_for(lambda: self._taken > seen)  # noqa: B023
            seen = self._taken
            yield self._newest

    async def _figures_of(self, broker: RegisteredBroker) -> dict[str, str]:
        return await self._reads.admin.broker_runtime_info(broker.address)

    def _sum(self, states: list[BrokerState], lags: Lags) -> Overview:
        masters = [each for each in states if each.id == 0]
        into = sum(each.in_per_s or 0.0 for each in masters)
        out = sum(each.out_per_s or 0.0 for each in states)
        self._points.append(Point(now_ms(), into, out, lags.lag))
        alarms = [*alarms_of(states), *lags.alarms]
        return Overview(now_ms(), into, out, states, alarms, list(self._points), lags)


def state_of(broker: RegisteredBroker, figures: Mapping[str, str] | CometError) -> BrokerState:
    """Return the state of a broker, from its figures or from the error."""
    role = "master" if broker.is_master else "slave"
    state = BrokerState(broker.cluster, broker.name, broker.id, broker.address, role)
    if isinstance(figures, CometError):
        state.error = str(figures)
        return state
    state.version = figures.get("brokerVersionDesc", "")
    state.in_per_s = rate(figures, "putTps")
    state.out_per_s = rate(figures, "getTransferredTps", "getTransferedTps")
    *_, state.in_today, state.out_today = totals(figures)
    state.disk_ratio = ratio(figures, "commitLogDiskRatio")
    state.oldest_time_ms = number(figures, "earliestMessageTimeStamp")
    state.send_wait_ms = number(figures, "sendThreadPoolQueueHeadWaitTimeMills")
    return state


def alarms_of(states: list[BrokerState]) -> list[str]:
    """Return what needs an action, with the action."""
    alarms = [
        f"{each.broker} {each.id} ({each.address}) does not respond: {each.error}"
        for each in states
        if each.error
    ]
    alarms += [
        f"{each.broker} {each.id}: the disk is {each.disk_ratio:.0%} full, expected less than"
        f" {DISK_ALARM_RATIO:.0%}: make room, or keep messages for a shorter time"
        for each in states
        if (each.disk_ratio or 0.0) >= DISK_ALARM_RATIO
    ]
    alarms += [
        f"{each.broker} {each.id} is overloaded: a send waits {each.send_wait_ms} ms in its queue,"
        f" expected less than {WAIT_ALARM_MS}: send less, or add brokers"
        for each in states
        if (each.send_wait_ms or 0) >= WAIT_ALARM_MS
    ]
    with_master = {each.broker for each in states if each.id == 0}
    lacking = sorted({each.broker for each in states} - with_master)
    alarms += [f"{name} has no master: nothing can be sent to it" for name in lacking]
    if not states:
        alarms.append(f"{counted(0, 'broker')} registered with the name servers")
    return alarms
