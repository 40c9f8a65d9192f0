"""A master and its slaves with ``enableSlaveActingMaster``: their life, requests and jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Feature
from cometmq.remoting.jobs import Job
from cometmq.remoting.ports import ha_port

if TYPE_CHECKING:
    from cometmq.broker.acting_master.popped_messages import PoppedMessages
    from cometmq.broker.acting_master.service import ActingMaster
    from cometmq.broker.delay.feature import DelayFeature
    from cometmq.broker.pop.feature import PopFeature
    from cometmq.broker.registration.name_servers import Registration
    from cometmq.broker.replication.feature import ReplicationFeature
    from cometmq.broker.timers.feature import TimersFeature
    from cometmq.broker.transactions.feature import TransactionsFeature


class OffsetTakeoverFeature(BrokerFeature):
    """Takes over the offsets of a slave that acted as the master while this one was gone.

    Args:
        core: of the broker.
        delay: takes over the schedule offsets.
        timers: take over the passed slots.
        name_servers: returns the addresses of the name servers.
    """

    def __init__(
        self,
        core: Core,
        delay: DelayFeature,
        timers: TimersFeature,
        name_servers: Callable[[], Sequence[str]],
    ) -> None:
        super().__init__(core)
        self._delay = delay
        self._timers = timers
        self._name_servers = name_servers

    async def start(self) -> None:
        """Take them over before the slave copies those here."""
        core, settings = self._core, self._core.settings()
        if core.role.is_slave or not settings.enable_slave_acting_master:
            return
        # Most brokers never need these.
        from cometmq.broker.acting_master.offset_takeover import take_over_offsets
        from cometmq.protocol.headers.broker_admin import ExchangeBrokerHaInfoRequest
        from cometmq.protocol.headers.namesrv import GetBrokerMemberGroupRequest

        announcement = None
        if port := settings.listen_port:  # else the system chooses the ports
            announcement = ExchangeBrokerHaInfoRequest(
                master_ha_address=core.address.at(settings.ha_listen_port or ha_port(port)),
                master_flush_offset=core.store.written_to,
                master_address=core.address.at(port),
            )
        await take_over_offsets(
            core.client,
            self._name_servers(),
            GetBrokerMemberGroupRequest(
                cluster_name=settings.broker_cluster_name, broker_name=settings.broker_name
            ),
            announcement,
            offsets=core.offsets,
            bounds=core.store.bounds,
            delay=self._delay.delivery,
            timers=self._timers.delivery.get(),
        )


class ActingMasterFeature(BrokerFeature):
    """Sends heartbeats to name servers, and acts as the master while there is none.

    Args:
        core: of the broker.
        registration: knows the name servers.
        replication: hears the master; learns whether there is one.
        delay, timers, transactions, pop: have the messages that go to other brokers meanwhile.
    """

    def __init__(
        self,
        core: Core,
        registration: Registration,
        replication: ReplicationFeature,
        delay: DelayFeature,
        timers: TimersFeature,
        transactions: TransactionsFeature,
        pop: PopFeature,
    ) -> None:
        super().__init__(core)
        self._registration = registration
        self._pop = pop
        self.acting: ActingMaster | None = None
        """None without ``enableSlaveActingMaster``."""
        if core.settings().enable_slave_acting_master:
            from cometmq.broker.acting_master.service import ActingMaster

            replication.stand_in = self.acting = ActingMaster(
                core,
                registration,
                hears_master=lambda seconds: replication.log_copy.get().hears_master(seconds),
                delay=delay.delivery,
                timers=timers.delivery.get() if timers.rules().is_enabled else None,
                halves=transactions.half_queue,
                popped=self._popped,
            )

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the heartbeats to name servers, and the check whether there is a master."""
        if self.acting is None:
            return Feature({})
        return Feature(
            {RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: self.acting.smallest_id_changed},
            [
                Job("send-heartbeats", self._heartbeat_s, self._registration.send_heartbeats),
                Job("check-master", self._check_s, self.acting.check, first_s=0.0),
            ],
        )

    def _popped(self) -> PoppedMessages:
        from cometmq.broker.acting_master.popped_messages import PoppedMessages

        parts = self._pop.parts.get()
        return PoppedMessages(self._core, parts.log_of_master(), parts.reviver)

    def _heartbeat_s(self) -> float:
        return self._core.settings().broker_heartbeat_interval_ms / 1000

    def _check_s(self) -> float:
        return self._core.settings().sync_broker_member_group_period_ms / 1000

    async def end(self) -> None:
        """Act as the master no more."""
        if self.acting is not None:
            await self.acting.stop()
