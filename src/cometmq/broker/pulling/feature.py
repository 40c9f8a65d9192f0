"""The held pulls, and the requests for pulls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.broker.prerequisites import with_prerequisites
from cometmq.broker.pulling.arrivals import Arrivals
from cometmq.broker.pulling.fast_path import PullFastPath
from cometmq.broker.pulling.handler import PullHandler
from cometmq.broker.pulling.long_polling import HeldPulls
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.octets import is_compiled
from cometmq.remoting import Connection
from cometmq.remoting.features import Deferred, Feature

if TYPE_CHECKING:
    from cometmq.broker.access.control import AccessControl
    from cometmq.broker.delay.feature import DelayFeature
    from cometmq.broker.durability.feature import DurabilityFeature
    from cometmq.broker.offsets.feature import OffsetsFeature
    from cometmq.broker.static_topics.feature import StaticTopicsFeature
    from cometmq.broker.static_topics.pulls import LogicalPulls
    from cometmq.broker.timers.feature import TimersFeature


class PullingFeature(BrokerFeature):
    """Holds pulls until messages arrive.

    Args:
        core: of the broker.
        durability: shows messages to readers once they are durable.
        delay, timers: get to know of messages that arrive to wait.
        access: checks pulls; None without access control.
        static_topics: the brokers of the items of logical queues.
        offsets: commits the offsets that pulls of logical queues carry.
    """

    def __init__(
        self,
        core: Core,
        durability: DurabilityFeature,
        delay: DelayFeature,
        timers: TimersFeature,
        access: AccessControl | None,
        static_topics: StaticTopicsFeature,
        offsets: OffsetsFeature,
    ) -> None:
        super().__init__(core)
        self._access = access
        self.held = HeldPulls(held_max=core.settings().pull_queue_capacity)
        request_sync = durability.commit.request_sync
        self.arrivals = Arrivals(
            core.store, self.held, delay.delivery.arrived, timers.arrived, request_sync
        )
        """Notifies of messages that readers see."""
        core.static_topics.on_change(self.held.rerun_topic)

        @Deferred
        def logical() -> LogicalPulls:
            from cometmq.broker.static_topics.pulls import LogicalPulls

            return LogicalPulls(
                offsets.logical,
                static_topics.brokers,
                broker_name=core.static_topics.broker_name,
                hold=lambda pull, hold_ms: self.held.hold(pull, hold_ms),
            )

        self._logical = logical

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handlers of pulls; the fast port does not serve them."""
        core = self._core
        handler = PullHandler(core, self.held, self._access, self._logical)
        core.consumers.on_changed_expressions = handler.changed_expressions
        check = None if self._access is None else self._access.for_pulls()
        pull = with_prerequisites(handler.handle)
        return Feature(
            {RequestCode.PULL_MESSAGE: pull, RequestCode.LITE_PULL_MESSAGE: pull},
            fast_path=PullFastPath(handler, check) if is_compiled() else None,
            on_fast_port=False,
        )

    def connection_closed(self, connection: Connection) -> None:
        """Drop the held pulls of the connection."""
        self.held.connection_closed(connection)

    async def end(self) -> None:
        """Respond to the held pulls."""
        self.held.close()
