"""The sends: their rules, their flow control, and the requests and jobs for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.broker.prerequisites import with_prerequisites
from cometmq.broker.sending.fast_path import SendFastPath
from cometmq.broker.sending.flow_control import MEASURE_INTERVAL_S, FlowControl, flow_limits
from cometmq.broker.sending.handler import SendHandler
from cometmq.broker.sending.send_back import SendBackHandler
from cometmq.broker.sending.validation import SendRules, SendValidation, send_rules
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.message_id import UniqueIds
from cometmq.remoting import RemotingSettings
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import every
from cometmq.store import StoreSettings

if TYPE_CHECKING:
    from cometmq.broker.access.control import AccessControl
    from cometmq.broker.clients.feature import ClientsFeature
    from cometmq.broker.durability.feature import DurabilityFeature
    from cometmq.broker.forwarding import Forwarding
    from cometmq.broker.producer_sessions.sessions import ProducerSessions
    from cometmq.broker.sending.reply import ReplyHandler
    from cometmq.broker.timers.feature import TimersFeature


class SendingFeature(BrokerFeature):
    """Stores what clients send.

    Args:
        core: of the broker.
        durability: acknowledges stored messages; refuses sends while replicas lack.
        timers: decide which messages wait for their time.
        clients: know which queues are locked.
        sessions: check the sends of producer sessions.
        access: checks sends; None without access control.
        forwarding: forwards sends to the elected master; None without a controller.
    """

    def __init__(
        self,
        core: Core,
        durability: DurabilityFeature,
        timers: TimersFeature,
        clients: ClientsFeature,
        sessions: Deferred[ProducerSessions],
        access: AccessControl | None,
        forwarding: Forwarding | None,
    ) -> None:
        super().__init__(core)
        self._durability = durability.wait
        self._levels = timers.routing.levels
        self._access = access
        self._forwarding = forwarding
        settings = core.settings
        self.flow = FlowControl(lambda: flow_limits(settings()), clock=core.clock, role=core.role)
        self.flow.late_ms_logged = core.configuration[RemotingSettings].slow_request_ms
        durability.on_refusal(self.flow.replicas_changed)
        self._validation = SendValidation(
            self._rules(),
            core.topics,
            core.groups,
            timers.routing,
            holds_locks=clients.locks.holds_any,
            new_unique_key=UniqueIds().next,
            now_ms=core.clock.now_ms,
        )
        self._validation.static_topics = core.static_topics.mappings
        core.static_topics.on_change(lambda _: self._validation.change(self._rules()))

        def check_session(topic: str, name: str, epoch: int, owner: str) -> None:
            sessions.get().check_send(topic, name, epoch, owner)

        self._validation.check_session = check_session

    def _rules(self) -> SendRules:
        core = self._core
        return send_rules(core.settings(), core.configuration[StoreSettings], core.address.host)

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handlers of sends, send-backs and replies, and what measures the load."""
        core = self._core
        send = SendHandler(
            core.store,
            self._validation,
            self.flow,
            core.stats,
            core.measures.throughput,
            durability=self._durability,
            store_host=endpoint.store_host,
            latencies=core.measures.latencies,
        )
        store_sends = with_prerequisites(send.handle, send.failed)
        if self._forwarding is not None:
            store_sends = self._forwarding.wrap(store_sends)
        back = SendBackHandler(
            core.store,
            topics=core.topics,
            groups=core.groups,
            levels=self._levels,
            stats=core.stats,
            settings=core.settings,
            role=core.role,
            host=core.address.host,
            store_host=endpoint.store_host,
            cold_reads=core.cold_reads,
            durability=self._durability,
        )

        @Deferred
        def replies() -> ReplyHandler:
            from cometmq.broker.sending.reply import ReplyHandler

            return ReplyHandler(
                core.store,
                self._validation,
                core.stats,
                durability=self._durability,
                producers=core.producers,
                settings=core.settings,
                role=core.role,
                clock=core.clock,
                store_host=endpoint.store_host,
                store_address=endpoint.address,
            )

        reply = replies.handler(lambda h: h.reply)
        return Feature(
            {
                RequestCode.SEND_MESSAGE: store_sends,
                RequestCode.SEND_MESSAGE_V2: store_sends,
                RequestCode.SEND_BATCH_MESSAGE: store_sends,
                RequestCode.CONSUMER_SEND_MSG_BACK: with_prerequisites(back.send_back),
                RequestCode.SEND_REPLY_MESSAGE: reply,
                RequestCode.SEND_REPLY_MESSAGE_V2: reply,
            },
            [every(MEASURE_INTERVAL_S, self.flow.measure, "measure-flow")],
            fast_path=SendFastPath(
                send,
                check=None if self._access is None else self._access.for_sends(),
            ),
        )

    async def settings_changed(self, changes: Mapping[str, str]) -> None:
        """Validate sends by the changed settings."""
        self._validation.change(self._rules())

    def role_changed(self) -> None:
        """Refuse all sends of a slave."""
        self.flow.role_changed()

    def refuse(self) -> None:
        """Refuse all sends."""
        self.flow.stop()
