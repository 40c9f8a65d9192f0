"""Manages topics and looks into a cluster.

Source: DefaultMQAdminExt, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cometmq.client.config import ClientSettings
from cometmq.client.errors import ClientError
from cometmq.client.instance import ClientInstance
from cometmq.client.lifetime import Lifetime
from cometmq.client.queue_offsets import QueueBounds, QueueOffsets
from cometmq.client.registry import lease
from cometmq.client.routes import MASTER_ID
from cometmq.model.errors import ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import TEMPLATE_TOPIC, Perm, check_topic_name
from cometmq.protocol.bodies import ClusterInfo, KVTable, TopicList, TopicOffset, TopicStatsTable
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import (
    DeleteTopicInBrokerRequest,
    DeleteTopicInNamesrvRequest,
    GetTopicStatsInfoRequest,
    Header,
    QueryMessageRequest,
    UpdateAndCreateTopicRequest,
    ViewMessageByIdRequest,
)
from cometmq.protocol.message_id import decode_offset_id
from cometmq.protocol.record import decode_messages
from cometmq.remoting import check

READ_WRITE = Perm.READ | Perm.WRITE
FOUND_MAX = 64


class AdminClient(Lifetime):
    """Creates and deletes topics, and tells how a cluster stands.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses.
        client: settings of its connections.
        instance: share these connections instead of opening own ones; the caller starts and
            closes them.

    Every method raises `ResponseError` when a server refuses and `RemotingError` when none answers.
    Example: ``async with AdminClient("127.0.0.1:9876") as admin: await admin.create_topic("t")``
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] = (),
        *,
        client: ClientSettings | None = None,
        instance: ClientInstance | None = None,
    ) -> None:
        self._lease = lease(name_servers, settings=client, instance=instance)
        self._instance = self._lease.instance
        self._offsets = QueueOffsets(self._instance.routes, self._instance.brokers)

    async def start(self) -> None:
        """Make the client ready; connects to nobody yet."""
        await self._lease.open()

    async def close(self) -> None:
        """Close the connections."""
        await self._lease.close()

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        perm: int = READ_WRITE,
        brokers: Iterable[str] | None = None,
    ) -> list[MessageQueue]:
        """Create a topic, or change it if it exists.

        Args:
            topic: the name; at most 127 of the characters ``%|a-zA-Z0-9_-``.
            queues: queues on each broker, for reading and writing.
            perm: sum of `Perm` bits.
            brokers: names of the brokers that are to have it; None for all of the cluster.

        Returns:
            The topic's queues that can be written to.

        Raises:
            InvalidNameError: the name breaks the rules; nothing was changed.
            ClientError: there is no such broker; nothing was changed.
        """
        check_topic_name(topic)
        header = UpdateAndCreateTopicRequest(
            topic=topic,
            default_topic=TEMPLATE_TOPIC,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=perm,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
        )
        for address in await self._masters(brokers):
            await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        route = await self._instance.routes.refresh(topic)
        return list(route.publish_queues) if route else []

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic from all brokers of the cluster, then from every name server."""
        for address in await self._masters(None):
            header = DeleteTopicInBrokerRequest(topic=topic)
            await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, header)
        for address in self._instance.name_servers.addresses:
            forget = DeleteTopicInNamesrvRequest(topic=topic)
            await self._ask(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, forget)
        self._instance.routes.forget(topic)

    async def topics(self) -> list[str]:
        """Give the names of all topics, in alphabetical order."""
        answer = await self._name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(TopicList.decode(answer).topic_list)

    async def cluster_info(self) -> ClusterInfo:
        """Give the clusters, their brokers and the brokers' addresses."""
        return ClusterInfo.decode(await self._name_server(RequestCode.GET_BROKER_CLUSTER_INFO))

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Give the oldest and newest offset of each queue, and when it last got a message."""
        header = GetTopicStatsInfoRequest(topic=topic)
        route = await self._instance.routes.find(topic)
        stats: dict[MessageQueue, TopicOffset] = {}
        for address in route.masters():
            body = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, header)
            stats.update(TopicStatsTable.decode(body).offset_table)
        return stats

    async def queue_bounds(self, topic: str) -> dict[MessageQueue, QueueBounds]:
        """Give where each readable queue of a topic begins and ends."""
        route = await self._instance.routes.find(topic)
        return {queue: await self._offsets.bounds(queue) for queue in route.read_queues}

    async def committed(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Give what a group has committed of each readable queue of a topic."""
        route = await self._instance.routes.find(topic)
        return {
            queue: await self._offsets.committed(group, queue, zero_if_unknown=False)
            for queue in route.read_queues
        }

    async def broker_figures(self, address: str) -> dict[str, str]:
        """Give a broker's figures about itself: counts, rates, offsets, disk use."""
        return KVTable.decode(await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)).table

    async def message_at(self, offset_message_id: str) -> StoredMessage:
        """Give the message that a broker's id of it names, asking the broker in the id.

        Raises:
            InvalidMessageIdError: this is no such id.
            ResponseError: that broker has no such message.
        """
        place = decode_offset_id(offset_message_id)
        header = ViewMessageByIdRequest(offset=place.log_offset)
        body = await self._ask(place.address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        return decode_messages(body)[0]

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
        unique_id: bool = False,
    ) -> list[StoredMessage]:
        """Find messages by one of their keys, or by the unique id their sender gave them.

        Args:
            topic: where they were sent.
            key: the key or id.
            begin_ms, end_ms: when they were stored, in ms since 1970.
            unique_id: whether ``key`` is a unique id.
        """
        header = QueryMessageRequest(
            topic=topic,
            key=key,
            max_num=FOUND_MAX,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            unique_key_query=unique_id,
        )
        route = await self._instance.routes.find(topic)
        found: list[StoredMessage] = []
        for name in sorted(route.brokers):
            found += await self._query(name, route.master(name), header)
        return [message for message in found if _has_key(message, key, unique_id=unique_id)]

    async def _query(
        self, broker_name: str, address: str | None, header: QueryMessageRequest
    ) -> list[StoredMessage]:
        if address is None:
            return []
        try:
            body = await self._ask(address, RequestCode.QUERY_MESSAGE, header)
        except ResponseError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return []
            raise
        messages = decode_messages(body)
        for message in messages:
            message.broker_name = broker_name
        return messages

    async def _masters(self, brokers: Iterable[str] | None) -> list[str]:
        table = (await self.cluster_info()).broker_addr_table
        names = sorted(table) if brokers is None else list(brokers)
        if unknown := [name for name in names if name not in table]:
            raise ClientError(f"no such broker: {', '.join(unknown)}; there is {sorted(table)}")
        found = [table[name].broker_addrs.get(MASTER_ID) for name in names]
        masters = [address for address in found if address is not None]
        if not masters:
            raise ClientError("no broker is registered with the name server")
        return masters

    async def _ask(self, address: str, code: int, header: Header | None = None) -> bytes:
        self._instance.check_running()
        return (await self._instance.brokers.call(address, code, header)).body

    async def _name_server(self, code: int) -> bytes:
        self._instance.check_running()
        timeout = self._instance.settings.call_timeout_ms / 1000
        return check(await self._instance.name_servers.call(code, timeout=timeout)).body


def _has_key(message: StoredMessage, key: str, *, unique_id: bool) -> bool:
    return message.unique_id == key if unique_id else key in message.keys
