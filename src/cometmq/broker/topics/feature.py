"""What the broker serves for topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.topics.handler import TopicHandler
from cometmq.protocol.codes import RequestCode

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts, Routes


def routes(parts: Parts, _endpoint: Endpoint) -> Routes:
    """The handlers that create, change, show and delete topics."""

    def forget_topic(topic: str) -> None:
        parts.offsets.forget_topic(topic)
        parts.stats.forget_topic(topic)
        parts.held.topic_gone(topic)

    topics = TopicHandler(
        parts.topics,
        parts.store,
        parts.settings,
        announce=parts.registration.announce,
        forget=forget_topic,
    )
    return {
        RequestCode.UPDATE_AND_CREATE_TOPIC: topics.put,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: topics.put_list,
        RequestCode.DELETE_TOPIC_IN_BROKER: topics.delete,
        RequestCode.CLEAN_UNUSED_TOPIC: topics.clean_unused,
        RequestCode.GET_TOPIC_CONFIG: topics.show,
        RequestCode.GET_ALL_TOPIC_CONFIG: topics.show_all,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.show_system,
    }
