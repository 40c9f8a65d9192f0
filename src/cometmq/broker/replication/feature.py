"""The copies of log and tables between a master and its slaves, and the requests for them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.broker.replication.master import Master, Slave
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Request, Response
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import every
from cometmq.remoting.ports import ha_port

if TYPE_CHECKING:
    from cometmq.broker.delay.feature import DelayFeature
    from cometmq.broker.durability.feature import DurabilityFeature
    from cometmq.broker.failover.feature import Elected
    from cometmq.broker.registration.name_servers import Registration
    from cometmq.broker.replication.greeting import SlaveNames
    from cometmq.broker.replication.handler import HaInfoHandler
    from cometmq.broker.replication.log_tls import LogTls
    from cometmq.broker.replication.metadata import MetadataCopy
    from cometmq.broker.replication.slave import LogCopy
    from cometmq.broker.replication.status import StatusHandler
    from cometmq.broker.timers.feature import TimersFeature

COPY_CHECK_S = 1.0


class StandIn(Protocol):
    """A slave that acts as the master while there is none, as far as replication knows it."""

    has_master: bool
    """Whether there is a master whose tables may be copied."""

    async def announced(self, request: Request) -> Response:
        """Take notice of a master that is about to be there again."""


class ReplicationFeature(BrokerFeature):
    """Sends slaves the log of a master, and copies log and tables of the master of a slave.

    Args:
        core: of the broker.
        durability: syncs the copied log; learns what slaves have.
        delay: takes copies of the schedule offsets.
        timers: learn which slots the master has passed.
        registration: finds the master.
        elected: the log and the role of a broker whose role controllers decide.
        tls: of the connections for the log.
        needs_greeting: whether access control wants signed greetings of slaves.
    """

    def __init__(
        self,
        core: Core,
        durability: DurabilityFeature,
        delay: DelayFeature,
        timers: TimersFeature,
        registration: Registration,
        elected: Elected | None,
        *,
        tls: LogTls,
        needs_greeting: bool,
    ) -> None:
        super().__init__(core)
        self._durability = durability
        self._delay = delay
        self._timers = timers
        self._registration = registration
        self._elected = elected
        self._tls = tls
        self._needs_greeting = needs_greeting
        self._incarnation = os.urandom(16).hex()
        self.stand_in: StandIn | None = None
        """This broker, if it may act as the master."""
        if elected is None:
            self.master = Master(core.role, core.store, core.settings, connect=_connection)
            durability.add_slaves(self.master.acknowledgements, None)
        else:
            self.master = elected.log.master
            durability.add_slaves(self.master.acknowledgements, elected.log.wait_confirmed)
        self.log_copy: Deferred[LogCopy] = Deferred(self._make_log_copy)
        """Copies the log of the master: made when this broker is a slave."""
        self.metadata = Deferred(self._make_metadata)
        """Copies the tables of the master: made when this broker is a slave."""

    def ha_address(self, endpoint: Endpoint) -> str:
        """Return ``host:port`` at which slaves copy the log."""
        return self._core.address.at(self.master.port or ha_port(endpoint.port))

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handlers that serve slaves, and the copy of the master's tables."""
        core, master = self._core, self.master
        started_at = core.store.written_to

        @Deferred
        def state() -> StatusHandler:
            from cometmq.broker.replication.status import StatusHandler

            return StatusHandler(core, master, self.log_copy)

        @Deferred
        def addresses() -> HaInfoHandler:
            from cometmq.broker.replication.handler import HaInfoHandler

            return HaInfoHandler(
                core,
                None if self.stand_in is None else self.stand_in.announced,
                address=endpoint.address,
                log_end=started_at,
                master=master,
            )

        return Feature(
            {
                RequestCode.EXCHANGE_BROKER_HA_INFO: addresses.handler(lambda h: h.exchange),
                RequestCode.GET_BROKER_HA_STATUS: state.handler(lambda h: h.status),
                RequestCode.RESET_MASTER_FLUSH_OFFSET: state.handler(
                    lambda h: h.reset_flush_offset
                ),
            },
            [every(COPY_CHECK_S, self._copy_tables, "copy-tables", first_s=0.0)],
        )

    async def begin(self, endpoint: Endpoint) -> None:
        """Open the port from which slaves copy the log; copy that of the master of a slave."""
        settings = self._core.settings()
        next_port = ha_port(endpoint.port) if settings.listen_port else 0
        await self.master.start(
            settings.bind_address,
            settings.ha_listen_port or next_port,
            self._tls.for_slaves(),
            # Without certificates of clients, TLS lets everyone in.
            needs_greeting=self._needs_greeting or not self._tls.proves_slaves,
        )
        if self._core.role.is_slave:
            self._start_log_copy()

    def role_changed(self) -> None:
        """Close the connections of a slave; copy log and tables of its master."""
        self.master.role_changed()
        if (metadata := self.metadata.made()) is not None:
            metadata.master_changed()
        if (log_copy := self.log_copy.made()) is not None:
            log_copy.role_changed()
        elif self._core.role.is_slave:
            self._start_log_copy()

    def _start_log_copy(self) -> None:
        from cometmq.broker.replication.greeting import Introduction

        core = self._core
        introduction = Introduction(core.client, core.role, self._slave_names)
        self.log_copy.get().start(self._tls.to_master, introduction)

    def _slave_names(self) -> SlaveNames:
        """Return what this broker says of itself to the master whose log it copies."""
        if self._elected is not None:
            return self._elected.role.slave_names()
        from cometmq.broker.replication.greeting import SlaveNames

        return SlaveNames(self._core.role.broker_id, "", "", self._incarnation)

    def _make_log_copy(self) -> LogCopy:
        if self._elected is not None:
            return self._elected.log.copy
        from cometmq.broker.replication.slave import LogCopy

        core = self._core
        return LogCopy(
            core.role,
            core.store,
            core.settings,
            commit=self._durability.synced_by,
            clock=core.clock,
        )

    def _make_metadata(self) -> MetadataCopy:
        from cometmq.broker.replication.metadata import MetadataCopy

        return MetadataCopy(
            self._core,
            self._delay.delivery,
            self._timers.delivery.get(),
            self._registration.hurry,
        )

    async def _copy_tables(self) -> None:
        has_master = self.stand_in is None or self.stand_in.has_master
        if self._core.role.is_slave and has_master:
            await self.metadata.get().run()

    def refuse(self) -> None:
        """Accept no more slaves."""
        self.master.stop_accepting()

    async def end(self) -> None:
        """Copy no more."""
        if (log_copy := self.log_copy.made()) is not None:
            await log_copy.close()

    async def close(self) -> None:
        """Close the connections of all slaves."""
        await self.master.close()


def _connection(master: Master) -> Slave:
    """Make the connection of a slave; its module is loaded for the first one."""
    from cometmq.broker.replication.slave_connection import SlaveConnection

    return SlaveConnection(master)
