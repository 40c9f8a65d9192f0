"""Request handlers for topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.namesrv.topics.handler import TopicHandler
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import exclusive
from cometmq.remoting.features import Feature

if TYPE_CHECKING:
    from cometmq.namesrv.assembly import Parts


def build(parts: Parts) -> Feature:
    """Build the handlers that list, remove and add topics."""
    topics = TopicHandler(parts.registry, parts.settings)
    return Feature(
        {
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: exclusive(topics.all),
            RequestCode.GET_TOPICS_BY_CLUSTER: exclusive(topics.of_cluster),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: exclusive(topics.system),
            RequestCode.GET_UNIT_TOPIC_LIST: exclusive(topics.unit),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: exclusive(topics.unit_sub),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: exclusive(topics.unit_sub_ununit),
            RequestCode.DELETE_TOPIC_IN_NAMESRV: exclusive(topics.delete),
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: exclusive(topics.register),
        }
    )
