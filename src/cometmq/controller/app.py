"""A controller: started and stopped here.

It keeps nothing but heartbeats in memory. Several controllers may run on one etcd; one of them is
active. Brokers send heartbeats to all, so another one can take over within the lease's time.

Source: ControllerManager, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from cometmq.access.account_settings import AccountSettings, server_guard, signing_hooks
from cometmq.controller.active import ActiveController
from cometmq.controller.broker_set_table import BrokerSetTable
from cometmq.controller.config import ControllerSettings, EtcdSettings
from cometmq.controller.elections import Elections
from cometmq.controller.etcd import Etcd, EtcdUnavailableError
from cometmq.controller.handler import NEEDS, ControllerHandler
from cometmq.controller.live_brokers import LiveBrokers
from cometmq.metrics.config import MetricsSettings, has_metrics
from cometmq.model.address import host_and_port
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.remoting import (
    Connection,
    RemotingClient,
    RemotingServer,
    RemotingSettings,
    Supervisor,
    TlsClientSettings,
    TlsSettings,
    exclusive,
    outgoing_context,
)
from cometmq.remoting.config_update import ConfigUpdate
from cometmq.remoting.jobs import Job, JobRunner
from cometmq.remoting.ports import reachable_host
from cometmq.remoting.tls_warnings import log_tls_warnings
from cometmq.system.clock import Clock
from cometmq.system.configuration import Configuration
from cometmq.system.failure_log import FailureLog
from cometmq.system.files import Files
from cometmq.system.log_format import LogSettings

if TYPE_CHECKING:
    from cometmq.metrics.exporter import Exporter
    from cometmq.remoting.latencies import Latencies

log = logging.getLogger(__name__)

SETTINGS = (
    ControllerSettings,
    EtcdSettings,
    AccountSettings,
    RemotingSettings,
    TlsSettings,
    TlsClientSettings,
    MetricsSettings,
    LogSettings,
)
"""The settings classes that a controller's configuration file feeds."""

EXPIRY_FIRST_S = 2.0


