"""A broker: composed, started and stopped here.

Start: open the store, listen, deliver delayed messages, register at the name servers. Stop, in
reverse: take no new connections, leave the name servers, answer what waits, write everything down.

Source: BrokerController, RocketMQ 5.3; registered before it says that it is ready is ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cometmq.broker.assembly import Parts, assemble, intake_rules
from cometmq.broker.config import BrokerSettings
from cometmq.broker.jobs import jobs
from cometmq.broker.processors.plain_frames import PlainFrames
from cometmq.broker.processors.plain_pull import PlainPulls
from cometmq.broker.processors.plain_send import PlainSends
from cometmq.broker.routes import (
    ONLY_ON_THE_MAIN_PORT,
    pull_processor,
    routes,
    send_processor,
)
from cometmq.broker.services.housekeeping import Housekeeping
from cometmq.broker.services.registration import Identity, Registration
from cometmq.protocol.octets import is_compiled
from cometmq.remoting import (
    Connection,
    Processor,
    RemotingClient,
    RemotingServer,
    RemotingSettings,
    TlsClientSettings,
    TlsSettings,
    access_warnings,
    outgoing_context,
)
from cometmq.store import StoreSettings
from cometmq.system.clock import Clock, SystemClock
from cometmq.system.configuration import Configuration
from cometmq.system.files import Files, SystemFiles

log = logging.getLogger(__name__)

SETTINGS = (BrokerSettings, StoreSettings, RemotingSettings, TlsSettings, TlsClientSettings)
"""The settings classes that a broker's configuration file feeds."""

DRAIN_S = 1.0
HOUSEKEEPING_S = 0.5


