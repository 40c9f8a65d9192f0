"""The static topics: the request that changes them, and the brokers of their items."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.broker.static_topics.brokers import ItemBrokers
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import Job

if TYPE_CHECKING:
    from cometmq.broker.durability.feature import DurabilityFeature
    from cometmq.broker.static_topics.handler import StaticTopicHandler
    from cometmq.broker.static_topics.newer_parts import NewerParts

FIRST_S = 2.0
"""The first look, soon after the start: queues may have moved while this broker was away."""
NEWER_S = 20.0
"""The interval at which newer mappings are looked for."""


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
        def newer() -> NewerParts:
            from cometmq.broker.static_topics.newer_parts import NewerParts

            return NewerParts(core, self.brokers, name_servers, handler.get().replace)

        self._newer = newer

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handler that creates and changes static topics."""
        put = self._handler.exclusive(lambda h: h.put)
        return Feature(
            {RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: put},
            [Job("take-newer-mappings", lambda: NEWER_S, self._take_newer, first_s=FIRST_S)],
        )

    async def _take_newer(self) -> None:
        """Take over newer mappings, if this broker has any static topic."""
        if self._core.static_topics.all() and not self._core.role.is_slave:
            await self._newer.get().run()

    async def close(self) -> None:
        """End the requests to other brokers, and write what is not in the file yet."""
        await self.brokers.close()
        await self._core.static_topics.close()
