"""A broker: started and stopped here.

Start: open the store, listen, begin what every feature does, register with the name servers. Stop,
in reverse order: accept no new connections, unregister, respond to waiting requests, write
everything to disk. What each feature does then is in its folder, see `Life`.

Source: BrokerController, RocketMQ 5.3; unlike there, a broker registers before it reports
that it is ready.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cometmq.access.user_settings import UserSettings
from cometmq.broker.assembly import Features, assemble
from cometmq.broker.config import BrokerSettings
from cometmq.broker.core import Core
from cometmq.broker.life import Life
from cometmq.broker.listening import Listening
from cometmq.broker.opening import allocate_segment, client_of, open_core
from cometmq.broker.pop.config import PopSettings
from cometmq.broker.replication.log_tls import LogTls
from cometmq.broker.role_changes import RoleChanges
from cometmq.metrics.config import MetricsSettings
from cometmq.remoting import RemotingSettings, TlsClientSettings, TlsSettings
from cometmq.store import StoreSettings
from cometmq.system.clock import Clock
from cometmq.system.configuration import Configuration
from cometmq.system.files import Files
from cometmq.system.log_format import LogSettings

if TYPE_CHECKING:
    from cometmq.access.gate import Accounts

log = logging.getLogger(__name__)

SETTINGS = (
    BrokerSettings,
    PopSettings,
    UserSettings,
    StoreSettings,
    RemotingSettings,
    TlsSettings,
    TlsClientSettings,
    MetricsSettings,
    LogSettings,
)
"""The settings classes that a broker's configuration file feeds."""


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
        self._settings = settings = configuration.reader_of(BrokerSettings)
        self._name_servers = name_servers or (lambda: settings().namesrv_addr)
        self._config_file = config_file
        self._clock = clock or Clock()
        self._files = files or Files()
        self._log_tls = LogTls(configuration)
        self._client = client_of(configuration)
        self._running: _Running | None = None
        self._is_stopped = False

    @property
    def is_open(self) -> bool:
        """Whether the store was opened."""
        return self._running is not None

    @property
    def core(self) -> Core:
        """The parts that all features share. Needs a started broker."""
        return self._opened.core

    @property
    def features(self) -> Features:
        """The features of the broker. Needs a started broker."""
        return self._opened.features

    @property
    def accounts(self) -> Accounts | None:
        """The accounts or users; None without any, and before they are read."""
        return None if self._running is None else self._running.features.access.senders

    @property
    def port(self) -> int:
        """The real port."""
        return self._opened.listening.endpoint.port

    @property
    def address(self) -> str:
        """``host:port`` as registered."""
        return self._opened.listening.endpoint.address

    @property
    def listening(self) -> Listening:
        """The ports, once the broker is started."""
        return self._opened.listening

    @property
    def life(self) -> Life:
        """The life of the features. Needs a started broker."""
        return self._opened.life

    @property
    def _opened(self) -> _Running:
        assert self._running is not None, "not started"
        return self._running

    async def start(self) -> None:
        """Start; return when the broker is registered, or when the time for that is over.

        Raises:
            ConfigError: a port cannot be bound.
            StoreError: the store cannot be opened; it was not changed.
        """
        core = open_core(
            self.configuration, client=self._client, clock=self._clock, files=self._files
        )
        try:
            features, life = assemble(
                core,
                log_tls=self._log_tls,
                name_servers=self._name_servers,
                config_file=self._config_file,
            )
        except BaseException:
            core.store.close()
            raise
        listening = Listening(core, features.access.control, life.connection_closed)
        roles = RoleChanges(core, life)
        self._running = _Running(core, features, life, listening, roles)
        await allocate_segment(core)
        await life.start()
        roles.follow()
        await listening.start(life.serve, life.rights)
        await life.begin(listening.endpoint)

    async def stop(self) -> None:
        """Unregister, respond to waiting requests, write everything to disk; within seconds.

        Also after a start that failed. Whatever goes wrong, the store is closed.

        Raises:
            StoreError: the disk refused what the store had left to write.
        """
        if self._running is None or self._is_stopped:
            return
        self._is_stopped = True
        core, _, life, listening, roles = self._running
        try:
            await life.stop(listening, roles, core.cold_reads)
            await self._client.close()
        finally:
            core.cold_reads.join()
            life.save()
            core.close()
        log.info("stopped broker=%s", self._settings().broker_name)


class _Running(NamedTuple):
    """The parts of a broker whose store is open."""

    core: Core
    features: Features
    life: Life
    listening: Listening
    roles: RoleChanges
