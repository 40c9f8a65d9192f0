"""TLS for the connections over which slaves copy the log, as the settings of a broker want it."""

from __future__ import annotations

import ssl
from dataclasses import replace

from cometmq.broker.config import BrokerSettings
from cometmq.remoting import TlsClientSettings, TlsSettings, outgoing_context
from cometmq.remoting.tls import server_context
from cometmq.system.configuration import Configuration


class LogTls:
    """The contexts of those connections.

    Args:
        configuration: all settings.

    Raises:
        ConfigError: a file for the connections to a master cannot be used.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._server, client = configuration[TlsSettings], configuration[TlsClientSettings]
        chosen = configuration[BrokerSettings].ha_tls_enable
        self._is_used = self._server.mode == "enforcing" if chosen is None else chosen
        self.to_master: ssl.SSLContext | None = (
            outgoing_context(replace(client, enable=True), self._server) if self._is_used else None
        )
        """The context of the connection to the master; None for a plain one."""

    @property
    def proves_slaves(self) -> bool:
        """Whether it lets in only slaves with a certificate, or there is no TLS that could."""
        return not self._is_used or self._server.client_certificate == "require"

    def for_slaves(self) -> ssl.SSLContext | None:
        """Return the context of the connections of slaves; None for plain ones.

        Raises:
            ConfigError: its files cannot be used.
        """
        return server_context(self._server) if self._is_used else None
