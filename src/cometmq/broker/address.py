"""The address at which clients and name servers reach a broker.

It is brokerIP1, else the listen address, else the address of the machine. Clients get its text;
records contain the IP address, so a name is resolved once, when the broker starts.

Source: BrokerConfig.brokerIP1 and NetworkUtil.getLocalAddress, RocketMQ 5.3.
"""

from __future__ import annotations

import ipaddress
import socket

import msgspec

from cometmq.broker.config import BrokerSettings
from cometmq.model.address import host_and_port
from cometmq.model.errors import ConfigError
from cometmq.protocol.record import encode_host
from cometmq.remoting.ports import reachable_host


class BrokerAddress(msgspec.Struct, frozen=True):
    """The address of a broker."""

    host: str
    """An IP address without brackets, or a name."""
    ip: str
    """The IP address of `host`."""

    def at(self, port: int) -> str:
        """Return ``host:port``; an IPv6 host is in brackets."""
        return host_and_port(self.host, port)

    def endpoint(self, port: int) -> Endpoint:
        """Return where a broker with this address listens."""
        return Endpoint(self.at(port), port, encode_host(self.ip, port))


class Endpoint(msgspec.Struct, frozen=True):
    """The address and the port at which a broker listens."""

    address: str
    """``host:port`` as registered."""
    port: int
    store_host: bytes
    """The address as records contain it: 8 or 20 bytes."""


def broker_address(settings: BrokerSettings) -> BrokerAddress:
    """Return the address of a broker with these settings.

    Raises:
        ConfigError: brokerIP1 is a name that cannot be resolved.
    """
    host = settings.broker_ip1.strip("[]") or reachable_host(settings.bind_address)
    return BrokerAddress(host, _ip_of(host))


def _ip_of(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        raise ConfigError(f"brokerIP1={host}: not an address, and not found: {problem}") from None
    addresses = [str(entry[4][0]) for entry in sorted(found, key=lambda entry: entry[0])]
    return addresses[0]
