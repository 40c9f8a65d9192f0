"""Chooses the target of a send: route, queue and broker.

Source: DefaultMQProducerImpl.tryToFindTopicPublishInfo and MQFaultStrategy, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from cometmq.client._connection.instance import ClientCore
from cometmq.client._connection.routes import Route
from cometmq.client._sending.broker_latency import LatencyTable
from cometmq.client._sending.outgoing import Outgoing
from cometmq.client._sending.queue_picker import QueuePicker, chosen
from cometmq.client._sending.retry_policy import loop_time, seconds_left
from cometmq.client.errors import NoMasterError, QueueNotFoundError, TopicNotFoundError
from cometmq.client.handlers import QueueSelector
from cometmq.client.settings import ProducerSettings
from cometmq.model.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class SendTarget:
    """The queue that the caller of a send chose, or a selector of it."""

    queue: MessageQueue | None = None
    selector: QueueSelector | None = None

    @property
    def is_fixed(self) -> bool:
        """Whether the caller chose."""
        return self.queue is not None or self.selector is not None


ANY_QUEUE = SendTarget()


class Targets:
    """Finds the target queues and brokers of one producer.

    Args:
        instance: routes and connections.
        settings: of the producer.
    """

    def __init__(self, instance: ClientCore, settings: ProducerSettings) -> None:
        self._instance = instance
        self._namespace = instance.namespace
        self._settings = settings
        self._pickers: dict[str, QueuePicker] = {}
        self.latency = (
            LatencyTable.of_line(settings.rocketmq_version) if settings.latency_avoidance else None
        )
        """The latency of the brokers, if slow ones are avoided."""

    async def route(self, topic: str, timeout: float) -> Route:
        """Return the topic's route, which has queues to write to.

        A cached route that has none is fetched again: masters may be back.

        Raises:
            NoMasterError: a broker of the topic has no master now, and no other has a queue.
            ClientClosedError, TopicNotFoundError, NameServerError: nothing can be sent.
        """
        self._instance.check_running()
        routes = self._instance.routes
        route = await routes.find_for_sending(
            topic, new_topic_queues=self._settings.new_topic_queues, timeout=timeout
        )
        if not route.publish_queues:
            route = await routes.refresh_old(topic, timeout=timeout) or route
        if not route.publish_queues:
            if not route.ordered and len(route.masters()) < len(route.brokers):
                raise NoMasterError(f"no broker of {topic} has a master now")
            reason = (
                "its order configuration at the name servers names no queue, expected broker:queues"
                if route.ordered
                else "it has no writable queue"
            )
            raise TopicNotFoundError(topic, reason)
        return route

    async def queues(self, topic: str, timeout: float) -> list[MessageQueue]:
        """Return the queues of a topic that can be sent to, as applications know them."""
        route = await self.route(self._namespace.wrap_topic(topic), timeout)
        return list(map(self._namespace.unwrap_queue, route.publish_queues))

    async def ensure_known(self, topic: str, timeout: float) -> None:
        """Send a heartbeat to the topic's brokers, unless they know this client; or time out.

        Raises:
            ClientClosedError, TopicNotFoundError, NameServerError: there are no such brokers.
        """
        deadline = loop_time() + timeout
        route = await self.route(self._namespace.wrap_topic(topic), timeout)
        for address in route.masters():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._instance.ensure_heartbeat(address)

    async def master_of(self, queue: MessageQueue, timeout: float) -> tuple[str, str]:
        """Return the address and the name of the broker that serves a queue.

        Raises:
            NoMasterError: it has no master now.
        """
        return await self.master(self._namespace.wrap_queue(queue), loop_time() + timeout)

    async def master(self, queue: MessageQueue, deadline: float) -> tuple[str, str]:
        """Return the address of the broker that serves a queue, and its name."""
        routes = self._instance.routes
        route = routes.known(queue.topic)
        address = _master_in(route, queue)
        if address is None:
            route = await routes.refresh_old(queue.topic, timeout=seconds_left(deadline))
            address = _master_in(route, queue)
        if address is None or route is None:
            raise NoMasterError(f"broker {queue.broker_name} has no master now")
        return address, route.physical(queue)

    def refresh_soon(self, topic: str) -> None:
        """Fetch the topic's route again for later sends, unless it is new."""
        self._instance.routes.refresh_soon(topic)

    async def refresh_old(self, topic: str, deadline: float) -> None:
        """Fetch the topic's route again unless it is new: a broker may be back elsewhere."""
        await self._instance.routes.refresh_old(topic, timeout=seconds_left(deadline))

    def next(self, route: Route, avoid: Collection[str] = ()) -> MessageQueue:
        """Choose a queue by the newest route, if possible on no broker of ``avoid``."""
        newest = self._instance.routes.known(route.topic) or route
        return self.picker(route.topic).pick(
            newest.publish_queues or route.publish_queues, avoid=avoid, now_s=loop_time()
        )

    def picker(self, topic: str) -> QueuePicker:
        """Return the picker of a topic's queues, by its name on the wire."""
        picker = self._pickers.get(topic)
        if picker is None:
            picker = self._pickers[topic] = QueuePicker(self.latency)
        return picker

    def fixed_queue(
        self, outgoing: Outgoing, route: Route, target: SendTarget
    ) -> MessageQueue | None:
        """Return the queue that the caller or its selector chose, or None for any.

        Raises:
            QueueNotFoundError: the topic has no such queue; nothing was sent.
        """
        if target.queue is not None:
            queue = self._namespace.wrap_queue(target.queue)
            if queue.topic != outgoing.topic:
                raise QueueNotFoundError(
                    f"{target.queue} is not a queue of {outgoing.message.topic}"
                )
            return queue
        if target.selector is None:
            return None
        queues = tuple(map(self._namespace.unwrap_queue, route.publish_queues))
        message = msgspec.structs.replace(outgoing.message)
        return self._namespace.wrap_queue(chosen(target.selector, queues, message))

    def lacks(self, queue: MessageQueue) -> bool:
        """Whether the topic is known to have no such queue to write to."""
        route = self._instance.routes.known(queue.topic)
        return route is not None and queue not in route.publish_queues


def _master_in(route: Route | None, queue: MessageQueue) -> str | None:
    return route.master(queue) if route is not None else None
