"""The producer sessions of this broker: the request that opens them, and their maintenance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.model.topic import PRODUCER_SESSION_QUEUE, PRODUCER_SESSION_TOPIC
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import every
from cometmq.store import StoreSettings

if TYPE_CHECKING:
    from cometmq.broker.durability.feature import DurabilityFeature
    from cometmq.broker.producer_sessions.handler import ProducerSessionHandler
    from cometmq.broker.producer_sessions.sessions import ProducerSessions, SessionLimits

MAINTAIN_S = 60.0
HOUR_MS = 3_600_000


class ProducerSessionsFeature(BrokerFeature):
    """Keeps the producer sessions.

    Args:
        core: of the broker.
        durability: acknowledges what openings store.
    """

    def __init__(self, core: Core, durability: DurabilityFeature) -> None:
        super().__init__(core)
        self._durability = durability
        self._store_host = b""
        self.sessions = Deferred(self._make_sessions)
        """The sessions, which sends are checked with: made for the first one."""
        self._handler = Deferred(self._make_handler)

    def _make_sessions(self) -> ProducerSessions:
        from cometmq.broker.producer_sessions.sessions import ProducerSessions

        core = self._core
        return ProducerSessions(
            core.store,
            self._limits,
            clock=core.clock,
            cold_reads=core.cold_reads,
            store_host=self._store_host,
        )

    def _limits(self) -> SessionLimits:
        from cometmq.broker.producer_sessions.sessions import SessionLimits

        settings = self._core.settings()
        kept_ms = self._core.configuration[StoreSettings].file_reserved_hours * HOUR_MS
        return SessionLimits(
            settings.producer_sessions_max, settings.producer_session_expiry_ms, kept_ms // 2
        )

    def _make_handler(self) -> ProducerSessionHandler:
        from cometmq.broker.producer_sessions.handler import ProducerSessionHandler

        return ProducerSessionHandler(self._core, self.sessions.get(), self._durability.wait)

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handler that opens sessions, and the job that maintains their records."""
        self._store_host = endpoint.store_host
        opens = self._handler.handler(lambda h: h.open)
        return Feature(
            {RequestCode.OPEN_PRODUCER_SESSION: opens},
            [every(MAINTAIN_S, self._maintain, "maintain-producer-sessions")],
        )

    async def _maintain(self) -> None:
        has_records = (
            self._core.store.next_offset(PRODUCER_SESSION_TOPIC, PRODUCER_SESSION_QUEUE) > 0
        )
        acknowledges = not self._core.role.is_slave and self._durability.refusal() is None
        if has_records and acknowledges:
            await self.sessions.get().maintain()

    def role_changed(self) -> None:
        """Forget the sessions: a new master reads them from its log when it needs them."""
        self._unload()

    def before_truncation(self, log_end: int) -> None:
        """Forget the sessions: their newest records may be truncated."""
        self._unload()

    def _unload(self) -> None:
        if (sessions := self.sessions.made()) is not None:
            sessions.unload()
