"""A broker: started and stopped here.

Start: open the store, listen, deliver scheduled messages, register with the name servers. Stop, in
reverse order: accept no new connections, unregister, respond to waiting requests, write everything
to disk.

Source: BrokerController, RocketMQ 5.3; unlike there, a broker registers before it reports
that it is ready.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cometmq.access.account_settings import signing_hooks
from cometmq.access.user_settings import UserSettings
from cometmq.broker.assembly import FEATURES, Endpoint, Parts, assemble
from cometmq.broker.config import BrokerSettings
from cometmq.broker.fast_paths import FastPaths
from cometmq.broker.registration import Identity
from cometmq.broker.replication.greeting import Introduction, SlaveNames
from cometmq.broker.transactions.half_queue import HalfQueue
from cometmq.metrics.config import MetricsSettings, has_metrics
from cometmq.model.errors import CometError, StoreError
from cometmq.protocol.headers import GetBrokerMemberGroupRequest
from cometmq.protocol.record import encode_host
from cometmq.remoting import (
    Connection,
    RemotingClient,
    RemotingServer,
    RemotingSettings,
    RequestHandler,
    Supervisor,
    TlsClientSettings,
    TlsSettings,
    access_warnings,
    outgoing_context,
)
from cometmq.remoting.features import Feature, handlers_of
from cometmq.remoting.jobs import JobRunner
from cometmq.remoting.ports import fast_port, ha_port
from cometmq.remoting.tls import server_context
from cometmq.remoting.wire import FastPath
from cometmq.store import StoreSettings
from cometmq.system.clock import Clock, SystemClock
from cometmq.system.configuration import Configuration
from cometmq.system.files import Files, SystemFiles
from cometmq.system.log_format import LogSettings

if TYPE_CHECKING:
    from cometmq.access.gate import Accounts
    from cometmq.broker.failover.elected_role import ElectedRole
    from cometmq.metrics.exporter import Exporter

log = logging.getLogger(__name__)

SETTINGS = (
    BrokerSettings,
    UserSettings,
    StoreSettings,
    RemotingSettings,
    TlsSettings,
    TlsClientSettings,
    MetricsSettings,
    LogSettings,
)
"""The settings classes that a broker's configuration file feeds."""

SLAVES_S = 2.0
"""How long a stop waits for slaves to have what was sent."""
DECISION_S = 10.0
"""How long a start waits for controllers and name servers."""
DRAIN_S = 1.0
JOBS_S = 0.5


