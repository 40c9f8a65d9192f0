"""Request handlers for changes of settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import TlsClientSettings, TlsSettings
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.ports import ha_port

if TYPE_CHECKING:
    from cometmq.broker.admin.handler import ConfigHandler
    from cometmq.broker.replication.feature import ReplicationFeature


class AdminFeature(BrokerFeature):
    """Shows and changes settings.

    Args:
        core: of the broker.
        replication: knows the port for slaves.
        config_file: where changed settings are written, if anywhere.
        on_change: called with changed settings.
    """

    def __init__(
        self,
        core: Core,
        replication: ReplicationFeature,
        config_file: Path | None,
        on_change: Callable[[Mapping[str, str]], Awaitable[None]],
    ) -> None:
        super().__init__(core)
        self._replication = replication
        self._config_file = config_file
        self._on_change = on_change

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handlers that show and change the settings."""
        core = self._core
        started_ms = core.clock.now_ms()

        def resolved() -> Mapping[str, str]:
            settings, host = core.settings(), core.address.host
            tls = core.configuration[TlsClientSettings]
            uses_tls = tls.is_enabled(core.configuration[TlsSettings])
            next_port = settings.ha_listen_port or ha_port(settings.listen_port)
            return {
                "brokerIP1": host,
                "brokerIP2": host,  # RocketMQ's address for slaves: here it is the same
                "haListenPort": str(self._replication.master.port or next_port),
                "storePathCommitLog": str(core.store.paths.commit_log),
                "useTLS": str(uses_tls).lower(),
            }

        @Deferred
        def config() -> ConfigHandler:
            from cometmq.broker.admin.handler import ConfigHandler

            return ConfigHandler(
                core.configuration,
                role=core.role,
                resolved=resolved,
                file=self._config_file,
                files=core.files,
                clock=core.clock,
                started_ms=started_ms,
                on_change=self._on_change,
            )

        return Feature(
            {
                RequestCode.GET_BROKER_CONFIG: config.handler(lambda h: h.show),
                RequestCode.UPDATE_BROKER_CONFIG: config.exclusive(lambda h: h.update),
            }
        )
