"""Probes brokers that are left alone, and takes them back as soon as they answer.

Source: LatencyFaultToleranceImpl.detectByOneRound, RocketMQ 5.3. There a probe only says that a
broker can be reached; its pause goes on.
"""

from __future__ import annotations

import asyncio
import logging

from cometmq.client.config import ProducerSettings
from cometmq.client.instance import ClientInstance
from cometmq.client.latency import LatencyTable
from cometmq.model.errors import RemotingError
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import GetMaxOffsetRequest
from cometmq.remoting.tasks import Supervisor

log = logging.getLogger(__name__)


class Detector:
    """Asks brokers that are left alone for something small, again and again.

    Args:
        latency: knows who is left alone.
        instance: connections and routes.
        settings: how often to ask, and how long to wait.
    """

    def __init__(
        self, latency: LatencyTable, instance: ClientInstance, settings: ProducerSettings
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
        """Probe no more."""
        await self._tasks.cancel()

    async def probe(self) -> None:
        """Ask every broker that is left alone once; nobody tells of those without a master."""
        now_s = asyncio.get_running_loop().time()
        await asyncio.gather(*map(self._probe_one, self._latency.left_alone(now_s)))

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
        """Give a topic that the broker serves, and the broker's address."""
        routes = self._instance.routes
        for topic in routes.topics():
            route = routes.known(topic)
            address = route.master(broker) if route is not None else None
            if address is not None:
                return topic, address
        return None