class Broker:
    """One broker.

    Args:
        configuration: its settings, see `SETTINGS`; requests may change some of them.
        name_servers: returns the addresses to register at when the broker starts; by default those
            of the settings.
        config_file: where changed settings are written.
        clock, files: time and disk.

    Raises:
        ConfigError: a TLS file for connections to other servers, or the account that signs its
            requests to them, cannot be used.
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
        self._settings = configuration.reader_of(BrokerSettings)
        self._name_servers = name_servers or (lambda: self._settings().namesrv_addr)
        self._config_file = config_file
        self._clock = clock or SystemClock()
        self._files = files or SystemFiles()
        self._parts: Parts | None = None
        self._servers: list[RemotingServer] = []
        server_tls, client_tls = configuration[TlsSettings], configuration[TlsClientSettings]
        chosen = self._settings().ha_tls_enable
        self._log_uses_tls = server_tls.mode == "enforcing" if chosen is None else chosen
        self._log_context = (
            outgoing_context(replace(client_tls, enable=True), server_tls)
            if self._log_uses_tls
            else None
        )
        self._client = RemotingClient(
            configuration[RemotingSettings],
            tls=outgoing_context(client_tls, server_tls),
            name="broker-client",
            hooks=signing_hooks(self._settings().inner_client_credentials),
            close_silent=True,
        )
        self._jobs: JobRunner | None = None
        self._metrics: Exporter | None = None
        self._role_tasks = Supervisor("role")
        self._settled = asyncio.Event()
        """Set while the role is in force: a slave, or a master that accepts sends."""
        self._settled.set()
        self._taking_over: asyncio.Task[None] | None = None
        self._incarnation = secrets.token_hex(16)
        self._is_stopped = False

    @property
    def parts(self) -> Parts:
        """The parts of the broker, once started."""
        assert self._parts is not None, "not started"
        return self._parts

    @property
    def accounts(self) -> Accounts | None:
        """The accounts or users; None without any, and before they are read."""
        return None if self._parts is None else self._parts.accounts or self._parts.users

    @property
    def port(self) -> int:
        """The real port."""
        return self._servers[0].port

    @property
    def address(self) -> str:
        """``host:port`` as registered."""
        return self.parts.address.at(self.port)

    async def start(self) -> None:
        """Start; return when the broker is registered, or when the time for that is over.

        Raises:
            ConfigError: a port cannot be bound.
            StoreError: the store cannot be opened; it was not changed.
        """
        self._parts = parts = assemble(
            self.configuration,
            client=self._client,
            config_file=self._config_file,
            clock=self._clock,
            files=self._files,
        )
        loop = asyncio.get_running_loop()
        if not parts.role.is_slave:  # the log of a slave may begin with another file
            parts.store.allocate_first_segment()
        try:
            await loop.run_in_executor(None, parts.store.wait_for_segment)
        except StoreError as problem:  # sends wait for the file, or are refused
            log.warning("cannot allocate the first commit-log file: %s", problem)
        parts.commit.start()
        if not parts.role.is_slave:
            if self._settings().enable_slave_acting_master:  # before the slave copies those here
                await self._take_over_offsets(parts)
            await self._load_half_queue(parts.half_queue)
        features = await self._listen(parts)
        if not parts.role.is_slave:
            parts.delay.start()
        parts.role.on_change(self._role_changed)
        self._jobs = JobRunner([job for feature in features for job in feature.jobs])
        self._jobs.start()
        if parts.role.is_slave:
            self._start_log_copy(parts)
        if has_metrics(self.configuration):
            from cometmq.broker.stats.metrics import start_metrics  # most brokers have none

            self._metrics = await start_metrics(parts, self.address)
        if parts.elected is None:
            await parts.registration.start(self._identity(), self._name_servers())
        else:
            await self._start_elected(parts, parts.elected)

    async def _start_elected(self, parts: Parts, elected: ElectedRole) -> None:
        """Register with the controllers, and with name servers once these have decided the role."""

        async def register_once_decided() -> None:
            await elected.decided.wait()
            await self._settled.wait()
            await parts.registration.start(self._identity(), self._name_servers())

        elected.start(self.address)
        registering = self._role_tasks.spawn(register_once_decided(), "register-elected")
        _, late = await asyncio.wait([registering], timeout=DECISION_S)
        if late:
            log.warning(
                "refusing sends until the role is decided, retrying controllers=%s",
                ";".join(self._settings().controller_addr),
            )

    def _start_log_copy(self, parts: Parts) -> None:
        introduction = Introduction(self._client, parts.role, self._slave_names)
        parts.log_copy.get().start(self._log_context, introduction)

    def _slave_names(self) -> SlaveNames:
        """Return what this broker says of itself to the master whose log it copies."""
        if self.parts.elected is not None:
            return self.parts.elected.slave_names()
        return SlaveNames(self.parts.role.broker_id, "", "", self._incarnation)

    async def _take_over_offsets(self, parts: Parts) -> None:
        """Take over the offsets of a slave that acted as the master while this one was gone."""
        # Most brokers never need these.
        from cometmq.broker.acting_master.offset_takeover import take_over_offsets
        from cometmq.protocol.headers import ExchangeBrokerHaInfoRequest

        settings = self._settings()
        announcement = None
        if port := settings.listen_port:  # else the system chooses the ports
            announcement = ExchangeBrokerHaInfoRequest(
                master_ha_address=parts.address.at(settings.ha_listen_port or ha_port(port)),
                master_flush_offset=parts.store.written_to,
                master_address=parts.address.at(port),
            )
        await take_over_offsets(
            self._client,
            self._name_servers(),
            GetBrokerMemberGroupRequest(
                cluster_name=settings.broker_cluster_name, broker_name=settings.broker_name
            ),
            announcement,
            offsets=parts.offsets,
            bounds=parts.store.bounds,
            delay=parts.delay,
        )

    def _role_changed(self) -> None:
        """Start or stop what only masters do."""
        if self._is_stopped:
            return
        parts = self.parts
        log.info("role changed role=%s broker_id=%d", parts.role.name, parts.role.broker_id)
        if self._taking_over is not None:
            self._taking_over.cancel()
        if parts.role.is_slave:
            parts.delay.stop()
            parts.half_queue.unload()
            parts.store.release()
            self._settled.set()
            if parts.log_copy.made() is None:
                self._start_log_copy(parts)
        else:
            parts.store.hold("this broker is about to take the place of its master")
            parts.half_queue.is_taking_over = True
            self._settled.clear()
            self._taking_over = self._role_tasks.spawn(self._take_over(parts), "take-over")

    async def _take_over(self, parts: Parts) -> None:
        """Do what a master does beside serving requests; the role may change again meanwhile."""
        loop = asyncio.get_running_loop()
        try:  # with synchronous flush, reads find only what is on the disk
            await loop.run_in_executor(None, parts.store.flush)
        except StoreError as problem:
            log.warning("cannot flush the log: %s", problem)
        if not parts.role.is_slave:
            await parts.offsets.correct(parts.store.next_offset)
        if parts.role.is_slave:
            return
        parts.half_queue.note_log_end()
        parts.store.release()
        self._settled.set()
        if parts.elected is not None:  # what follows reads the log
            await parts.elected.replication.wait_confirmed()
        if not parts.role.is_slave:
            parts.half_queue.is_taking_over = False
            await self._load_half_queue(parts.half_queue)
        if not parts.role.is_slave:
            await parts.delay.take_over()
        if parts.role.is_slave:
            parts.delay.stop()

    async def _load_half_queue(self, half_queue: HalfQueue) -> None:
        """Read which transactions are decided; the checks try again if the disk refuses."""
        try:
            if not await half_queue.load() and not self.parts.role.is_slave:
                log.warning("transactions are refused until the disk has room")
        except CometError as problem:
            log.warning("transactions are refused for now: %s", problem)

    async def _listen(self, parts: Parts) -> list[Feature]:
        """Open the ports; return the features, whose handlers know the address."""
        for warning in access_warnings(
            self.configuration[TlsSettings], self.configuration[TlsClientSettings]
        ):
            log.warning("%s", warning)
        settings = self._settings()
        handlers: dict[int, RequestHandler] = {}
        main = self._server("broker", handlers)
        await main.start(settings.bind_address, settings.listen_port)
        self._servers = [main]
        endpoint = Endpoint(self.address, encode_host(parts.address.ip, main.port))
        features = [build(parts, endpoint) for build in FEATURES]
        served = handlers_of(features)
        if parts.access is not None:
            parts.access.require_stated(served)
        handlers.update(served)
        main.fast_path = _fast_path_of(features)
        fast_number = fast_port(main.port) if settings.fast_port_enable else None
        if fast_number is not None:
            fast = [feature for feature in features if feature.on_fast_port]
            server = self._server("broker-fast", handlers_of(fast))
            server.fast_path = _fast_path_of(fast)
            choice = "it is two below listenPort; fastPortEnable=false does without it"
            await server.start(settings.bind_address, fast_number, choice=choice)
            self._servers.append(server)
        await self._listen_for_slaves(parts, main.port)
        return features

    async def _listen_for_slaves(self, parts: Parts, main_port: int) -> None:
        """Open the port from which slaves copy the log."""
        settings, tls = self._settings(), self.configuration[TlsSettings]
        next_port = ha_port(main_port) if settings.listen_port else 0
        # Without certificates of clients, TLS lets everyone in.
        is_open = not self._log_uses_tls or tls.client_certificate == "require"
        await parts.master.start(
            settings.bind_address,
            settings.ha_listen_port or next_port,
            server_context(tls) if self._log_uses_tls else None,
            needs_greeting=parts.access is not None or not is_open,
        )

    def _server(self, name: str, table: Mapping[int, RequestHandler]) -> RemotingServer:
        return RemotingServer(
            table,
            settings=self.configuration[RemotingSettings],
            tls=self.configuration[TlsSettings],
            name=name,
            on_close=self._connection_closed,
            guard=None if self.parts.access is None else self.parts.access.guard,
            knows=None if self.parts.access is None else self.parts.access.knows,
            latencies=self.parts.latencies,
        )

    def _identity(self) -> Identity:
        settings = self._settings()
        return Identity(
            cluster=settings.broker_cluster_name,
            broker_name=settings.broker_name,
            address=self.address,
            ha_address=self.parts.address.at(self.parts.master.port or ha_port(self.port)),
        )

    def _connection_closed(self, connection: Connection) -> None:
        parts = self.parts
        parts.held.connection_closed(connection)
        parts.consumers.connection_closed(connection)
        parts.producers.connection_closed(connection)
        parts.filter_servers.connection_closed(connection)

    async def stop(self) -> None:
        """Unregister, respond to waiting requests, write everything to disk; within seconds.

        Also after a start that failed. Whatever goes wrong, the store is closed.

        Raises:
            StoreError: the disk refused what the store had left to write.
        """
        if self._parts is None or self._is_stopped:
            return
        self._is_stopped = True
        try:
            await self._drain(self._parts)
        finally:
            self._close(self._parts)
        log.info("stopped broker=%s", self._settings().broker_name)

    async def _drain(self, parts: Parts) -> None:
        """Refuse new requests, and wait for those in progress."""
        for server in self._servers:
            server.stop_accepting()
        parts.master.stop_accepting()
        parts.flow.stop()
        await self._role_tasks.cancel()
        if self._metrics is not None:
            await self._metrics.stop()
        if parts.acting is not None:
            await parts.acting.stop()
        parts.delay.stop()
        parts.held.close()
        parts.cold_reads.close()
        if (log_copy := parts.log_copy.made()) is not None:
            await log_copy.close()
        await _all_of(
            [
                parts.commit.stop(),
                parts.master.acknowledgements.stop(SLAVES_S),
                parts.registration.stop(),
            ]
        )
        if parts.elected is not None:  # from now on another master may be elected
            await parts.elected.stop()
        await _all_of([server.stop(DRAIN_S) for server in self._servers])
        await parts.master.close()
        await _all_of([parts.topics.close(), parts.groups.close()])
        ending = [self._client.close()]
        if self._jobs is not None:
            ending.append(self._jobs.stop(JOBS_S))
        await _all_of(ending)

    def _close(self, parts: Parts) -> None:
        """Write everything to disk and close the store."""
        parts.cold_reads.join()
        persist_offsets = partial(parts.offsets.persist, parts.store.flush)
        for persist in (persist_offsets, parts.delay.persist, parts.filters.persist_now):
            try:
                persist()
            except Exception:
                log.exception("cannot write a table during shutdown")
        for file in parts.table_files:
            file.close()
        if parts.users is not None:
            parts.users.close()
        parts.store.close()


def _fast_path_of(features: Iterable[Feature]) -> FastPath | None:
    paths = [feature.fast_path for feature in features if feature.fast_path is not None]
    return reduce(FastPaths, paths) if paths else None


async def _all_of(endings: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Close parts at the same time; a failure of one does not stop the others."""
    for outcome in await asyncio.gather(*endings, return_exceptions=True):
        if isinstance(outcome, Exception):
            log.error("a component failed during shutdown", exc_info=outcome)
