"""What can be set on the connections of any client; the defaults are RocketMQ's.

Source: ClientConfig, RocketMQ 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cometmq.client.config.base import Checked
from cometmq.protocol.codes import LanguageCode
from cometmq.system.settings import setting


@dataclass(frozen=True)
class ClientSettings(Checked):
    """Settings shared by producers, consumers and the admin client."""

    section: ClassVar[str] = "client"

    name_servers: str = setting("", key="namesrvAddr", environment="NAMESRV_ADDR")
    """``host:port;host:port``; if empty, the list is fetched from ``http_domain``."""

    http_domain: str = setting("jmenv.tbsite.net", key="rocketmq.namesrv.domain")
    """Host, or ``host:port``, of the HTTP endpoint for name server addresses. It is used if no name
    server is set; empty means no endpoint."""

    http_subgroup: str = setting("nsaddr", key="rocketmq.namesrv.domain.subgroup")
    """Last part of the endpoint's path, below ``/rocketmq/``."""

    http_refresh_ms: int = setting(120_000, unit="ms", low=100)
    """Interval at which the endpoint is read again."""

    client_ip: str = setting("", key="clientIP")
    """First part of the client id; empty means the address of this machine's outgoing interface."""

    instance_name: str = setting("DEFAULT", key="instanceName")
    """Second part of the client id; ``DEFAULT`` becomes the process id and a unique number."""

    unit_name: str = setting("", key="unitName")
    """Name of a unit of a larger deployment; part of the client id and of the HTTP address."""

    unit_mode: bool = setting(False, key="unitMode")
    """Whether consumers and messages are marked as belonging to a unit."""

    namespace: str = setting("", key="namespace")
    """Prefix of each topic and group on the wire, as in clients of RocketMQ 4."""

    namespace_v2: str = setting("", key="namespaceV2")
    """Namespace field of each request, as in clients of RocketMQ 5; names do not change."""

    cloud: bool = setting(False)
    """Whether the servers are a cloud service; it changes the format and the topic of traces."""

    vip_channel: bool = setting(False, key="com.rocketmq.sendMessageWithVIPChannel")
    """Whether sends use the broker's second port, two below its first."""

    stream: bool = setting(False, key="enableStreamRequestType")
    """Whether requests and the client id have the stream mark. Pull consumers set it by default."""

    language: str = setting("PYTHON", choices=tuple(LanguageCode.__members__))
    """The client language in each request."""

    access_key: str = setting("", key="accessKey")
    """Account name for signed requests; empty does not sign."""

    secret_key: str = setting("", key="secretKey", secret=True)
    """The account's secret, which makes the signature and is never sent."""

    security_token: str = setting("", key="securityToken", secret=True)
    """Token of a temporary account."""

    key_file: Path | None = setting(None, key="rocketmq.client.keyFile")
    """Properties file with ``AccessKey``, ``SecretKey`` and ``SecurityToken``."""

    use_tls: bool = setting(False, key="tls.enable")
    """Whether connections to all servers use TLS."""

    tls_file: Path | None = setting(None, key="tls.config.file")
    """Properties file with ``tls.client`` keys, for TLS settings that are not set otherwise."""

    tls_trusted: str = setting("", key="tls.client.trustCertPath")
    """PEM file of the authorities that servers' certificates are checked against."""

    tls_check_server: bool = setting(False, key="tls.client.authServer")
    """Whether servers' certificates are checked; always if ``tls_trusted`` is set."""

    tls_certificate: str = setting("", key="tls.client.certPath")
    """PEM file of the client's certificate chain; empty for none."""

    tls_key: str = setting("", key="tls.client.keyPath")
    """PEM file of the certificate's private key."""

    tls_key_password: str = setting("", key="tls.client.keyPassword", secret=True)
    """Password of the private key."""

    socks_proxies: str = setting("", key="socksProxyConfig", secret=True)
    """JSON, network to proxy: ``{"10.0.0.0/8": {"addr": "proxy:1080", "username": "me"}}``."""

    route_refresh_ms: int = setting(30_000, key="pollNameServerInterval", unit="ms", low=10)
    """Interval at which the routes of all used topics are fetched again."""

    heartbeat_ms: int = setting(30_000, key="heartbeatBrokerInterval", unit="ms", low=10)
    """Interval of heartbeats to each broker; a broker removes a client after 120 s without one."""

    heartbeat_v2: bool = setting(False, key="useHeartbeatV2")
    """Whether heartbeats omit subscriptions that the broker already has."""

    heartbeat_on_connect: bool = setting(True, key="enableHeartbeatChannelEventListener")
    """Whether each new connection to a broker starts with a heartbeat."""

    call_timeout_ms: int = setting(3_000, key="mqClientApiTimeout", unit="ms", low=1)
    """Timeout of one background request: routes, heartbeats, offsets."""

    idle_s: int = setting(
        120, key="com.rocketmq.remoting.client.channel.maxIdleTimeSeconds", unit="s", low=1
    )
    """Time after which an idle connection is closed. A connection with requests in flight is not
    idle."""

    close_after_timeout: bool = setting(
        True, key="com.rocketmq.remoting.client.closeSocketIfTimeout"
    )
    """Whether a connection is closed if a request timed out and no data arrived meanwhile."""

    reconnect_for_go_away: bool = setting(True, key="enableReconnectForGoAway")
    """Whether a request is sent once more, on a new connection, if a server shuts down."""
