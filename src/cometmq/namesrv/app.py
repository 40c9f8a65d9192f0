"""A name server: composed here, started and stopped here.

Name servers do not know of each other: every broker registers with each of them, and a client may
ask any. All they know is in memory, except the key-value table.

Source: NamesrvController, RocketMQ 5.3.
"""

from __future__ import annotations

import contextlib
import logging

from cometmq.model.errors import RemotingError
from cometmq.namesrv.commands import commands
from cometmq.namesrv.config import NameServerSettings
from cometmq.namesrv.kv_config import KvConfig
from cometmq.namesrv.processors import (
    BrokerRequests,
    ConfigRequests,
    KvRequests,
    RouteRequests,
    TopicRequests,
)
from cometmq.namesrv.registry import Expired, MinIdNotice, Registry
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import NotifyMinBrokerIdChangeRequest
from cometmq.remoting import (
    Connection,
    RemotingClient,
    RemotingServer,
    RemotingSettings,
    Supervisor,
    TlsClientSettings,
    TlsSettings,
    access_warnings,
    outgoing_context,
)
from cometmq.store.config_files import JsonFile
from cometmq.system.clock import Clock, SystemClock
from cometmq.system.configuration import Configuration, keep_in
from cometmq.system.files import Files, SystemFiles

log = logging.getLogger(__name__)

SETTINGS = (NameServerSettings, RemotingSettings, TlsSettings, TlsClientSettings)
"""The settings classes that a name server's configuration file feeds."""


class NameServer:
    """One name server.

    Args:
        settings: its settings alone, or a whole configuration (see `SETTINGS`), which requests
            may then change.
        clock: tells how long brokers have been silent.
        files: the way to the key-value table's file.

    Raises:
        StoreError: the key-value table's file cannot be read.
        ConfigError: a TLS file for connections to brokers cannot be used.
    """

    def __init__(
        self,
        settings: NameServerSettings | Configuration | None = None,
        *,
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> None:
        self.configuration = _configuration(settings or NameServerSettings())
        self.registry = Registry()
        self._clock = clock or SystemClock()
        self._files = files or SystemFiles()
        self._settings = self.configuration.view(NameServerSettings)
        self._supervisor = Supervisor("namesrv")
        self._started_ms = self._now_ms()
        self._server = self._compose()
        self._client = RemotingClient(
            self.configuration[RemotingSettings],
            tls=outgoing_context(
                self.configuration[TlsClientSettings], self.configuration[TlsSettings]
            ),
            name="namesrv-client",
        )

    def _compose(self) -> RemotingServer:
        settings = self._settings()
        kv_file = JsonFile(settings.kv_config_path, self._files)
        kv = KvConfig(kv_file.load(), kv_file.save)
        persist = keep_in(settings.config_store_path, self._files)
        processors = commands(
            BrokerRequests(
                self.registry, kv, self._settings, now_ms=self._now_ms, notify=self._notify
            ),
            RouteRequests(self.registry, kv, self._settings, up_ms=self._up_ms),
            TopicRequests(self.registry, self._settings),
            KvRequests(kv),
            ConfigRequests(self.configuration, persist),
        )
        return RemotingServer(
            processors,
            settings=self.configuration[RemotingSettings],
            tls=self.configuration[TlsSettings],
            name="namesrv",
            on_close=self._connection_closed,
        )

    @property
    def port(self) -> int:
        """The TCP port, known once started."""
        return self._server.port

    @property
    def address(self) -> str:
        """``host:port`` as set, known once started."""
        return f"{self._settings().bind_address}:{self.port}"

    async def start(self) -> None:
        """Listen; brokers may register when this returns.

        Raises:
            ConfigError: the address cannot be bound.
        """
        for warning in access_warnings(self.configuration[TlsSettings]):
            log.warning("%s", warning)
        settings = self._settings()
        await self._server.start(settings.bind_address, settings.listen_port)
        self._started_ms = self._now_ms()
        if settings.listen_port == 0:
            self.configuration.set({"listenPort": str(self.port)})
        self._supervisor.every(settings.expiry_scan_ms / 1000, self.expire_silent, "expiry")
        log.info("name server started address=%s", self.address)

    async def stop(self, grace_s: float = 3.0) -> None:
        """Stop listening, let running requests answer for ``grace_s`` seconds, then close."""
        await self._server.stop(grace_s)
        await self._supervisor.cancel()
        await self._client.close()
        log.info("name server stopped")

    def expire_silent(self) -> None:
        """Take the brokers out of all routes that were silent for too long."""
        for expired in self.registry.expire(self._now_ms()):
            self._drop(expired)

    def _drop(self, expired: Expired) -> None:
        log.warning("broker heartbeat timed out address=%s", expired.key.address)
        if isinstance(expired.connection, Connection):
            expired.connection.close()
        if expired.notice is not None:
            self._notify(expired.notice)

    def _connection_closed(self, connection: Connection) -> None:
        known = len(self.registry.live)
        for notice in self.registry.disconnected(connection):
            self._notify(notice)
        if len(self.registry.live) < known:
            log.warning("broker connection closed peer=%s", connection.peer_text)

    def _notify(self, notice: MinIdNotice) -> None:
        if self._settings().notify_min_broker_id:
            self._supervisor.spawn(self._send(notice), "notify")

    async def _send(self, notice: MinIdNotice) -> None:
        header = NotifyMinBrokerIdChangeRequest(
            min_broker_id=notice.min_id,
            min_broker_addr=notice.min_address,
            offline_broker_addr=notice.offline_address,
            ha_broker_addr=notice.ha_address,
        )
        for target in notice.targets:
            with contextlib.suppress(RemotingError):
                await self._client.oneway(target, RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header)

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def _up_ms(self) -> int:
        return self._now_ms() - self._started_ms


def _configuration(settings: NameServerSettings | Configuration) -> Configuration:
    if isinstance(settings, Configuration):
        return settings
    return Configuration.of(settings, RemotingSettings(), TlsSettings(), TlsClientSettings())
