"""Small requests to brokers, typed: groups, heartbeats, offsets and bounds of queues.

`BrokerCalls` sends one request to one address; `QueueOffsets` finds the broker of a queue first.
Both raise `ResponseError` when the broker refuses.

Source: MQClientAPIImpl and MQAdminImpl, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, TypeVar

from cometmq.client._connection.routes import MASTER_ID, Routes
from cometmq.client.errors import QueueNotFoundError
from cometmq.model.errors import ResponseError
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.group import GetConsumerListByGroupResponseBody
from cometmq.protocol.bodies.heartbeat import HeartbeatData
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.base import Header
from cometmq.protocol.headers.consumer import GetConsumerListByGroupRequest, UnregisterClientRequest
from cometmq.protocol.headers.offset import (
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    GetMinOffsetRequest,
    GetMinOffsetResponse,
    QueryConsumerOffsetRequest,
    QueryConsumerOffsetResponse,
    SearchOffsetByTimestampRequest,
    SearchOffsetByTimestampResponse,
    UpdateConsumerOffsetRequest,
)
from cometmq.remoting import RemotingClient, check

T = TypeVar("T")


class BrokerCalls:
    """Sends requests to brokers. Each call has this timeout unless it has its own."""

    def __init__(self, remoting: RemotingClient, *, timeout: float) -> None:
        self._remoting = remoting
        self._timeout = timeout

    async def call(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout: float | None = None,
    ) -> Command:
        """Send a request and return the response if it is a success.

        Raises:
            ResponseError: the broker refused; ``address`` names it.
            RemotingError: no response.
        """
        response = await self.call_raw(address, code, header, body, timeout=timeout)
        try:
            return check(response)
        except ResponseError as error:
            error.address = address
            raise

    async def call_raw(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout: float | None = None,
    ) -> Command:
        """Send a request and return the response with any code.

        Raises:
            RemotingError: no response.
        """
        wait = self._timeout if timeout is None else timeout
        return await self._remoting.call(address, code, header, body, timeout=wait)

    async def connect(self, address: str) -> None:
        """Open a connection to a broker, unless there is one.

        Raises:
            RemotingError: it cannot be reached.
        """
        await self._remoting.connection(address, timeout=self._timeout)

    async def heartbeat(self, address: str, data: HeartbeatData) -> Command:
        """Send the heartbeat of this client's producers and consumers."""
        return await self.call(address, RequestCode.HEART_BEAT, body=data.encode())

    async def members(self, address: str, group: str) -> list[str]:
        """Return the client ids of a consumer group's members, as this broker knows them.

        Raises:
            ResponseError: it knows no member.
        """
        header = GetConsumerListByGroupRequest(consumer_group=group)
        response = await self.call(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        return GetConsumerListByGroupResponseBody.decode(response.body).consumer_id_list

    async def unregister(
        self, address: str, client_id: str, group: str, *, producing: bool
    ) -> None:
        """Unregister a producer group or a consumer group of this client."""
        header = UnregisterClientRequest(
            client_id=client_id,
            producer_group=group if producing else None,
            consumer_group=None if producing else group,
        )
        await self.call(address, RequestCode.UNREGISTER_CLIENT, header)

    async def committed(
        self, address: str, group: str, queue: MessageQueue, *, zero_if_unknown: bool = True
    ) -> QueueOffset | None:
        """Return the committed offset of a group in a queue, or None if there is none.

        A broker gives 0 for a group it does not know while the queue's first message is still in
        memory, unless ``zero_if_unknown`` is False.
        """
        header = QueryConsumerOffsetRequest(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=None if zero_if_unknown else False,
        )
        try:
            response = await self.call(address, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except ResponseError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return QueueOffset(response.header(QueryConsumerOffsetResponse).offset)

    async def commit(
        self, address: str, group: str, queue: MessageQueue, offset: QueueOffset
    ) -> None:
        """Commit the offset of the next message that a group consumes."""
        header = UpdateConsumerOffsetRequest(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
        )
        await self.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def max_offset(self, address: str, queue: MessageQueue) -> QueueOffset:
        """Return the offset of the queue's next message."""
        header = GetMaxOffsetRequest(topic=queue.topic, queue_id=queue.queue_id)
        response = await self.call(address, RequestCode.GET_MAX_OFFSET, header)
        return QueueOffset(response.header(GetMaxOffsetResponse).offset)

    async def min_offset(self, address: str, queue: MessageQueue) -> QueueOffset:
        """Return the offset of the oldest stored message."""
        header = GetMinOffsetRequest(topic=queue.topic, queue_id=queue.queue_id)
        response = await self.call(address, RequestCode.GET_MIN_OFFSET, header)
        return QueueOffset(response.header(GetMinOffsetResponse).offset)

    async def offset_at_time(
        self, address: str, queue: MessageQueue, timestamp_ms: int
    ) -> QueueOffset:
        """Return the offset of the first message stored at or after a time."""
        header = SearchOffsetByTimestampRequest(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms
        )
        response = await self.call(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return QueueOffset(response.header(SearchOffsetByTimestampResponse).offset)


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
    """Reads and commits offsets at the brokers of queues."""

    def __init__(self, routes: Routes, brokers: BrokerCalls) -> None:
        self._routes = routes
        self._brokers = brokers

    async def address(self, queue: MessageQueue, broker_id: int = MASTER_ID) -> str:
        """Return the address of a queue's broker, of a slave if there is no master now.

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

    async def _at_broker(self, queue: MessageQueue, request: Callable[[str], Awaitable[T]]) -> T:
        """Send a request to a queue's broker; again if the queue has moved to another one."""
        try:
            return await request(await self.address(queue))
        except ResponseError as error:
            if error.code != ResponseCode.NOT_LEADER_FOR_QUEUE:
                raise
            if not await self._routes.has_moved(queue):
                raise
        return await request(await self.address(queue))

    async def bounds(self, queue: MessageQueue) -> QueueBounds:
        """Return the queue's oldest offset and the one its next message will have."""
        lowest = await self._at_broker(queue, partial(self._brokers.min_offset, queue=queue))
        highest = await self._at_broker(queue, partial(self._brokers.max_offset, queue=queue))
        return QueueBounds(lowest, highest)

    async def at_time(self, queue: MessageQueue, timestamp_ms: int) -> QueueOffset:
        """Return the offset of the first message stored at or after a time, in ms since 1970."""
        search = partial(self._brokers.offset_at_time, queue=queue, timestamp_ms=timestamp_ms)
        return await self._at_broker(queue, search)

    async def committed(
        self, group: str, queue: MessageQueue, *, zero_if_unknown: bool = True
    ) -> QueueOffset | None:
        """Return the offset a group has committed, or None if there is none."""
        query = partial(
            self._brokers.committed, group=group, queue=queue, zero_if_unknown=zero_if_unknown
        )
        return await self._at_broker(queue, query)

    async def commit(self, group: str, queue: MessageQueue, offset: QueueOffset) -> None:
        """Commit the offset of the next message that a group consumes."""
        await self._at_broker(
            queue, partial(self._brokers.commit, group=group, queue=queue, offset=offset)
        )
