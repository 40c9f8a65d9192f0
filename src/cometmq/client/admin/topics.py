"""Topics: make, change, delete and list them, and see how full they are.

Source: the topic commands of DefaultMQAdminExt, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable

from cometmq.client.admin.core import AdminCore
from cometmq.client.queue_offsets import QueueBounds
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import TEMPLATE_TOPIC, Perm, check_topic_name
from cometmq.protocol.bodies import TopicList, TopicOffset, TopicStatsTable
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import (
    DeleteTopicInBrokerRequest,
    DeleteTopicInNamesrvRequest,
    GetTopicStatsInfoRequest,
    UpdateAndCreateTopicRequest,
)

READ_WRITE = Perm.READ | Perm.WRITE


class Topics(AdminCore):
    """Calls about topics."""

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
        for address in await self._masters():
            header = DeleteTopicInBrokerRequest(topic=topic)
            await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, header)
        forget = DeleteTopicInNamesrvRequest(topic=topic)
        await self._tell_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, forget)
        self._instance.routes.forget(topic)

    async def topics(self) -> list[str]:
        """Give the names of all topics, in alphabetical order."""
        answer = await self._ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(TopicList.decode(answer.body).topic_list)

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Give the oldest and newest offset of each queue, and when it last got a message."""
        header = GetTopicStatsInfoRequest(topic=topic)
        stats: dict[MessageQueue, TopicOffset] = {}
        for address in (await self._route(topic)).masters():
            answer = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, header)
            stats.update(TopicStatsTable.decode(answer.body).offset_table)
        return stats

    async def queue_bounds(self, topic: str) -> dict[MessageQueue, QueueBounds]:
        """Give where each readable queue of a topic begins and ends."""
        route = await self._route(topic)
        return {queue: await self._offsets.bounds(queue) for queue in route.read_queues}
