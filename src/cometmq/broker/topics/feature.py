"""The topics, and the requests and jobs for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.broker.thread_calls import NextCall
from cometmq.model.errors import StoreError
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import every

if TYPE_CHECKING:
    from cometmq.broker.pop.feature import PopFeature
    from cometmq.broker.pulling.feature import PullingFeature
    from cometmq.broker.registration.name_servers import Registration
    from cometmq.broker.static_topics.feature import StaticTopicsFeature
    from cometmq.broker.topics.handler import TopicHandler

log = logging.getLogger(__name__)

LOG_S = 10.0


class TopicsFeature(BrokerFeature):
    """Keeps the topics.

    Args:
        core: of the broker.
        registration: announces changes to the name servers.
        pulling: holds pulls of topics that are deleted.
        static_topics: the mappings of static topics.
        pop: has messages in flight of topics that are deleted.
    """

    def __init__(
        self,
        core: Core,
        registration: Registration,
        pulling: PullingFeature,
        static_topics: StaticTopicsFeature,
        pop: PopFeature,
    ) -> None:
        super().__init__(core)
        self._static_topics = static_topics
        self._registration = registration
        self._pulling = pulling
        self._pop = pop
        core.topics.notify(registration.wake)

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handlers that create, change, show and delete topics."""
        core = self._core
        forgetting = asyncio.Lock()
        persist = NextCall(core.persist_offsets)

        async def forget_topic(topic: str) -> None:
            async with forgetting:  # each takes a while: one at a time
                await core.offsets.forget_topic(topic)
                await core.stats.forget_topic(topic)
                self._pulling.held.rerun_topic(topic)
                await self._pop.forget_topic(topic)
                await asyncio.sleep(0)
            try:
                # On disk before the topic is created again: its new messages have the same offsets.
                await persist()
            except StoreError:
                log.exception("offsets of a deleted topic are still on disk topic=%s", topic)

        @Deferred
        def topics() -> TopicHandler:
            from cometmq.broker.topics.handler import TopicHandler

            return TopicHandler(
                core,
                announce=self._registration.announce,
                forget=forget_topic,
                changes_to_make=self._static_topics.changes_to_make,
                retry_topics=self._pop.retry_topics_of,
            )

        return Feature(
            {
                RequestCode.UPDATE_AND_CREATE_TOPIC: topics.exclusive(lambda h: h.put),
                RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: topics.exclusive(lambda h: h.put_list),
                RequestCode.DELETE_TOPIC_IN_BROKER: topics.exclusive(lambda h: h.delete),
                RequestCode.CLEAN_UNUSED_TOPIC: topics.exclusive(lambda h: h.clean_unused),
                RequestCode.GET_TOPIC_CONFIG: topics.handler(lambda h: h.show),
                RequestCode.GET_ALL_TOPIC_CONFIG: topics.exclusive(lambda h: h.show_all),
                RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.exclusive(
                    lambda h: h.show_system
                ),
            },
            [every(LOG_S, core.topics.creations.settle_log, "log-refused-creations")],
        )

    async def settings_changed(self, changes: Mapping[str, str]) -> None:
        """Register again if the permission of the broker has changed."""
        if "brokerPermission" in changes:
            await self._core.topics.touch()

    async def close(self) -> None:
        """Write what is not in the file yet."""
        await self._core.topics.close()
