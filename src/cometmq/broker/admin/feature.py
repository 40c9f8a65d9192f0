"""Request handlers for changes of settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cometmq.protocol.codes import RequestCode
from cometmq.remoting import TlsClientSettings, TlsSettings, exclusive
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.ports import ha_port

if TYPE_CHECKING:
    from cometmq.broker.admin.handler import ConfigHandler
    from cometmq.broker.assembly import Endpoint, Parts


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the handlers that show and change the settings."""
    started_ms = parts.clock.now_ms()

    def found_out() -> Mapping[str, str]:
        settings, host = parts.settings(), parts.address.host
        tls = parts.configuration[TlsClientSettings]
        uses_tls = tls.is_enabled(parts.configuration[TlsSettings])
        next_port = settings.ha_listen_port or ha_port(settings.listen_port)
        return {
            "brokerIP1": host,
            "brokerIP2": host,  # RocketMQ's address for slaves: here it is the same
            "haListenPort": str(parts.master.port or next_port),
            "storePathCommitLog": str(parts.store.paths.commit_log),
            "useTLS": str(uses_tls).lower(),
        }

    def make() -> ConfigHandler:
        from cometmq.broker.admin.handler import ConfigHandler

        return ConfigHandler(
            parts.configuration,
            role=parts.role,
            found_out=found_out,
            file=parts.config_file,
            files=parts.files,
            clock=parts.clock,
            started_ms=started_ms,
            on_change=parts.settings_changed,
        )

    config = Deferred(make)
    return Feature(
        {
            RequestCode.GET_BROKER_CONFIG: config.handler(lambda h: h.show),
            RequestCode.UPDATE_BROKER_CONFIG: exclusive(config.handler(lambda h: h.update)),
        }
    )
