"""Request handlers for topics."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from cometmq.broker.thread_calls import NextCall
from cometmq.model.errors import StoreError
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import exclusive
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import every

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts
    from cometmq.broker.topics.handler import TopicHandler

log = logging.getLogger(__name__)

LOG_S = 10.0


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the handlers that create, change, show and delete topics."""

    forgetting = asyncio.Lock()
    persist = NextCall(partial(parts.offsets.persist, parts.store.flush))

    async def forget_topic(topic: str) -> None:
        async with forgetting:  # each takes a while: one at a time
            await parts.offsets.forget_topic(topic)
            await parts.stats.forget_topic(topic)
            parts.held.topic_gone(topic)
            await asyncio.sleep(0)
        try:
            # On disk before the topic is created again: its new messages have the same offsets.
            await persist()
        except StoreError:
            log.exception("offsets of a deleted topic are still on disk topic=%s", topic)

    def make() -> TopicHandler:
        from cometmq.broker.topics.handler import TopicHandler

        return TopicHandler(
            parts.topics,
            parts.store,
            parts.settings,
            role=parts.role,
            announce=parts.registration.announce,
            forget=forget_topic,
            created=parts.timings.topics,
        )

    topics = Deferred(make)
    return Feature(
        {
            RequestCode.UPDATE_AND_CREATE_TOPIC: exclusive(topics.handler(lambda h: h.put)),
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: exclusive(
                topics.handler(lambda h: h.put_list)
            ),
            RequestCode.DELETE_TOPIC_IN_BROKER: exclusive(topics.handler(lambda h: h.delete)),
            RequestCode.CLEAN_UNUSED_TOPIC: exclusive(topics.handler(lambda h: h.clean_unused)),
            RequestCode.GET_TOPIC_CONFIG: topics.handler(lambda h: h.show),
            RequestCode.GET_ALL_TOPIC_CONFIG: exclusive(topics.handler(lambda h: h.show_all)),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: exclusive(
                topics.handler(lambda h: h.show_system)
            ),
        },
        [every(LOG_S, parts.creations.settle_log, "log-refused-creations")],
    )
