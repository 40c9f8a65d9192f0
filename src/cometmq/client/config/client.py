"""What can be set on the connections of any client; the defaults are RocketMQ's.

Source: ClientConfig, RocketMQ 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cometmq.client.config.base import Checked
from cometmq.system.settings import setting


@dataclass(frozen=True)
class ClientSettings(Checked):
    """Settings shared by producers, consumers and the admin client."""

    section: ClassVar[str] = "client"

    client_ip: str = setting("", key="clientIP")
    """First part of the client id; empty means the address this machine uses outwards."""

    instance_name: str = setting("DEFAULT", key="instanceName")
    """Second part of the client id; ``DEFAULT`` becomes process id and a number of its own."""

    route_refresh_ms: int = setting(30_000, key="pollNameServerInterval", unit="ms", low=10)
    """How often the routes of all topics in use are fetched again."""

    heartbeat_ms: int = setting(30_000, key="heartbeatBrokerInterval", unit="ms", low=10)
    """How often each broker is told that this client lives; a broker forgets it after 120 s."""

    call_timeout_ms: int = setting(3_000, key="mqClientApiTimeout", unit="ms", low=1)
    """Time for one background call: routes, heartbeats, offsets."""
