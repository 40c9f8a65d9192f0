"""What tools ask of a name server about topics: which there are, and to forget or add one.

Source: DefaultRequestProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from cometmq.model.errors import InvalidNameError, ResponseError
from cometmq.model.flags import TopicSysFlag
from cometmq.namesrv.config import NameServerSettings
from cometmq.namesrv.names import check_name
from cometmq.namesrv.registry import Registry
from cometmq.namesrv.routes import system_topics, topics_by_flag, topics_of_cluster
from cometmq.protocol.bodies import TopicList, TopicRouteData
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import (
    DeleteTopicInNamesrvRequest,
    GetTopicsByClusterRequest,
    RegisterTopicInNamesrvRequest,
)
from cometmq.remoting import Request, Response

log = logging.getLogger(__name__)


class TopicRequests:
    """Answers tools about topics.

    Args:
        registry: the tables.
        settings: gives the settings as they are now.
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
        """GET_UNIT_TOPIC_LIST (311): topics of units."""
        return self._by_flag(lambda flag: bool(flag & TopicSysFlag.UNIT))

    def unit_sub(self, request: Request) -> Response:
        """GET_HAS_UNIT_SUB_TOPIC_LIST (312): topics that units subscribe to."""
        return self._by_flag(lambda flag: bool(flag & TopicSysFlag.UNIT_SUB))

    def unit_sub_ununit(self, request: Request) -> Response:
        """GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST (313): those of them that are of no unit."""
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
