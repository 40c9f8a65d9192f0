"""Requests queue lists, bounds, offsets by time and committed offsets.

Each question goes to all brokers at once, and to each broker in one round. Where a topic's
statistics answer it, one request per topic and broker is enough.

Source: MQAdminImpl and DefaultMQAdminExtImpl, RocketMQ 5.3, for the requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from cometmq.client.filters import Filter
from cometmq.client.library import LOGICAL_PREFIX, ClientConnection, Pull
from cometmq.model.errors import ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.protocol.bodies.common import TopicList
from cometmq.protocol.bodies.group import ConsumerOffsetSerializeWrapper
from cometmq.protocol.bodies.topic import TopicOffset, TopicStatsTable
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.topic import GetTopicStatsInfoRequest
from cometmq.spark.brokers.retry_policy import AwayError, is_passing
from cometmq.spark.brokers.routes import (
    QueueRoutes,
    RouteFinder,
    ask_each,
    ask_master,
    ask_one_of,
    keys_of,
    masters_first,
    queue_of,
)
from cometmq.spark.brokers.times import PULL_S, first_at_or_after
from cometmq.spark.offsets import Bounds, QueueKey


class StoreTimes(NamedTuple):
    """When two messages of a queue were stored, in ms since 1970."""

    at: int
    """The time of the message at the offset."""
    following: int
    """The time of the next one; 0 if there is none, or the broker did not return it."""


class Sample(NamedTuple):
    """The first messages of a queue behind an offset."""

    stored_ms: int
    """The store time of the first one, in ms since 1970."""
    size: float
    """Their mean size in bytes, as they are stored."""


class Metadata:
    """Sends the requests of `BrokerSession` once; `RetryPolicy` repeats them.

    Every method raises `RemotingError` when a server did not answer and `ResponseError` when one
    refused. A replica that answers instead of a master that has to is an `AwayError`.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.finder = RouteFinder(connection)

    async def topics(self) -> list[str]:
        """Give the names of all topics, sorted."""
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        answer = await self._connection.call_name_server(code)
        return sorted(TopicList.decode(answer.body).topic_list)

    async def queues(self, topics: Iterable[str]) -> dict[str, list[QueueKey] | None]:
        """Give the readable queues of each topic, None for a topic that does not exist.

        Where no broker at all is registered, as while the only one restarts, nothing is known.
        """
        routes = await self.finder.routes(topics)
        if None in routes.values() and not (await self.finder.cluster()).broker_addr_table:
            raise AwayError("no broker is registered with the name server now")
        return {topic: keys_of(route) if route else None for topic, route in routes.items()}

    async def bounds(
        self, routes: QueueRoutes, *, masters_only: bool = False
    ) -> dict[QueueKey, Bounds]:
        """Give what each queue holds, and whether its master said so."""
        stats = await self._stats(routes)
        rest = [key for key in routes.addresses if key not in stats]
        found = {
            key: Bounds(
                each.min_offset,
                each.max_offset,
                address == routes.master(key),
                each.last_update_timestamp,
            )
            for key, (address, each) in stats.items()
        }
        found.update(await ask_each(rest, lambda key: self._bounds_of(routes, key)))
        for key in sorted(found):
            if masters_only and not found[key].master:
                raise AwayError(
                    f"{key}: the master of {key.broker} does not respond, and a replica may keep"
                    " messages for a shorter time: expected the master, to read from its oldest"
                    " message"
                )
        return found

    async def _stats(self, routes: QueueRoutes) -> dict[QueueKey, tuple[str, TopicOffset]]:
        """Give what topics' statistics say of queues, and the address of the broker that answered.

        Some brokers do not tell of all queues.
        """
        groups: dict[tuple[str, tuple[str, ...]], list[QueueKey]] = {}
        for key, addresses in routes.addresses.items():
            groups.setdefault((key.topic, addresses), []).append(key)
        tables = await ask_each(list(groups), lambda group: self._table(*group))
        found: dict[QueueKey, tuple[str, TopicOffset]] = {}
        for group, keys in groups.items():
            address, table = tables[group]
            for key in keys:
                if table is None and address != routes.master(key):
                    raise AwayError(f"{key}: the master of {key.broker} does not respond")
                if table is None:
                    routes.lose(key, f"the topic does not exist on {key.broker}")
                elif key in table:
                    found[key] = address, table[key]
        return found

    async def at_time(
        self, routes: QueueRoutes, times: Mapping[QueueKey, int]
    ) -> dict[QueueKey, int]:
        """Give the first offset stored at or after a time in ms, the end where there is none."""
        return await ask_each(
            list(routes.addresses), lambda key: self._at_time(routes, key, times[key])
        )

    async def store_times(
        self, routes: QueueRoutes, offsets: Mapping[QueueKey, int], group: str
    ) -> dict[QueueKey, StoreTimes]:
        """Give the store times; queues of static topics, whose messages move, are left out."""
        keys = [key for key in routes.addresses if not key.broker.startswith(LOGICAL_PREFIX)]
        pulled = await self._pulled(routes, keys, offsets, group, 2)
        return {
            key: StoreTimes(
                messages[0].store_time_ms, messages[1].store_time_ms if len(messages) > 1 else 0
            )
            for key, messages in pulled.items()
            if messages and messages[0].queue_offset == offsets[key]
        }

    async def samples(
        self, routes: QueueRoutes, offsets: Mapping[QueueKey, int], group: str, messages: int
    ) -> dict[QueueKey, Sample]:
        """Give the store time and the mean size of the messages of each queue from an offset on."""
        pulled = await self._pulled(routes, routes.addresses, offsets, group, messages)
        return {
            key: Sample(found[0].store_time_ms, sum(each.size_bytes for each in found) / len(found))
            for key, found in pulled.items()
            if found
        }

    async def _pulled(
        self,
        routes: QueueRoutes,
        keys: Iterable[QueueKey],
        offsets: Mapping[QueueKey, int],
        group: str,
        most: int,
    ) -> dict[QueueKey, list[StoredMessage]]:
        """Give the messages of one pull of each queue; none if the broker refuses it."""

        async def pull(key: QueueKey) -> list[StoredMessage]:
            wanted = Pull(group, queue_of(key), Filter(), max_messages=most)

            async def ask(address: str) -> list[StoredMessage]:
                offset = QueueOffset(offsets[key])
                return (
                    await self._connection.pull(address, wanted, offset, timeout=PULL_S)
                ).messages

            try:
                return await ask_one_of(routes.addresses[key], ask)
            except ResponseError as error:
                if is_passing(error):
                    raise
                return []

        return await ask_each(list(keys), pull)

    async def committed(self, routes: QueueRoutes, group: str) -> dict[QueueKey, int]:
        """Give what a group has committed.

        The table of all offsets is asked for, since old brokers answer 0 to a question about a
        group that they do not know.
        """
        one_of_each = {routes.master(key): key for key in routes.addresses}
        tables = await ask_each(
            one_of_each.values(), lambda key: self._offsets_or_none(routes, key)
        )
        found: dict[QueueKey, int] = {}
        closed: list[QueueKey] = []
        for key in routes.addresses:
            table = tables[one_of_each[routes.master(key)]]
            if table is None:
                closed.append(key)
            elif key.queue_id in (known := table.get((key.topic, group), {})):
                found[key] = known[key.queue_id]
        told = await ask_each(closed, lambda key: self._committed(routes, group, key))
        return found | {key: offset for key, offset in told.items() if offset is not None}

    async def commit(
        self, routes: QueueRoutes, group: str, offsets: Mapping[QueueKey, int]
    ) -> None:
        """Store a group's offsets."""

        async def store(key: QueueKey) -> None:
            address, offset = routes.addresses[key][0], QueueOffset(offsets[key])
            try:
                await self._connection.commit(address, group, queue_of(key), offset)
            except ResponseError as error:
                if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                    raise
                await self._introduce(address, group, key)
                await self._connection.commit(address, group, queue_of(key), offset)

        await ask_each(list(routes.addresses), store)

    async def _introduce(self, address: str, group: str, key: QueueKey) -> None:
        """Let a broker that makes groups by itself make this one: it does when they pull."""
        pull = Pull(group, queue_of(key), Filter(), max_messages=1)
        await self._connection.pull(address, pull, QueueOffset(0), timeout=PULL_S)

    async def group_offsets(self, broker: str) -> dict[tuple[str, str], dict[int, int]]:
        """Give every offset that a broker keeps: topic and group, queue, offset."""
        data = (await self.finder.cluster()).broker_addr_table.get(broker)
        if data is None:
            raise AwayError(f"{broker} is not registered with the name server now")
        return await ask_one_of(masters_first(data.broker_addrs), self.offset_tables)

    async def offset_tables(self, address: str) -> dict[tuple[str, str], dict[int, int]]:
        """Give every offset that a broker keeps: topic and group, queue, offset."""
        answer = await self._connection.call_broker(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        table = ConsumerOffsetSerializeWrapper.decode(answer.body).offset_table
        found = {}
        for name, queues in table.items():
            topic, at, group = name.partition("@")
            if at and "@" not in group:
                found[topic, group] = queues
        return found

    async def _offsets_or_none(
        self, routes: QueueRoutes, key: QueueKey
    ) -> dict[tuple[str, str], dict[int, int]] | None:
        """Give every offset that a broker keeps, None if it does not show them to this account."""
        try:
            return await ask_master(routes, key, self.offset_tables)
        except ResponseError as error:
            if error.code in _SAYS_LITTLE:
                return None
            raise

    async def _committed(self, routes: QueueRoutes, group: str, key: QueueKey) -> int | None:
        async def ask(address: str) -> int | None:
            return await self._connection.committed(
                address, group, queue_of(key), zero_if_unknown=False
            )

        return await ask_master(routes, key, ask)

    async def _table(
        self, topic: str, addresses: tuple[str, ...]
    ) -> tuple[str, dict[QueueKey, TopicOffset] | None]:
        """Give who answered, and what a topic holds, perhaps in part; None for no such topic."""

        async def ask(address: str) -> tuple[str, dict[QueueKey, TopicOffset] | None]:
            header = GetTopicStatsInfoRequest(topic=topic)
            code = RequestCode.GET_TOPIC_STATS_INFO
            try:
                answer = await self._connection.call_broker(address, code, header)
            except ResponseError as error:
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    return address, None
                if error.code in _SAYS_LITTLE:
                    return address, {}
                raise
            table = TopicStatsTable.decode(answer.body).offset_table
            return address, {
                QueueKey(topic, q.broker_name, q.queue_id): each for q, each in table.items()
            }

        return await ask_one_of(addresses, ask)

    async def _bounds_of(self, routes: QueueRoutes, key: QueueKey) -> Bounds:
        async def ask(address: str) -> Bounds:
            lowest = await self._connection.min_offset(address, queue_of(key))
            highest = await self._connection.max_offset(address, queue_of(key))
            return Bounds(lowest, highest, address == routes.master(key))

        return await ask_one_of(routes.addresses[key], ask)

    async def _at_time(self, routes: QueueRoutes, key: QueueKey, time_ms: int) -> int:
        return await ask_master(
            routes,
            key,
            lambda address: first_at_or_after(self._connection, address, queue_of(key), time_ms),
        )


_SAYS_LITTLE: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.NO_PERMISSION,
    }
)
"""Answers of brokers that do not show a table to this account; the first one is that of 4.9."""
