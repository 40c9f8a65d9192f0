"""Handles requests of tools that list, remove and add topics.

Source: DefaultRequestProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from cometmq.model.errors import InvalidNameError, ResponseError
from cometmq.model.flags import TopicSysFlag
from cometmq.namesrv.checks import check_name
from cometmq.namesrv.registry import Registry
from cometmq.protocol.bodies.common import TopicList
from cometmq.protocol.bodies.route import QueueData, TopicRouteData
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.namesrv import (
    DeleteTopicInNamesrvRequest,
    GetTopicsByClusterRequest,
    RegisterTopicInNamesrvRequest,
)
from cometmq.remoting import Request, Response
from cometmq.remoting.slices import Slices, decode, encode

if TYPE_CHECKING:
    from cometmq.namesrv.core import Core

log = logging.getLogger(__name__)


class TopicHandler:
    """Handles requests for topics.

    Args:
        core: of the name server.
    """

    def __init__(self, core: Core) -> None:
        self._registry = core.registry
        self._settings = core.settings

    async def all(self, request: Request) -> Response:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206)."""
        _check_enabled(self._settings().lists_all_topics)
        async with self._registry.lock:
            topics = list(self._registry.topics)
        return await _list_of(topics)

    async def of_cluster(self, request: Request) -> Response:
        """GET_TOPICS_BY_CLUSTER (224)."""
        _check_enabled(self._settings().lists_topics)
        cluster = request.header(GetTopicsByClusterRequest).cluster
        return await _list_of(await topics_of_cluster(self._registry, cluster))

    async def system(self, request: Request) -> Response:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS (304)."""
        names, address = await system_topics(self._registry)
        return Response(body=await encode(TopicList(topic_list=names, broker_addr=address)))

    async def unit(self, request: Request) -> Response:
        """GET_UNIT_TOPIC_LIST (311): topics of a unit."""
        return await self._by_flag(lambda flag: bool(flag & TopicSysFlag.UNIT))

    async def unit_sub(self, request: Request) -> Response:
        """GET_HAS_UNIT_SUB_TOPIC_LIST (312): retry topics of groups that belong to a unit."""
        return await self._by_flag(lambda flag: bool(flag & TopicSysFlag.UNIT_SUB))

    async def unit_sub_ununit(self, request: Request) -> Response:
        """GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST (313): the topics of 312 that are in no unit."""
        return await self._by_flag(
            lambda flag: bool(flag & TopicSysFlag.UNIT_SUB) and not flag & TopicSysFlag.UNIT
        )

    async def _by_flag(self, accepts: Callable[[int], bool]) -> Response:
        _check_enabled(self._settings().lists_topics)
        return await _list_of(await topics_by_flag(self._registry, accepts))

    async def delete(self, request: Request) -> Response:
        """DELETE_TOPIC_IN_NAMESRV (216)."""
        header = request.header(DeleteTopicInNamesrvRequest)
        await self._registry.delete_topic(header.topic, header.cluster_name or None)
        log.info("topic removed topic=%s cluster=%s", header.topic[:80], header.cluster_name)
        return Response()

    async def register(self, request: Request) -> Response:
        """REGISTER_TOPIC_IN_NAMESRV (217)."""
        topic = request.header(RegisterTopicInNamesrvRequest).topic
        rows = (await decode(TopicRouteData, request.body)).queue_datas
        try:
            check_name(topic, "topic")
        except InvalidNameError as problem:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, problem.remark) from None
        if not await self._registry.register_topic(topic, rows):
            log.warning("topic of unknown brokers ignored topic=%s", topic[:80])
        return Response()


def _check_enabled(is_enabled: bool) -> None:
    if not is_enabled:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "disable")


async def _list_of(topics: list[str]) -> Response:
    return Response(body=await encode(TopicList(topic_list=topics)))


async def topics_of_cluster(registry: Registry, cluster: str) -> list[str]:
    """Return the topics that brokers of a cluster serve."""
    async with registry.lock:
        names = registry.clusters.get(cluster, {}).keys()
        return await _topics_where(registry, lambda rows: not names.isdisjoint(rows))


async def topics_by_flag(registry: Registry, accepts: Callable[[int], bool]) -> list[str]:
    """Return the topics for which ``accepts`` is true, given the flags of their first row."""
    async with registry.lock:
        return await _topics_where(
            registry, lambda rows: accepts(next(iter(rows.values())).topic_sys_flag)
        )


async def _topics_where(
    registry: Registry, accepts: Callable[[dict[str, QueueData]], bool]
) -> list[str]:
    topics = registry.topics.items()
    return [topic async for topic, rows in Slices().each(topics) if accepts(rows)]


async def system_topics(registry: Registry) -> tuple[list[str], str | None]:
    """Return the topics named after clusters and brokers, and one broker's address."""
    async with registry.lock:
        names = dict.fromkeys(registry.clusters)
        slices = Slices()
        for members in registry.clusters.values():
            async for name in slices.each(members):
                names[name] = None
        for group in registry.groups.values():
            smallest = group.smallest_id
            if smallest is not None:
                return list(names), group.addresses[smallest]
        return list(names), None
