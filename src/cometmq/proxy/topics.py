"""Routes, assignments, and the settings of topics and groups, which are kept for seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from cometmq.client import AdminClient
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import DLQ_PREFIX, RETRY_PREFIX, Perm
from cometmq.protocol.bodies.route import MASTER_ID, QueueData, TopicRouteData
from cometmq.protocol.codes import ResponseCode
from cometmq.proxy.checks import group_of, topic_of
from cometmq.proxy.conversion import MessageType
from cometmq.proxy.messages import TYPES
from cometmq.proxy.status import OK, Code, StatusError

T = TypeVar("T")
ROUTE_S, SETTINGS_S = 1.0, 10.0
"""How long routes, and settings of topics and groups, are kept."""
KEPT_MAX = 20_000
READ, WRITE, READ_WRITE = 2, 3, 4
"""Permissions of queues."""
MIXED = "MIXED"
ANY_QUEUE = -1
ATTRIBUTE = "message.type"
IPV4, DOMAIN_NAME = 1, 3


class _Kept(Generic[T]):
    """Values by name, each read at most once in some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._values: dict[str, tuple[float, asyncio.Future[T]]] = {}

    async def get(self, name: str, read: Callable[[], Awaitable[T]]) -> T:
        """Return a value; a failure is not kept."""
        kept, now = self._values.get(name), time.monotonic()
        if kept is None or now - kept[0] > self._seconds:
            if len(self._values) >= KEPT_MAX:
                self._values.clear()
            kept = self._values[name] = now, asyncio.ensure_future(read())
        try:
            return await asyncio.shield(kept[1])
        except CometError:
            if self._values.get(name) is kept:
                del self._values[name]
            raise


class Topics:
    """Answers for routes and settings.

    Args:
        admin: the client of the cluster.
        address: ``host`` and port for clients that do not say where they connect.
    """

    def __init__(self, admin: AdminClient, address: tuple[str, int]) -> None:
        self._admin = admin
        self._address = address
        self._routes: _Kept[TopicRouteData] = _Kept(ROUTE_S)
        self._types: _Kept[str] = _Kept(SETTINGS_S)
        self._groups: _Kept[SubscriptionGroupConfig] = _Kept(SETTINGS_S)

    async def route(self, topic: str) -> TopicRouteData:
        """Return the route of a topic.

        Raises:
            StatusError: there is none.
        """
        try:
            return await self._routes.get(topic, lambda: self._admin.route(topic))
        except ResponseError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise StatusError(Code.TOPIC_NOT_FOUND, f"there is no topic {topic}") from None
            raise

    async def type_of(self, topic: str) -> str:
        """Return the type of messages that a topic takes; NORMAL if it says nothing."""
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return MIXED

        async def read() -> str:
            configs = await self._admin.topic_configs(topic)
            types = {each.attributes.get(ATTRIBUTE, "") for each in configs.values()}
            return min(filter(None, types), default=MessageType.NORMAL.name)

        return await self._types.get(topic, read)

    async def group(self, name: str, topics: list[str]) -> SubscriptionGroupConfig:
        """Return the settings of a group, of the first broker of its topics that has some."""

        async def read() -> SubscriptionGroupConfig:
            for topic in topics:
                try:
                    route = await self.route(topic)
                except StatusError:
                    continue
                for broker in route.broker_datas:
                    address = broker.broker_addrs.get(MASTER_ID)
                    found = address and await self._admin.group_config(name, address)
                    if found:
                        return found
            return SubscriptionGroupConfig(group_name=name)

        return await self._groups.get(name, read)

    async def check_type(self, topic: str, sent: MessageType) -> None:
        """Check that a topic takes messages of a type.

        Raises:
            StatusError: it does not.
        """
        wanted = await self.type_of(topic)
        if wanted not in (MIXED, sent.name):
            raise StatusError(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"topic {topic} takes messages of type {wanted}, this one is {sent.name}",
            )

    async def query_route(self, request: Any) -> Any:
        """QueryRoute."""
        topic = topic_of(request.topic)
        route, kind = await self.route(topic), await self.type_of(topic)
        types = (
            list(MessageType)
            if kind == MIXED
            else [MessageType.__members__.get(kind, MessageType.NORMAL)]
        )
        endpoints = self._endpoints(request.endpoints)
        response = TYPES["QueryRouteResponse"](status=OK)
        brokers = {each.broker_name: each for each in route.broker_datas}
        for data in sorted(route.queue_datas, key=lambda each: each.broker_name):
            broker = brokers.get(data.broker_name)
            for broker_id in sorted(broker.broker_addrs) if broker else ():
                numbers = 0
                for permission, count in _counts(data):
                    for number in range(numbers, numbers + count):
                        queue = response.message_queues.add(id=number, permission=permission)
                        queue.topic.CopyFrom(request.topic)
                        queue.broker.name, queue.broker.id = data.broker_name, broker_id
                        queue.broker.endpoints.CopyFrom(endpoints)
                        queue.accept_message_types.extend(types)
                    numbers += count
        if not response.message_queues:
            raise StatusError(Code.TOPIC_NOT_FOUND, f"no broker has topic {topic}")
        return response

    async def query_assignment(self, request: Any) -> Any:
        """QueryAssignment."""
        topic, group = topic_of(request.topic), group_of(request.group)
        route = await self.route(topic)
        settings = await self.group(group, [topic])
        endpoints = self._endpoints(request.endpoints)
        response = TYPES["QueryAssignmentResponse"](status=OK)
        masters = {
            each.broker_name for each in route.broker_datas if MASTER_ID in each.broker_addrs
        }
        for data in sorted(route.queue_datas, key=lambda each: each.broker_name):
            is_readable = data.perm & Perm.READ and data.read_queue_nums > 0
            if not is_readable or data.broker_name not in masters:
                continue
            numbers = range(data.read_queue_nums) if settings.consume_message_orderly else [-1]
            for number in numbers:
                queue = response.assignments.add().message_queue
                queue.topic.CopyFrom(request.topic)
                queue.id = number
                queue.permission = READ_WRITE if data.perm & Perm.WRITE else READ
                queue.broker.name, queue.broker.id = data.broker_name, MASTER_ID
                queue.broker.endpoints.CopyFrom(endpoints)
        if not response.assignments:
            raise StatusError(Code.FORBIDDEN, f"topic {topic} has no readable queue")
        return response

    def _endpoints(self, given: Any) -> Any:
        """Return where clients send the rest: to where they have sent this."""
        if given.addresses:
            return given
        host, port = self._address
        made = TYPES["Endpoints"](scheme=IPV4 if host[:1].isdecimal() else DOMAIN_NAME)
        made.addresses.add(host=host, port=port)
        return made


def _counts(data: QueueData) -> list[tuple[int, int]]:
    """Return how many queues there are with each permission, in the order of their numbers."""
    reads, writes = bool(data.perm & Perm.READ), bool(data.perm & Perm.WRITE)
    if reads and writes:
        both = min(data.read_queue_nums, data.write_queue_nums)
        return [
            (READ, data.read_queue_nums - both), (WRITE, data.write_queue_nums - both),
            (READ_WRITE, both),
        ]  # fmt: skip
    if writes:
        return [(WRITE, data.write_queue_nums)]
    return [(READ, data.read_queue_nums)] if reads else []
