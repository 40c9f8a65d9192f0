"""Avoids brokers that were slow or failed, and probes them until they respond again.

A broker's last attempt decides: the slower it was, the longer the pause, by the highest limit that
the latency reaches. A failed attempt counts as very slow. Brokers that are not in the table are
available.

Source: LatencyFaultToleranceImpl and MQFaultStrategy, RocketMQ 4.9 and 5.3. There a probe only
says that a broker can be reached; its pause continues."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cometmq.client._connection.instance import ClientCore
from cometmq.client.settings import ProducerSettings
from cometmq.model.errors import RemotingError
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.offset import GetMaxOffsetRequest
from cometmq.remoting.tasks import Supervisor

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Slowness:
    """The latency of one broker, as it is known."""

    latency_ms: float
    available_from_s: float
    reachable: bool = True

    def rank(self, now_s: float) -> tuple[bool, float, float]:
        """Return the key that sorts better brokers first: available, fast, soon available."""
        return now_s < self.available_from_s, self.latency_ms, self.available_from_s


class LatencyTable:
    """The brokers that a producer has sent to, by name, with their latest latency.

    Args:
        limits_ms: latencies from which the pauses of the same position count, rising.
        pauses_ms: how long a broker is avoided.
        isolation_ms: the latency that a failed attempt counts as.
        line: 4 or 5, the line of RocketMQ whose rules are followed. In 5.x a later attempt never
            makes a pause shorter.
    """

    def __init__(
        self,
        *,
        limits_ms: Sequence[int],
        pauses_ms: Sequence[int],
        isolation_ms: int,
        line: int = 5,
    ) -> None:
        assert len(limits_ms) == len(pauses_ms), "every limit has its pause"
        self._limits_ms = tuple(limits_ms)
        self._pauses_ms = tuple(pauses_ms)
        self._isolation_ms = isolation_ms
        self.line = line
        self._brokers: dict[str, Slowness] = {}
        self._turn = random.randrange(1 << 16)

    @classmethod
    def of_line(cls, line: int) -> LatencyTable:
        """Make the table with the limits of RocketMQ 4.9 (4) or of 5.x (5)."""
        if line == 4:
            return cls(
                limits_ms=(50, 100, 550, 1_000, 2_000, 3_000, 15_000),
                pauses_ms=(0, 0, 30_000, 60_000, 120_000, 180_000, 600_000),
                isolation_ms=30_000,
                line=4,
            )
        return cls(
            limits_ms=(50, 100, 550, 1_800, 3_000, 5_000, 15_000),
            pauses_ms=(0, 0, 2_000, 5_000, 6_000, 10_000, 30_000),
            isolation_ms=10_000,
            line=5,
        )

    def record(
        self, broker: str, latency_ms: float, *, isolated: bool, reachable: bool, now_s: float
    ) -> None:
        """Record the result of an attempt.

        Args:
            broker: its name.
            latency_ms: how long the attempt took.
            isolated: whether it failed: then its latency counts as very long.
            reachable: whether the broker could be reached.
            now_s: the time, of a clock that never steps.
        """
        counted_ms = self._isolation_ms if isolated else latency_ms
        available_from_s = now_s + self.pause_ms(counted_ms) / 1000
        before = self._brokers.get(broker)
        if self.line != 4 and before is not None:
            available_from_s = max(available_from_s, before.available_from_s)
        self._brokers[broker] = Slowness(latency_ms, available_from_s, reachable)

    def pause_ms(self, latency_ms: float) -> int:
        """Return how long a broker with this latency is avoided."""
        pause = 0
        for limit_ms, pause_ms in zip(self._limits_ms, self._pauses_ms, strict=True):
            if latency_ms >= limit_ms:
                pause = pause_ms
        return pause

    def available(self, broker: str, now_s: float) -> bool:
        """Whether the broker is not avoided now."""
        known = self._brokers.get(broker)
        return known is None or now_s >= known.available_from_s

    def reachable(self, broker: str) -> bool:
        """Whether the broker was reached when it was last tried, or was never tried."""
        known = self._brokers.get(broker)
        return known is None or known.reachable

    def avoided(self, now_s: float) -> Iterator[str]:
        """Yield the brokers that are not available, or were not reachable."""
        for name, known in list(self._brokers.items()):
            if now_s < known.available_from_s or not known.reachable:
                yield name

    def forget(self, broker: str) -> None:
        """Drop a broker from the table: it is available."""
        self._brokers.pop(broker, None)

    def pick_least(self, now_s: float) -> str | None:
        """Return one of the better half of the brokers in turn; None if no broker is known."""
        ranked = sorted(self._brokers, key=lambda name: self._brokers[name].rank(now_s))
        if not ranked:
            return None
        self._turn += 1
        return ranked[self._turn % max(len(ranked) // 2, 1)]


class Detector:
    """Probes avoided brokers until they respond.

    Args:
        latency: the table of the brokers.
        instance: connections and routes.
        settings: interval and timeout of a probe.
    """

    def __init__(
        self, latency: LatencyTable, instance: ClientCore, settings: ProducerSettings
    ) -> None:
        self._latency = latency
        self._instance = instance
        self._interval_s = settings.detect_interval_ms / 1000
        self._timeout_s = settings.detect_timeout_ms / 1000
        self._tasks = Supervisor("detector")

    def start(self) -> None:
        """Begin to probe in the background."""
        if not len(self._tasks):
            self._tasks.every(self._interval_s, self.probe, "probe")

    async def close(self) -> None:
        """Stop probing."""
        await self._tasks.cancel()

    async def probe(self) -> None:
        """Send a request to each avoided broker; forget those without a master."""
        now_s = asyncio.get_running_loop().time()
        await asyncio.gather(*map(self._probe_one, self._latency.avoided(now_s)))

    async def _probe_one(self, broker: str) -> None:
        found = self._master_of(broker)
        if found is None:
            self._latency.forget(broker)
            return
        topic, address = found
        header = GetMaxOffsetRequest(topic=topic, queue_id=0)
        try:
            await self._instance.remoting.call(
                address, RequestCode.GET_MAX_OFFSET, header, timeout=self._timeout_s
            )
        except RemotingError as error:
            log.debug("broker still avoided broker=%s error=%s", broker, error)
        else:
            log.info("broker responds again broker=%s", broker)
            self._latency.forget(broker)

    def _master_of(self, broker: str) -> tuple[str, str] | None:
        """Return a topic of the broker, and the broker's address."""
        routes = self._instance.routes
        for topic in routes.topics():
            route = routes.known(topic)
            address = route.master(broker) if route is not None else None
            if address is not None:
                return topic, address
        return None
