"""The static topics: the request that changes them, and the brokers of their items."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.broker.static_topics.brokers import ItemBrokers
from cometmq.model.errors import CometError
from cometmq.model.topic import MAPPING_QUEUE, MAPPING_TOPIC
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Response
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import Job, every

if TYPE_CHECKING:
    from cometmq.broker.durability.feature import DurabilityFeature
    from cometmq.broker.static_topics.expired_items import ExpiredItems
    from cometmq.broker.static_topics.handler import StaticTopicHandler
    from cometmq.broker.static_topics.mapping_log import MappingLog
    from cometmq.broker.static_topics.newer_parts import NewerParts

log = logging.getLogger(__name__)

FIRST_S = 2.0
"""The first look, soon after the start: queues may have moved while this broker was away."""
RENEW_S = 20.0
"""The interval at which newer mappings are looked for."""
CLEAN_S = 300.0
"""The interval at which expired items are looked for."""
LOOK_S_MAX = 3.0
"""How long a broker looks for newer mappings before it accepts messages."""
FOLLOW_S = 1.0
"""How soon a slave makes the changes that it has received."""
RETRY_S = 1.0
"""The pause before a new master tries again to make them."""


class StaticTopicsFeature(BrokerFeature):
    """Keeps the mappings of static topics.

    Args:
        core: of the broker.
        durability: shows when readers see what is stored.
        announce: returns when the name servers have a change.
        name_servers: returns the addresses of the name servers, which know the other brokers.
    """

    def __init__(
        self,
        core: Core,
        durability: DurabilityFeature,
        announce: Callable[[], Awaitable[None]],
        name_servers: Callable[[], Sequence[str]],
    ) -> None:
        super().__init__(core)
        self.brokers = ItemBrokers(
            core.client,
            name_servers,
            cluster=core.settings().broker_cluster_name,
            timeout_s=lambda: core.settings().forward_timeout_ms / 1000,
        )
        """Sends requests to the brokers of items."""

        @Deferred
        def handler() -> StaticTopicHandler:
            from cometmq.broker.static_topics.handler import StaticTopicHandler

            return StaticTopicHandler(core, durability.wait, announce)

        self._handler = handler

        @Deferred
        def changes() -> MappingLog:
            from cometmq.broker.static_topics.mapping_log import MappingLog

            return MappingLog(core, durability.wait.begin, store_host=self._store_host)

        self._store_host = b""
        self._changes = changes
        core.static_topics.log = changes.get
        if core.topics.gap is not None:
            core.topics.gap.before_fill = self._make_changes

        @Deferred
        def newer() -> NewerParts:
            from cometmq.broker.static_topics.newer_parts import NewerParts

            return NewerParts(core, self.brokers, name_servers, handler.get().replace)

        self._newer = newer

        @Deferred
        def expired() -> ExpiredItems:
            from cometmq.broker.static_topics.expired_items import ExpiredItems
            from cometmq.broker.static_topics.offsets import OffsetRequests

            def commit(group: str, topic: str, queue_id: int, offset: int) -> Response:
                core.offsets.commit(group, topic, queue_id, offset)
                return Response()

            return ExpiredItems(core, self.brokers, OffsetRequests(core, self.brokers, commit))

        self._expired = expired
        self._clean_from_s = math.inf
        """When expired items may be removed again."""

    async def start(self) -> None:
        """Make the changes in the log, and look for newer mappings."""
        self._clean_from_s = asyncio.get_running_loop().time() + CLEAN_S
        # A power cut may have taken the last ones from the log.
        self.before_truncation(self._core.store.written_to)
        await self._make_changes()
        await self._look()

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handler that creates and changes static topics."""
        self._store_host = endpoint.store_host
        put = self._handler.exclusive(lambda h: h.put)
        return Feature(
            {RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: put},
            [
                Job("renew-mappings", lambda: RENEW_S, self._renew, first_s=FIRST_S),
                every(FOLLOW_S, self._follow, "follow-mappings"),
            ],
        )

    async def before_sends(self) -> None:
        """Make the changes in the log; a new master that lacks some accepts no messages.

        Then look for newer mappings, for some seconds at most: queues may have moved.
        """
        while True:
            try:
                await self._make_changes()
                break
            except CometError as problem:
                log.error("refusing messages until the static topics are known: %s", problem)
                await asyncio.sleep(RETRY_S)
        await self._look()

    async def _look(self) -> None:
        if not self._core.static_topics.all() or self._core.role.is_slave:
            return
        try:
            async with asyncio.timeout(LOOK_S_MAX):
                await self._newer.get().run_before_sends()
        except TimeoutError:
            log.warning("not all static topics were looked at within %g s", LOOK_S_MAX)

    async def _follow(self) -> None:
        """Make the changes that a slave has received."""
        if self._core.role.is_slave:
            await self._make_changes()

    async def _make_changes(self) -> None:
        if (changes := self.changes_to_make()) is not None:
            await changes

    def changes_to_make(self) -> Awaitable[None] | None:
        """Return what makes the changes in the log that the table lacks; None if it has all."""
        stored = self._core.store.next_offset(MAPPING_TOPIC, MAPPING_QUEUE)
        if stored <= self._core.static_topics.changes_known:
            return None
        return self._changes.get().make()

    def before_truncation(self, log_end: int) -> None:
        """Count no change that is about to be truncated: others may come in its place."""
        stored = self._core.store.end_at(MAPPING_TOPIC, MAPPING_QUEUE, log_end)
        table = self._core.static_topics
        table.changes_known = min(table.changes_known, stored)

    async def _renew(self) -> None:
        """Take over newer mappings, and from time to time remove expired items."""
        if not self._core.static_topics.all() or self._core.role.is_slave:
            return
        await self._newer.get().run()
        loop = asyncio.get_running_loop()
        if loop.time() >= self._clean_from_s:
            await self._expired.get().run()
            self._clean_from_s = loop.time() + CLEAN_S

    async def close(self) -> None:
        """End the requests to other brokers, and write what is not in the file yet."""
        await self.brokers.close()
        await self._core.static_topics.close()