class Broker:
    """One broker.

    Args:
        configuration: its settings, see `SETTINGS`; requests may change some of them.
        name_servers: gives the addresses to register at when the broker starts; by default those
            of the settings.
        config_file: where settings are kept that requests change.
        clock, files: the outside world.

    Raises:
        ConfigError: a TLS file for connections to name servers cannot be used.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        name_servers: Callable[[], Sequence[str]] | None = None,
        config_file: Path | None = None,
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> None:
        self.configuration = configuration
        self._settings = configuration.view(BrokerSettings)
        self._name_servers = name_servers or (lambda: self._settings().namesrv_addr)
        self._config_file = config_file
        self._clock = clock or SystemClock()
        self._files = files or SystemFiles()
        self._parts: Parts | None = None
        self._servers: list[RemotingServer] = []
        self._client = RemotingClient(
            configuration[RemotingSettings],
            tls=outgoing_context(configuration[TlsClientSettings], configuration[TlsSettings]),
            name="broker-client",
        )
        self._registration: Registration | None = None
        self._housekeeping: Housekeeping | None = None
        self._is_stopped = False

    @property
    def parts(self) -> Parts:
        """What the broker is made of, once started."""
        assert self._parts is not None, "not started"
        return self._parts

    @property
    def port(self) -> int:
        """The real port."""
        return self._servers[0].port

    @property
    def address(self) -> str:
        """``host:port`` as registered."""
        return self.parts.address.at(self.port)

    async def start(self) -> None:
        """Serve; returns when the name servers know of it, or have been asked in vain.

        Raises:
            ConfigError: a port cannot be bound.
            StoreError: the store cannot be opened; nothing of it was changed for the worse.
        """
        self._parts = parts = assemble(self.configuration, clock=self._clock, files=self._files)
        registration = Registration(self._client, parts.topics, self._settings)
        self._registration = registration
        parts.topics.on_change = registration.wake
        await self._listen(parts, registration)
        parts.commit.start()
        parts.delay.start()
        self._housekeeping = Housekeeping(jobs(parts))
        self._housekeeping.start()
        await registration.start(self._identity(), self._name_servers())

    async def _listen(self, parts: Parts, registration: Registration) -> None:
        for warning in access_warnings(self.configuration[TlsSettings]):
            log.warning("%s", warning)
        settings = self._settings()
        table: dict[int, Processor] = {}
        main = self._server("broker", table)
        await main.start(settings.bind_address, settings.listen_port)
        self._servers = [main]
        send, pull = send_processor(parts, main.port), pull_processor(parts)
        table.update(
            routes(
                parts,
                send,
                pull,
                port=main.port,
                announce=registration.announce,
                config_file=self._config_file,
                config_changed=self._config_changed,
            )
        )
        sends = PlainSends(send, self.configuration[RemotingSettings].frame_bytes_max)
        main.fast_path = PlainFrames(sends, PlainPulls(pull)) if is_compiled() else sends
        if settings.fast_port_enable and main.port > 2:
            fast = {code: p for code, p in table.items() if code not in ONLY_ON_THE_MAIN_PORT}
            server = self._server("broker-fast", fast)
            server.fast_path = sends
            choice = "it is two below listenPort; fastPortEnable=false does without it"
            await server.start(settings.bind_address, main.port - 2, choice=choice)
            self._servers.append(server)

    def _server(self, name: str, table: Mapping[int, Processor]) -> RemotingServer:
        return RemotingServer(
            table,
            settings=self.configuration[RemotingSettings],
            tls=self.configuration[TlsSettings],
            name=name,
            on_close=self._connection_closed,
        )

    def _identity(self) -> Identity:
        settings = self._settings()
        return Identity(
            cluster=settings.broker_cluster_name,
            broker_name=settings.broker_name,
            broker_id=settings.broker_id,
            address=self.address,
            ha_address=self.parts.address.at(self.port + 1),
        )

    def _connection_closed(self, connection: Connection) -> None:
        parts = self.parts
        parts.held.connection_closed(connection)
        parts.consumers.connection_closed(connection)
        parts.producers.connection_closed(connection)

    def _config_changed(self, changes: Mapping[str, str]) -> None:
        """Make changed settings hold where they were copied, and tell the name servers."""
        parts = self.parts
        stored = self.configuration[StoreSettings]
        parts.intake.change(intake_rules(self._settings(), stored, parts.address.host))
        parts.store.reconfigure(stored)
        if "brokerPermission" in changes:
            parts.topics.touch()

    async def stop(self) -> None:
        """Leave the name servers, answer what waits, write everything down; within seconds.

        Also after a start that failed. Whatever goes wrong, the store is closed.

        Raises:
            StoreError: the disk refused what the store had left to write.
        """
        if self._parts is None or self._is_stopped:
            return
        self._is_stopped = True
        try:
            await self._wind_down(self._parts)
        finally:
            self._put_away(self._parts)
        log.info("stopped broker=%s", self._settings().broker_name)

    async def _wind_down(self, parts: Parts) -> None:
        """Refuse what is new, and let what has begun come to its end."""
        for server in self._servers:
            server.stop_accepting()
        parts.flow.stop()
        parts.delay.stop()
        parts.held.close()
        leaving = [parts.commit.stop()]
        if self._registration is not None:
            leaving.append(self._registration.stop())
        await _all_of(leaving)
        await _all_of([server.stop(DRAIN_S) for server in self._servers])
        ending = [self._client.close()]
        if self._housekeeping is not None:
            ending.append(self._housekeeping.stop(HOUSEKEEPING_S))
        await _all_of(ending)

    def _put_away(self, parts: Parts) -> None:
        """Write everything down and let go of the store."""
        for persist in (parts.offsets.persist, parts.delay.persist):
            try:
                persist()
            except Exception:
                log.exception("cannot write offsets during shutdown")
        parts.store.close()


async def _all_of(endings: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Let parts end side by side; one that fails keeps none of the others from it."""
    for outcome in await asyncio.gather(*endings, return_exceptions=True):
        if isinstance(outcome, Exception):
            log.error("a component failed during shutdown", exc_info=outcome)
