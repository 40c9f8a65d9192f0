"""A name server: started and stopped here.

Name servers do not know each other: a broker registers with each of them, and a client may use any
of them. Everything is in memory except the key-value table.

Source: NamesrvController, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cometmq.access.account_settings import AccountSettings, server_guard, signing_hooks
from cometmq.metrics.config import MetricsSettings, has_metrics
from cometmq.model.address import host_and_port
from cometmq.namesrv.assembly import FEATURES, NEEDS
from cometmq.namesrv.config import NameServerSettings
from cometmq.namesrv.core import open_core
from cometmq.namesrv.registry import Registry
from cometmq.remoting import (
    RemotingClient,
    RemotingServer,
    RemotingSettings,
    Supervisor,
    TlsClientSettings,
    TlsSettings,
    outgoing_context,
)
from cometmq.remoting.features import handlers_of
from cometmq.remoting.jobs import JobRunner
from cometmq.remoting.tls_warnings import log_tls_warnings
from cometmq.system.clock import Clock
from cometmq.system.configuration import Configuration
from cometmq.system.files import Files
from cometmq.system.log_format import LogSettings
from cometmq.system.rocketmq_keys import NAMESRV_KEYS

if TYPE_CHECKING:
    from cometmq.access.server_guard import ServerGuard
    from cometmq.metrics.exporter import Exporter

log = logging.getLogger(__name__)

SETTINGS = (
    NameServerSettings,
    AccountSettings,
    RemotingSettings,
    TlsSettings,
    TlsClientSettings,
    MetricsSettings,
    LogSettings,
)
"""The settings classes that a name server's configuration file feeds."""


class NameServer:
    """One name server.

    Args:
        settings: its settings alone, or a whole configuration (see `SETTINGS`), which requests
            may then change.
        clock: measures how long brokers have been silent.
        files: the disk, for the file of the key-value table and of changed settings.
        access: checks requests, in place of the accounts of the settings.

    Raises:
        StoreError: the key-value table's file cannot be read.
        ConfigError: a TLS file for connections to brokers, or a file of accounts, cannot be used.
    """

    def __init__(
        self,
        settings: NameServerSettings | Configuration | None = None,
        *,
        clock: Clock | None = None,
        files: Files | None = None,
        access: ServerGuard | None = None,
    ) -> None:
        self.configuration = _configuration(settings or NameServerSettings())
        self._clock = clock or Clock()
        self._settings = self.configuration.reader_of(NameServerSettings)
        self._supervisor = Supervisor("namesrv")
        self._started_ms = self._now_ms()
        self._client = RemotingClient(
            self.configuration[RemotingSettings],
            tls=outgoing_context(
                self.configuration[TlsClientSettings], self.configuration[TlsSettings]
            ),
            name="namesrv-client",
            hooks=signing_hooks(self.configuration[AccountSettings].inner_client_credentials),
        )
        files = files or Files()
        if access is None:
            access = server_guard(self.configuration, NEEDS, self._clock, files)
        self.core = open_core(
            self.configuration,
            client=self._client,
            supervisor=self._supervisor,
            files=files,
            now_ms=self._now_ms,
            up_ms=lambda: self._now_ms() - self._started_ms,
        )
        self._metrics: Exporter | None = None
        features = [build(self.core) for build in FEATURES]
        jobs = [job for feature in features for job in feature.jobs]
        self._jobs = JobRunner(jobs if access is None else [*jobs, *access.jobs()])
        served = handlers_of(features)
        if access is not None:
            access.require_stated(served)
        self._server = RemotingServer(
            served,
            settings=self.configuration[RemotingSettings],
            tls=self.configuration[TlsSettings],
            name="namesrv",
            on_close=self.core.liveness.connection_closed,
            access=access,
        )

    @property
    def registry(self) -> Registry:
        """The registered brokers and their topics."""
        return self.core.registry

    @property
    def port(self) -> int:
        """The TCP port, known once started."""
        return self._server.port

    @property
    def address(self) -> str:
        """``host:port`` as set, known once started."""
        return host_and_port(self._settings().bind_address, self.port)

    async def start(self) -> None:
        """Listen; brokers may register when this returns.

        Raises:
            ConfigError: the address cannot be bound.
        """
        log_tls_warnings(self.configuration, log)
        settings = self._settings()
        await self._server.start(settings.bind_address, settings.listen_port)
        self._started_ms = self._now_ms()
        if settings.listen_port == 0:
            self.configuration.set({"listenPort": str(self.port)})
        if has_metrics(self.configuration):
            from cometmq.namesrv.admin.metrics import start_metrics  # most servers have none

            self._metrics = await start_metrics(self.core, self.address)
        self._jobs.start()
        log.info("name server started address=%s", self.address)

    async def stop(self, grace_s: float = 3.0) -> None:
        """Stop listening, give running requests ``grace_s`` seconds to respond, then close."""
        if self._metrics is not None:
            await self._metrics.stop()
        await self._server.stop(grace_s)
        await self._jobs.stop()
        await self._supervisor.cancel()
        await self._client.close()
        log.info("name server stopped")

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)


def _configuration(settings: NameServerSettings | Configuration) -> Configuration:
    if isinstance(settings, Configuration):
        return settings
    parts = (settings, AccountSettings(), RemotingSettings(), TlsSettings(), TlsClientSettings())
    return Configuration.of(*parts, known_keys=NAMESRV_KEYS)
