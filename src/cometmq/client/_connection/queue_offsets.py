"""PushRequestHandlers about queues, by queue: where it begins and ends, where a group stands in it.

Finds the broker of a queue by the topic's route, then asks it. Source: MQAdminImpl and
RemoteBrokerOffsetStore, RocketMQ 5.3.
"""

from __future__ import annotations

from typing import NamedTuple

from cometmq.client._connection.broker_calls import BrokerCalls
from cometmq.client._connection.routes import MASTER_ID, Routes
from cometmq.client.errors import QueueNotFoundError
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue


class QueueBounds(NamedTuple):
    """The bounds of a queue.

    Example:
        bounds: QueueBounds = await consumer.bounds(queue)
        print(bounds.max_offset - bounds.min_offset)
    """

    min_offset: QueueOffset
    """The offset of the oldest stored message."""
    max_offset: QueueOffset
    """The offset of the next message."""


class QueueOffsets:
    """Asks the brokers of queues about offsets."""

    def __init__(self, routes: Routes, brokers: BrokerCalls) -> None:
        self._routes = routes
        self._brokers = brokers

    async def address(self, queue: MessageQueue, broker_id: int = MASTER_ID) -> str:
        """Return the address to ask about a queue, a slave's if there is no master now.

        Raises:
            TopicNotFoundError: no broker has the topic.
            QueueNotFoundError: no broker has this queue now.
            NameServerError: the route is unknown and no name server responded.
        """
        route = await self._routes.find(queue.topic)
        address = route.readable(queue, broker_id)
        if address is None:
            newest = await self._routes.refresh(queue.topic)
            address = newest.readable(queue, broker_id) if newest else None
        if address is None:
            raise QueueNotFoundError(f"no broker {queue.broker_name} serves {queue.topic} now")
        return address

    async def bounds(self, queue: MessageQueue) -> QueueBounds:
        """Return the queue's oldest offset and the one its next message will have."""
        address = await self.address(queue)
        lowest = await self._brokers.min_offset(address, queue)
        return QueueBounds(lowest, await self._brokers.max_offset(address, queue))

    async def at_time(self, queue: MessageQueue, timestamp_ms: int) -> QueueOffset:
        """Return the offset of the first message stored at or after a time, in ms since 1970."""
        return await self._brokers.offset_at_time(await self.address(queue), queue, timestamp_ms)

    async def committed(
        self, group: str, queue: MessageQueue, *, zero_if_unknown: bool = True
    ) -> QueueOffset | None:
        """Return the offset a group has committed, or None if there is none."""
        address = await self.address(queue)
        return await self._brokers.committed(address, group, queue, zero_if_unknown=zero_if_unknown)

    async def commit(self, group: str, queue: MessageQueue, offset: QueueOffset) -> None:
        """Store the offset of the next message that a group has to see."""
        await self._brokers.commit(await self.address(queue), group, queue, offset)