class Controller:
    """One controller.

    Args:
        configuration: its settings, see `SETTINGS`.
        etcd: where broker sets are kept; `stop` closes it.
        clock: measures how long brokers have been silent, and the lease.
        files: where changed settings are written.

    Raises:
        ConfigError: a TLS file for connections to brokers, or a file of accounts, cannot be used.
    """

    def __init__(
        self,
        configuration: Configuration,
        etcd: Etcd,
        *,
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> None:
        self.configuration = configuration
        self._etcd = etcd
        self._clock = clock or Clock()
        self._settings = configuration.reader_of(ControllerSettings)
        self._supervisor = Supervisor("controller")
        self._started_s = self._clock.monotonic()
        self._metrics: Exporter | None = None
        self._failures = FailureLog(
            log,
            fails="no election, etcd is unavailable, the next scan elects",
            works="etcd is available again, and elections go on",
            name="group",
        )
        settings = self._settings()
        prefix = f"/cometmq/controllers/{settings.controller_group}/"
        self._client = RemotingClient(
            configuration[RemotingSettings],
            tls=outgoing_context(configuration[TlsClientSettings], configuration[TlsSettings]),
            name="controller-client",
            hooks=signing_hooks(configuration[AccountSettings].inner_client_credentials),
        )
        self._live = LiveBrokers(lambda: int(self._clock.monotonic() * 1000))
        self.active = ActiveController(
            etcd,
            prefix,
            own=self._own,
            ttl_s=settings.lease_s,
            now_s=self._clock.monotonic,
        )
        """The active controller of the group."""
        table = BrokerSetTable(etcd, prefix, note=self._live.note)
        self._elections = Elections(
            table,
            self._live,
            self._client,
            self._supervisor,
            self._settings,
            is_active=lambda: self.active.is_active,
        )
        self.handler = ControllerHandler(
            table, self._live, self._elections, self.active, settings.controller_group
        )
        """Handles the requests of brokers and elections."""
        files = files or Files()
        access = server_guard(configuration, NEEDS, self._clock, files)
        config = ConfigUpdate(
            configuration,
            file=settings.config_store_path,
            files=files,
            invalid=ResponseCode.SYSTEM_ERROR,
        )
        self.routes = self.handler.routes() | {
            RequestCode.UPDATE_CONTROLLER_CONFIG: exclusive(config.handle),
            RequestCode.GET_CONTROLLER_CONFIG: config.show,
        }
        """The handlers of all request codes."""
        if access is not None:
            access.require_stated(self.routes)
        self._latencies: Latencies | None = None
        if has_metrics(configuration):
            from cometmq.controller.metrics import request_latencies

            self._latencies = request_latencies()
        self._server = RemotingServer(
            self.routes,
            settings=configuration[RemotingSettings],
            tls=configuration[TlsSettings],
            name="controller",
            on_close=self._connection_closed,
            access=access,
            latencies=self._latencies,
        )
        self._jobs = JobRunner(
            [
                Job("lease", lambda: settings.lease_s / 3, self._renew, first_s=0.0),
                Job(
                    "expiry",
                    lambda: self._settings().expiry_scan_ms / 1000,
                    self._expire,
                    first_s=EXPIRY_FIRST_S,
                ),
                Job("masters", lambda: self._settings().master_scan_ms / 1000, self.scan),
                *(() if access is None else access.jobs()),
            ]
        )

    @property
    def port(self) -> int:
        """The TCP port; if the system chooses it, it is 0 until started."""
        return self._settings().listen_port

    @property
    def address(self) -> str:
        """``host:port`` as given to brokers."""
        settings = self._settings()
        chosen = settings.controller_ip.strip("[]")
        return host_and_port(reachable_host(chosen or settings.bind_address), self.port)

    def _own(self) -> tuple[str, str]:
        address = self.address
        return self._settings().controller_id or address.replace(":", "-"), address

    async def start(self) -> None:
        """Listen; the controller becomes active later, once etcd responds.

        Raises:
            ConfigError: the address cannot be bound.
        """
        settings = self._settings()
        log_tls_warnings(self.configuration, log)
        await self._server.start(settings.bind_address, settings.listen_port)
        if settings.listen_port == 0:
            self.configuration.set({"listenPort": str(self._server.port)})
        self._started_s = self._clock.monotonic()
        if self._latencies is not None:
            from cometmq.controller.metrics import start_metrics  # most controllers have none

            self._metrics = await start_metrics(
                self.configuration,
                self._own(),
                self.active,
                self._live,
                self._elections,
                self._latencies,
            )
        self._jobs.start()
        log.info("controller started address=%s", self.address)

    async def stop(self, grace_s: float = 3.0) -> None:
        """End the lease, so that another controller is active, then close."""
        if self._metrics is not None:
            await self._metrics.stop()
        await self._jobs.stop()
        await self.active.resign()
        await self._server.stop(grace_s)
        await self._supervisor.cancel()
        await self._client.close()
        await self._etcd.close()
        log.info("controller stopped")

    async def scan(self) -> None:
        """Elect masters for the sets that need one.

        Not before brokers had the time of one interval to send heartbeats: else a controller that
        has just started would depose masters that it does not know yet.
        """
        up_s = self._clock.monotonic() - self._started_s
        if up_s >= self._settings().master_scan_ms / 1000:
            await self._elect(self._elections.scan())

    async def _renew(self) -> None:
        if await self.active.renew():
            await self.scan()

    async def _expire(self) -> None:
        lost = self._live.expire()
        for broker in lost:
            if isinstance(broker.connection, Connection):
                broker.connection.close()
        await self._elect(self._elections.replace(lost))

    def _connection_closed(self, connection: Connection) -> None:
        if lost := self._live.connection_closed(connection):
            self._supervisor.spawn(self._elect(self._elections.replace(lost)), "disconnected")

    async def _elect(self, elections: Awaitable[None]) -> None:
        """Await elections; if etcd does not respond, the next scan elects."""
        group = self._settings().controller_group
        try:
            await elections
        except EtcdUnavailableError as error:
            self._failures.failed(group, error)
        else:
            if self.active.is_active:  # else etcd was not needed
                self._failures.succeeded(group)
