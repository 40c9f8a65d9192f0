"""What a server logs about its settings of TLS at the start."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cometmq.remoting.config import TlsClientSettings, TlsSettings
from cometmq.remoting.tls import CLIENT_KEYS, SERVER_KEYS

if TYPE_CHECKING:
    from cometmq.system.configuration import Configuration


def log_tls_warnings(configuration: Configuration, log: logging.Logger) -> None:
    """Log which settings of TLS have no effect, and which certificates expire soon.

    For a server that also opens connections.
    """
    server, client = configuration[TlsSettings], configuration[TlsClientSettings]
    warnings = access_warnings(server, client)
    if any((server.certificate, server.trusted, client.certificate, client.trusted)):
        from cometmq.remoting.certificates import expiry_warnings

        warnings += expiry_warnings(server, client)
    for warning in warnings:
        log.warning("%s", warning)


def access_warnings(settings: TlsSettings, client: TlsClientSettings | None = None) -> list[str]:
    """Return which settings of TLS have no effect, or less than they say, for the log.

    They are no errors: servers whose settings worked before must start.

    Args:
        settings: of the server's port.
        client: of the connections that it opens, if it opens any.
    """
    asked = f"tls.server.need.client.auth={settings.client_certificate}"
    found = []
    if settings.client_certificate == "require" and settings.mode != "enforcing":
        found.append(
            f"{asked} with tls.server.mode={settings.mode}: plain clients are accepted without a"
            " certificate; set tls.server.mode=enforcing to refuse them"
        )
    is_asked = settings.client_certificate != "none" and settings.mode != "disabled"
    if is_asked and not settings.trusted:
        every = settings.client_certificate == "require"
        refused = "every TLS connection is" if every else "TLS connections that present one are"
        found.append(
            f"{asked} without tls.server.trustCertPath: no client's certificate can be verified,"
            f" and {refused} refused; set tls.server.trustCertPath"
        )
    if settings.key and not settings.certificate:
        found.append(
            f"{SERVER_KEYS['key']} without {SERVER_KEYS['certificate']}: the key is not used;"
            f" set {SERVER_KEYS['certificate']}"
        )
    if client is not None:
        found += _unused_by_client(client, settings)
    return found


def _unused_by_client(client: TlsClientSettings, server: TlsSettings) -> Iterator[str]:
    named = [CLIENT_KEYS[each] for each in _OF_CLIENT if getattr(client, each)]
    if named and not client.is_enabled(server):
        yield (
            f"{', '.join(named)} without tls.enable: connections to other servers are plain;"
            " set tls.enable=true"
        )
    elif client.key and not client.certificate:
        yield (
            f"{CLIENT_KEYS['key']} without {CLIENT_KEYS['certificate']}: this server presents no"
            f" certificate; set {CLIENT_KEYS['certificate']}"
        )


_OF_CLIENT = ("check_server", "trusted", "certificate", "key", "key_password")
