"""Topics: make, change, delete and list them, and see how full they are.

Source: the topic commands of DefaultMQAdminExt, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

from cometmq.client._connection.broker_calls import QueueBounds
from cometmq.client.admin.servers import AdminCore
from cometmq.client.errors import ClientError
from cometmq.model.errors import CometError, ConfigError, ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import TEMPLATE_TOPIC, Perm, TopicConfig, check_topic_name
from cometmq.protocol.bodies.common import TopicList
from cometmq.protocol.bodies.route import TopicQueueMappingDetail, TopicRouteData
from cometmq.protocol.bodies.topic import (
    TopicConfigAndQueueMapping,
    TopicConfigList,
    TopicConfigSerializeWrapper,
    TopicOffset,
    TopicStatsTable,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.namesrv import DeleteTopicInNamesrvRequest, GetRouteinfoByTopicRequest
from cometmq.protocol.headers.topic import (
    DeleteTopicInBrokerRequest,
    GetTopicConfigRequest,
    GetTopicStatsInfoRequest,
    UpdateAndCreateTopicRequest,
)
from cometmq.remoting.tasks import side_by_side

log = logging.getLogger(__name__)

READ_WRITE = Perm.READ | Perm.WRITE

ORDER_SPACE = "ORDER_TOPIC_CONFIG"
"""The namespace of name servers with the brokers and queues of ordered topics."""


class Topics(AdminCore):
    """Calls about topics."""

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        perm: int = READ_WRITE,
        ordered: bool = False,
        brokers: Iterable[str] | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> list[MessageQueue]:
        """Create a topic, or change it if it exists.

        Args:
            topic: the name; at most 127 of the characters ``%|a-zA-Z0-9_-``.
            queues: number of queues on each broker, for reading and writing.
            perm: sum of `Perm` bits.
            ordered: whether each key has to stay in its queue: a broker without write permission
                then refuses messages of the topic, and the name servers keep the number of queues
                of each broker, see `set_order_conf`. With ``queues=1`` and one broker all
                messages of the topic are in one order.
            brokers: names of the brokers to create it on; None for all of the cluster.
            attributes: for brokers of 5.0 and later, such as ``{"message.type": "DELAY"}``.

        Returns:
            The topic's writable queues.

        Raises:
            InvalidNameError: the name is invalid; nothing was changed.
            ClientError: there is no such broker, or the topic is a static one; nothing was changed.
            ConfigError: the number of queues is invalid; nothing was changed.
        """
        check_topic_name(topic)
        if not isinstance(queues, int) or queues < 1:
            raise ConfigError(f"queues={queues!r}: expected a whole number of at least 1")
        known = await self._instance.routes.refresh(topic)
        if known is not None and known.hosts:
            # A broker without a part would get an ordinary topic, and no queue could move any more.
            raise ClientError(
                f"topic {topic} is a static topic, expected an ordinary one: create_static_topic"
                " gives it more queues"
            )
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=perm,
            order=ordered,
            attributes={f"+{name}": value for name, value in (attributes or {}).items()},
        )
        names = sorted(
            (await self.cluster_info()).broker_addr_table if brokers is None else brokers
        )
        for address in await self._masters(names):
            await self.set_topic_config(address, config)
        if ordered:
            await self.set_order_conf(topic, dict.fromkeys(names, queues))
        route = await self._instance.routes.refresh(topic)
        return list(route.publish_queues) if route else []

    async def set_topic_config(self, address: str, config: TopicConfig) -> None:
        """Create a topic on one broker, or change all its settings there.

        Args:
            address: the broker.
            config: the settings; its ``attributes`` are changes for brokers of 5.0 and later:
                ``+name`` with a value sets one, ``-name`` with an empty value removes it.
        """
        header = UpdateAndCreateTopicRequest(
            topic=config.topic_name,
            default_topic=TEMPLATE_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=",".join(
                f"{name}={value}" if value else name for name, value in config.attributes.items()
            )
            or None,
        )
        await self.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def set_topic_configs(self, address: str, configs: Sequence[TopicConfig]) -> None:
        """Create or change several topics on one broker with one request.

        Raises:
            ResponseError: the broker refused, or is older than 5.3.
        """
        body = TopicConfigList(topic_config_list=list(configs)).encode()
        await self.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic from all brokers of the cluster, then from every name server.

        Its order configuration is deleted too.

        Raises:
            ResponseError, RemotingError: a server refused or did not respond. The requests were
                still sent to the other brokers and to the name servers.
        """
        forget = DeleteTopicInNamesrvRequest(topic=topic)
        steps: list[Callable[[], Awaitable[object]]] = [
            *(partial(self.delete_broker_topic, each, topic) for each in await self._masters()),
            partial(self._call_all_name_servers, RequestCode.DELETE_TOPIC_IN_NAMESRV, forget),
            partial(self.kv_delete, ORDER_SPACE, topic),
        ]
        failure: CometError | None = None
        for step in steps:
            try:
                await step()
            except CometError as error:
                failure = failure or error
        self._instance.routes.forget(topic)
        if failure is not None:
            raise failure

    async def delete_broker_topic(self, address: str, topic: str) -> None:
        """Delete a topic from one broker; name servers keep it while another broker has it."""
        header = DeleteTopicInBrokerRequest(topic=topic)
        await self.call(address, RequestCode.DELETE_TOPIC_IN_BROKER, header)

    async def topics(self) -> list[str]:
        """Return the names of all topics in alphabetical order."""
        response = await self.call_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(TopicList.decode(response.body).topic_list)

    async def route(self, topic: str) -> TopicRouteData:
        """Return the brokers and queues of a topic, as a name server has them now.

        Raises:
            ResponseError: there is no such topic.
        """
        header = GetRouteinfoByTopicRequest(topic=topic, accept_standard_json_only=True)
        response = await self.call_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        return TopicRouteData.decode(response.body)

    async def topic_configs(self, topic: str) -> dict[str, TopicConfig]:
        """Return a topic's settings on each broker that has it, by broker name."""
        route = await self._route(topic)
        masters = {
            name: address
            for name in sorted(route.brokers)
            if (address := route.master(name)) is not None
        }
        configs = await side_by_side(masters.values(), lambda address: self._config(address, topic))
        return dict(zip(masters, configs, strict=True))

    async def _config(self, address: str, topic: str) -> TopicConfig:
        header = GetTopicConfigRequest(topic=topic)
        try:
            response = await self.call(address, RequestCode.GET_TOPIC_CONFIG, header)
        except ResponseError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            configs = await self.broker_topics(address)
            if topic not in configs:  # deleted since the route was fetched
                raise ResponseError(
                    ResponseCode.TOPIC_NOT_EXIST, f"broker {address} has no topic {topic}"
                ) from None
            return configs[topic]
        found = TopicConfigAndQueueMapping.decode(response.body)
        return TopicConfig(**{name: getattr(found, name) for name in TopicConfig.__struct_fields__})

    async def broker_topics(self, address: str) -> dict[str, TopicConfig]:
        """Return the settings of all topics of one broker, including system topics."""
        return (await self._broker_table(address)).topic_config_table

    async def broker_static_topics(self, address: str) -> dict[str, TopicQueueMappingDetail]:
        """Return the mappings of the static topics of one broker, by topic.

        The settings of such a topic differ between brokers, see `create_static_topic`.
        """
        return (await self._broker_table(address)).topic_queue_mapping_detail_map or {}

    async def _broker_table(self, address: str) -> TopicConfigSerializeWrapper:
        response = await self.call(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return TopicConfigSerializeWrapper.decode(response.body)

    async def order_conf(self, topic: str) -> dict[str, int]:
        """Return the fixed number of queues per broker of an ordered topic; {} if there is none.

        Raises:
            ClientError: what a tool has stored is no order configuration.
        """
        text = await self.kv_get(ORDER_SPACE, topic)
        queues = {}
        for part in filter(None, (text or "").split(";")):
            broker, _, count = part.rpartition(":")
            if not broker or not count.isdecimal():
                raise ClientError(
                    f"the order configuration of {topic} is {text!r}, expected broker:queues with"
                    " ';' in between: set it again, with set_order_conf"
                )
            queues[broker] = int(count)
        return queues

    async def set_order_conf(self, topic: str, queues: Mapping[str, int]) -> None:
        """Fix the number of queues per broker of an ordered topic.

        A key then stays in its queue if a broker is lost. Name servers return the rule to
        producers only with ``orderMessageEnable=true``; without it the log has a warning. Brokers
        learn within half a minute that the topic is ordered.

        Args:
            topic: the topic.
            queues: number of queues per broker; an empty mapping removes the rule.

        Raises:
            InvalidNameError: the topic name is invalid; nothing was changed.
            ConfigError: a number is below 1, or a name is none of a broker; nothing was changed.
        """
        check_topic_name(topic)
        if not all(
            count >= 1 and name and not {":", ";"} & {*name} for name, count in queues.items()
        ):
            raise ConfigError(
                f"queues={dict(queues)!r}: expected for each name of a broker a whole number of at"
                " least 1"
            )
        text = ";".join(f"{broker}:{count}" for broker, count in sorted(queues.items()))
        if text:
            await self.kv_put(ORDER_SPACE, topic, text)
        else:
            await self.kv_delete(ORDER_SPACE, topic)
        route = await self._instance.routes.refresh(topic)
        if text and route is not None and not route.ordered:
            log.warning(
                "order configuration without effect, it needs orderMessageEnable=true at the name"
                " servers topic=%s",
                topic,
            )

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the minimum and maximum offset of each queue, and its last store time."""
        stats: dict[MessageQueue, TopicOffset] = {}
        masters = (await self._route(topic)).masters()
        for each in await side_by_side(
            masters, lambda address: self.broker_topic_stats(address, topic)
        ):
            stats.update(each.offset_table)
        return stats

    async def broker_topic_stats(self, address: str, topic: str) -> TopicStatsTable:
        """Return the offsets of a topic's queues on one broker, and its rate there."""
        header = GetTopicStatsInfoRequest(topic=topic)
        response = await self.call(address, RequestCode.GET_TOPIC_STATS_INFO, header)
        return TopicStatsTable.decode(response.body)

    async def queue_bounds(self, topic: str) -> dict[MessageQueue, QueueBounds]:
        """Return the bounds of each readable queue of a topic."""
        queues = (await self._route(topic)).read_queues
        return dict(zip(queues, await side_by_side(queues, self._offsets.bounds), strict=True))
