"""Handles requests of tools that list, remove and add topics.

Source: DefaultRequestProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from cometmq.model.errors import InvalidNameError, ResponseError
from cometmq.model.flags import TopicSysFlag
from cometmq.namesrv.checks import check_name
from cometmq.namesrv.config import NameServerSettings
from cometmq.namesrv.registry import Registry
from cometmq.protocol.bodies import TopicList, TopicRouteData
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import (
    DeleteTopicInNamesrvRequest,
    GetTopicsByClusterRequest,
    RegisterTopicInNamesrvRequest,
)
from cometmq.remoting import Request, Response

log = logging.getLogger(__name__)


class TopicHandler:
    """Handles requests for topics.

    Args:
        registry: the registered brokers and their topics.
        settings: returns the current settings.
    """

    def __init__(self, registry: Registry, settings: Callable[[], NameServerSettings]) -> None:
        self._registry = registry
        self._settings = settings

    def all(self, request: Request) -> Response:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206)."""
        _check_enabled(self._settings().lists_all_topics)
        return _list_of(self._registry.topics)

    def of_cluster(self, request: Request) -> Response:
        """GET_TOPICS_BY_CLUSTER (224)."""
        _check_enabled(self._settings().lists_topics)
        cluster = request.header(GetTopicsByClusterRequest).cluster
        return _list_of(topics_of_cluster(self._registry, cluster))

    def system(self, request: Request) -> Response:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS (304)."""
        names, address = system_topics(self._registry)
        return Response(body=TopicList(topic_list=names, broker_addr=address).encode())

    def unit(self, request: Request) -> Response:
        """GET_UNIT_TOPIC_LIST (311): topics of a unit."""
        return self._by_flag(lambda flag: bool(flag & TopicSysFlag.UNIT))

    def unit_sub(self, request: Request) -> Response:
        """GET_HAS_UNIT_SUB_TOPIC_LIST (312): retry topics of groups that belong to a unit."""
        return self._by_flag(lambda flag: bool(flag & TopicSysFlag.UNIT_SUB))

    def unit_sub_ununit(self, request: Request) -> Response:
        """GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST (313): those of them that do not belong to a unit."""
        return self._by_flag(
            lambda flag: bool(flag & TopicSysFlag.UNIT_SUB) and not flag & TopicSysFlag.UNIT
        )

    def _by_flag(self, accepts: Callable[[int], bool]) -> Response:
        _check_enabled(self._settings().lists_topics)
        return _list_of(topics_by_flag(self._registry, accepts))

    def delete(self, request: Request) -> Response:
        """DELETE_TOPIC_IN_NAMESRV (216)."""
        header = request.header(DeleteTopicInNamesrvRequest)
        self._registry.delete_topic(header.topic, header.cluster_name or None)
        log.info("topic removed topic=%s cluster=%s", header.topic[:80], header.cluster_name)
        return Response()

    def register(self, request: Request) -> Response:
        """REGISTER_TOPIC_IN_NAMESRV (217)."""
        topic = request.header(RegisterTopicInNamesrvRequest).topic
        rows = TopicRouteData.decode(request.body).queue_datas
        try:
            check_name(topic, "topic")
        except InvalidNameError as problem:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, str(problem)) from None
        if not self._registry.register_topic(topic, rows):
            log.warning("topic of unknown brokers ignored topic=%s", topic[:80])
        return Response()


def _check_enabled(is_enabled: bool) -> None:
    if not is_enabled:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "disable")


def _list_of(topics: Iterable[str]) -> Response:
    return Response(body=TopicList(topic_list=list(topics)).encode())


def topics_of_cluster(registry: Registry, cluster: str) -> list[str]:
    """Return the topics that brokers of a cluster serve."""
    names = registry.clusters.get(cluster, {})
    return [topic for topic, rows in registry.topics.items() if not names.keys().isdisjoint(rows)]


def topics_by_flag(registry: Registry, accepts: Callable[[int], bool]) -> list[str]:
    """Return the topics for whose flags, those of the first row, ``accepts`` is true."""
    return [
        topic
        for topic, rows in registry.topics.items()
        if accepts(next(iter(rows.values())).topic_sys_flag)
    ]


def system_topics(registry: Registry) -> tuple[list[str], str | None]:
    """Return the topics named after clusters and brokers, and one broker's address."""
    names = list(registry.clusters)
    names += [name for members in registry.clusters.values() for name in members]
    for group in registry.groups.values():
        smallest = group.smallest_id
        if smallest is not None:
            return list(dict.fromkeys(names)), group.addresses[smallest]
    return list(dict.fromkeys(names)), None
