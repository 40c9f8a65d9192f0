"""Settings of remoting: limits of connections, and TLS."""

from __future__ import annotations

from typing import Final

from cometmq.model.errors import ConfigError
from cometmq.protocol.frame import FRAME_BYTES_MAX
from cometmq.system.settings import setting, settings_class

NO_ACCOUNT: Final = "none"
"""Certificates name no accounts."""


@settings_class
class RemotingSettings:
    """Limits of every connection, whichever side opened it."""

    frame_bytes_max: int = setting(
        FRAME_BYTES_MAX, key="com.rocketmq.remoting.frameMaxLength", unit="bytes", low=1024
    )
    """Maximum size of a received frame, its length field included."""

    idle_s: int = setting(120, key="serverChannelMaxIdleTimeSeconds", unit="s", low=1)
    """A connection without traffic for this long is closed."""

    backlog: int = setting(1024, key="serverSocketBacklog", low=1)
    """Maximum number of connections that wait in the kernel to be accepted."""

    write_buffer_bytes_max: int = setting(1024 * 1024, unit="bytes", low=1024)
    """Maximum bytes of unsent responses of a connection; above this the connection is not read
    until the peer has received them.
    """

    connection_buffers_max: int = setting(
        512 * 1024 * 1024, key="connectionBuffersMax", unit="bytes", low=1024 * 1024
    )
    """Maximum bytes that unfinished frames and unread responses of all connections take together.
    Above it, connections that have been silent for a second are closed, the longest silent one
    first. Connections with unread responses are closed after a tenth of a second.
    """

    connections_max: int = setting(20_000, key="connectionsMax", low=1)
    """Maximum number of connections of one port; further ones are closed at once."""

    calls_in_flight_max: int = setting(65535, low=1)
    """Maximum number of requests that a server has in flight on one connection."""

    slow_request_ms: int = setting(1000, unit="ms", low=0, high=3_600_000)
    """A request that takes longer is logged, with where its time was spent; 0 logs none. At most 20
    lines are written in 10 seconds.
    """


@settings_class
class TlsSettings:
    """How a server treats a connection whose first byte begins a TLS handshake."""

    mode: str = setting(
        "permissive", key="tls.server.mode", choices=("disabled", "permissive", "enforcing")
    )
    """``permissive`` accepts TLS and plain connections, ``enforcing`` only TLS, ``disabled`` only
    plain.
    """

    self_signed: bool = setting(True, key="tls.test.mode.enable")
    """Whether a server without a certificate creates a self-signed one at the first handshake."""

    certificate: str = setting("", key="tls.server.certPath")
    """File of the server's certificate chain, PEM."""

    key: str = setting("", key="tls.server.keyPath")
    """File of the certificate's private key, PEM."""

    key_password: str = setting("", key="tls.server.keyPassword", secret=True)
    """Password of the private key."""

    trusted: str = setting("", key="tls.server.trustCertPath")
    """File of the certificate authorities that verify clients, PEM."""

    client_certificate: str = setting(
        "none", key="tls.server.need.client.auth", choices=("none", "optional", "require")
    )
    """Whether clients that use TLS must present a certificate; plain clients are refused only with
    ``tls.server.mode=enforcing``.
    """

    client_account: str = setting(
        NO_ACCOUNT, key="tls.server.client.account", choices=(NO_ACCOUNT, "cn", "san")
    )
    """The name of a verified client certificate that is the account of its connection, for servers
    with access control: the common name, or an alternative name (DNS, URI, e-mail). Requests there
    need no signature. RocketMQ has no such setting.
    """

    def __post_init__(self) -> None:
        """Check what a range cannot say.

        Raises:
            ConfigError: certificates name accounts, and none can be verified.
        """
        if self.client_account != NO_ACCOUNT and not (
            self.trusted and self.client_certificate != "none" and self.mode != "disabled"
        ):
            raise ConfigError(
                f"tls.server.client.account={self.client_account} needs"
                " tls.server.trustCertPath, tls.server.need.client.auth=optional or require, and a"
                " tls.server.mode other than disabled: no certificate of a client can be verified"
            )


@settings_class
class TlsClientSettings:
    """TLS of the connections that a server opens, such as a broker's to its name servers.

    Source: TlsSystemConfig and NettyClientConfig, RocketMQ 5.3.
    """

    enable: bool | None = setting(None, key="tls.enable")
    """Whether connections that this server opens to other servers use TLS. Default: true if
    ``tls.server.mode=enforcing``.
    """

    check_server: bool = setting(False, key="tls.client.authServer")
    """Whether other servers' certificates are checked; always if ``tls.client.trustCertPath`` is
    set.
    """

    trusted: str = setting("", key="tls.client.trustCertPath")
    """File of the certificate authorities that verify other servers, PEM."""

    certificate: str = setting("", key="tls.client.certPath")
    """File of the certificate chain that this server presents to other servers, PEM."""

    key: str = setting("", key="tls.client.keyPath")
    """File of that certificate's private key, PEM."""

    key_password: str = setting("", key="tls.client.keyPassword", secret=True)
    """Password of that private key."""

    def is_enabled(self, server: TlsSettings) -> bool:
        """Return whether the connections that a server with these settings opens use TLS."""
        return server.mode == "enforcing" if self.enable is None else self.enable
