"""Where a message goes: the topic's route, the queue whose turn it is, the broker that serves it.

Source: DefaultMQProducerImpl.tryToFindTopicPublishInfo and MQFaultStrategy, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

import msgspec

from cometmq.client._connection.instance import ClientInstance
from cometmq.client._connection.routes import Route
from cometmq.client._sending.broker_latency import LatencyTable
from cometmq.client._sending.outgoing import Outgoing
from cometmq.client._sending.queue_picker import QueuePicker, QueueSelector, chosen
from cometmq.client._sending.retry_policy import NoMasterError
from cometmq.client.errors import QueueNotFoundError, TopicNotFoundError
from cometmq.client.settings import ProducerSettings
from cometmq.model.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class SendTarget:
    """Where a message is to go, if its sender says so."""

    queue: MessageQueue | None = None
    selector: QueueSelector | None = None


ANY_QUEUE = SendTarget()


class Destinations:
    """Finds queues and brokers for one producer.

    Args:
        instance: routes and connections.
        settings: what counts in the choice.
    """

    def __init__(self, instance: ClientInstance, settings: ProducerSettings) -> None:
        self._instance = instance
        self._namespace = instance.namespace
        self._settings = settings
        self._turns: dict[str, QueuePicker] = {}
        self.latency = (
            LatencyTable.of_line(settings.rocketmq_version) if settings.latency_avoidance else None
        )
        """How the brokers did of late, if they are avoided for it."""

    async def route(self, topic: str, timeout: float) -> Route:
        """Give the topic's route, which has queues to write to.

        Raises:
            ClientClosedError, TopicNotFoundError, NameServerError: nothing can be sent.
        """
        self._instance.check_running()
        route = await self._instance.routes.find_for_sending(
            topic, new_topic_queues=self._settings.new_topic_queues, timeout=timeout
        )
        if not route.publish_queues:
            raise TopicNotFoundError(topic, "it has no writable queue")
        return route

    async def queues(self, topic: str, timeout: float) -> list[MessageQueue]:
        """Give the queues of a topic that can be sent to, as applications know them."""
        route = await self.route(self._namespace.wrap_topic(topic), timeout)
        return list(map(self.shown, route.publish_queues))

    async def introduce(self, topic: str, timeout: float) -> None:
        """Return once the topic's brokers know this client, or time is up.

        Raises:
            ClientClosedError, TopicNotFoundError, NameServerError: there are no such brokers.
        """
        deadline = _now() + timeout
        route = await self.route(self._namespace.wrap_topic(topic), timeout)
        for address in route.masters():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._instance.ensure_heartbeat(address)

    async def master_of(self, queue: MessageQueue, timeout: float) -> tuple[str, str]:
        """Give the address and the name of the broker that serves a queue.

        Raises:
            NoMasterError: it has no master now.
        """
        return await self.master(self.on_wire(queue), _now() + timeout)

    async def master(self, target: MessageQueue, deadline: float) -> tuple[str, str]:
        """Give the address of the broker that serves a queue, and its name."""
        routes = self._instance.routes
        route = routes.known(target.topic)
        address = _master_in(route, target)
        if address is None:
            left_s = max(deadline - _now(), 0.001)
            route = await routes.refresh(target.topic, timeout=left_s)
            address = _master_in(route, target)
        if address is None or route is None:
            raise NoMasterError(f"broker {target.broker_name} has no master now")
        return address, route.physical(target)

    def next(self, route: Route, avoid: str | None) -> MessageQueue:
        """Choose a queue by the newest route, on another broker than the last try if possible."""
        newest = self._instance.routes.known(route.topic) or route
        return self.turn(route.topic).pick(
            newest.publish_queues or route.publish_queues, avoid_broker=avoid, now_s=_now()
        )

    def turn(self, topic: str) -> QueuePicker:
        """Give whose turn it is among the queues of a topic, by its name on the wire."""
        turn = self._turns.get(topic)
        if turn is None:
            turn = self._turns[topic] = QueuePicker(self.latency)
        return turn

    def fixed_queue(
        self, outgoing: Outgoing, route: Route, place: SendTarget
    ) -> MessageQueue | None:
        """Give the queue that the caller said or has its selector pick, or None for any.

        Raises:
            QueueNotFoundError: the topic has no such queue; nothing was sent.
        """
        if place.queue is not None:
            queue = self.on_wire(place.queue)
            if queue.topic != outgoing.topic:
                raise QueueNotFoundError(
                    f"{place.queue} is not a queue of {outgoing.message.topic}"
                )
            return queue
        if place.selector is None:
            return None
        queues = tuple(map(self.shown, route.publish_queues))
        message = msgspec.structs.replace(outgoing.message)
        return self.on_wire(chosen(place.selector, queues, message))

    def on_wire(self, queue: MessageQueue) -> MessageQueue:
        """Give a queue as brokers know it."""
        if not self._namespace:
            return queue
        topic = self._namespace.wrap_topic(queue.topic)
        return MessageQueue(topic, queue.broker_name, queue.queue_id)

    def shown(self, queue: MessageQueue) -> MessageQueue:
        """Give a queue as applications know it."""
        if not self._namespace:
            return queue
        topic = self._namespace.unwrap(queue.topic)
        return MessageQueue(topic, queue.broker_name, queue.queue_id)


def _master_in(route: Route | None, target: MessageQueue) -> str | None:
    return route.master(target) if route is not None else None


def _now() -> float:
    return asyncio.get_running_loop().time()
