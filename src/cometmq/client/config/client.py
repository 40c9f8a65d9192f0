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
    """``host:port;host:port``; empty to ask ``http_domain`` for the list."""

    http_domain: str = setting("jmenv.tbsite.net", key="rocketmq.namesrv.domain")
    """Host, or ``host:port``, that is asked by HTTP for the name servers if none is named."""

    http_subgroup: str = setting("nsaddr", key="rocketmq.namesrv.domain.subgroup")
    """Last part of the path it is asked with, below ``/rocketmq/``."""

    http_refresh_ms: int = setting(120_000, unit="ms", low=100)
    """How often it is asked again."""

    client_ip: str = setting("", key="clientIP")
    """First part of the client id; empty means the address this machine uses outwards."""

    instance_name: str = setting("DEFAULT", key="instanceName")
    """Second part of the client id; ``DEFAULT`` becomes process id and a number of its own."""

    unit_name: str = setting("", key="unitName")
    """Name of a unit of a larger deployment; a part of the client id and of the HTTP address."""

    unit_mode: bool = setting(False, key="unitMode")
    """Whether consumers and messages say that they belong to a unit."""

    namespace: str = setting("", key="namespace")
    """Put before each topic and group on the wire, as clients of 4.x do."""

    namespace_v2: str = setting("", key="namespaceV2")
    """Sent beside each request, as clients of 5.x do; names stay as they are."""

    cloud: bool = setting(False)
    """Whether the servers are a cloud's; only the form and the topic of traces depend on it."""

    vip_channel: bool = setting(False, key="com.rocketmq.sendMessageWithVIPChannel")
    """Whether sends go to the broker's second port, which lies two below its first."""

    stream: bool = setting(False, key="enableStreamRequestType")
    """Whether requests and the client id name a stream; pull consumers do so unless told not to."""

    language: str = setting("PYTHON", choices=tuple(LanguageCode.__members__))
    """The language that each request says its client is written in."""

    access_key: str = setting("", key="accessKey")
    """Name of the account that requests are signed for; empty to sign none."""

    secret_key: str = setting("", key="secretKey", secret=True)
    """The account's secret, which signs and is never sent."""

    security_token: str = setting("", key="securityToken", secret=True)
    """A token that goes along with short-lived accounts."""

    key_file: Path | None = setting(None, key="rocketmq.client.keyFile")
    """Properties file with ``AccessKey``, ``SecretKey`` and ``SecurityToken``."""

    use_tls: bool = setting(False, key="tls.enable")
    """Whether connections to all servers are encrypted."""

    tls_file: Path | None = setting(None, key="tls.config.file")
    """Properties file with the ``tls.client`` keys below, for those that nothing else sets."""

    tls_trusted: str = setting("", key="tls.client.trustCertPath")
    """File of the authorities that servers' certificates are checked against, PEM."""

    tls_check_server: bool = setting(False, key="tls.client.authServer")
    """Whether servers' certificates are checked; always so when ``tls_trusted`` is given."""

    tls_certificate: str = setting("", key="tls.client.certPath")
    """File of the client's own certificate chain, PEM; empty for none."""

    tls_key: str = setting("", key="tls.client.keyPath")
    """File of the certificate's private key, PEM."""

    tls_key_password: str = setting("", key="tls.client.keyPassword", secret=True)
    """Password of the private key."""

    socks_proxies: str = setting("", key="socksProxyConfig", secret=True)
    """JSON, network to proxy: ``{"10.0.0.0/8": {"addr": "proxy:1080", "username": "me"}}``."""

    route_refresh_ms: int = setting(30_000, key="pollNameServerInterval", unit="ms", low=10)
    """How often the routes of all topics in use are fetched again."""

    heartbeat_ms: int = setting(30_000, key="heartbeatBrokerInterval", unit="ms", low=10)
    """How often each broker is told that this client lives; a broker forgets it after 120 s."""

    heartbeat_v2: bool = setting(False, key="useHeartbeatV2")
    """Whether subscriptions are left out of heartbeats while the broker knows them already."""

    heartbeat_on_connect: bool = setting(True, key="enableHeartbeatChannelEventListener")
    """Whether a broker gets a heartbeat over each new connection at once."""

    call_timeout_ms: int = setting(3_000, key="mqClientApiTimeout", unit="ms", low=1)
    """Time for one background call: routes, heartbeats, offsets."""

    idle_s: int = setting(
        120, key="com.rocketmq.remoting.client.channel.maxIdleTimeSeconds", unit="s", low=1
    )
    """A connection is closed when nothing moved on it for so long and no answer is waited for."""

    close_after_timeout: bool = setting(
        True, key="com.rocketmq.remoting.client.closeSocketIfTimeout"
    )
    """Whether a connection over which nothing came while a call timed out is given up."""

    reconnect_for_go_away: bool = setting(True, key="enableReconnectForGoAway")
    """Whether a request is repeated once, over a new connection, when a server is leaving."""
