"""Request handlers for topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cometmq.access.needs import ADMINISTRATOR, NOTHING, Needs
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Deferred, Feature

if TYPE_CHECKING:
    from cometmq.namesrv.core import Core
    from cometmq.namesrv.topics.handler import TopicHandler


NEEDS: Mapping[int, Needs] = {
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: NOTHING,
    RequestCode.GET_TOPICS_BY_CLUSTER: NOTHING,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: NOTHING,
    RequestCode.GET_UNIT_TOPIC_LIST: NOTHING,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: NOTHING,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: NOTHING,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: ADMINISTRATOR,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: ADMINISTRATOR,
}
"""The needs of the requests with ``aclEnable``: a signature only, if clients send them to read."""


def build(core: Core) -> Feature:
    """Build the handlers that list, remove and add topics."""

    @Deferred
    def topics() -> TopicHandler:
        from cometmq.namesrv.topics.handler import TopicHandler

        return TopicHandler(core)

    return Feature(
        {
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: topics.exclusive(lambda h: h.all),
            RequestCode.GET_TOPICS_BY_CLUSTER: topics.exclusive(lambda h: h.of_cluster),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: topics.exclusive(lambda h: h.system),
            RequestCode.GET_UNIT_TOPIC_LIST: topics.exclusive(lambda h: h.unit),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: topics.exclusive(lambda h: h.unit_sub),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: topics.exclusive(
                lambda h: h.unit_sub_ununit
            ),
            RequestCode.DELETE_TOPIC_IN_NAMESRV: topics.exclusive(lambda h: h.delete),
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: topics.exclusive(lambda h: h.register),
        }
    )
