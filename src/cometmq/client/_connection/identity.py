"""Who this client is on the wire: its address, its client id.

    client id := address "@" instance [ "@" unit ] [ "@STREAM" ]

Source: ClientConfig.buildMQClientId, changeInstanceNameToPID and NetworkUtil.getLocalAddress,
RocketMQ 5.3; asking the kernel for the address, instead of going through all interfaces, is ours.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Iterable
from ipaddress import ip_address

from cometmq.client.settings import ClientSettings

_instances = itertools.count(1)
LOOPBACK = "127.0.0.1"
STREAM_SUFFIX = "@STREAM"
_DISCARD_PORT = 9
_FAR_AWAY = (f"192.0.2.1:{_DISCARD_PORT}", f"[2001:db8::1]:{_DISCARD_PORT}")
"""Addresses that nobody has, kept for documentation: the way there is the usual one outwards."""


def client_id(
    settings: ClientSettings, name_servers: Iterable[str], *, keep_name: bool = False
) -> str:
    """Make the id of a new client.

    The instance name ``DEFAULT`` becomes process id, time and a running number, so that every
    client of a machine has an id of its own; with ``keep_name`` it stays, so that the id is the
    same after a restart.
    """
    name = settings.instance_name
    if name == "DEFAULT" and not keep_name:
        name = f"{os.getpid()}#{time.monotonic_ns()}{next(_instances)}"
    unit = f"@{settings.unit_name}" if settings.unit_name.strip() else ""
    stream = STREAM_SUFFIX if settings.stream else ""
    return f"{settings.client_ip or outward_address(name_servers)}@{name}{unit}{stream}"


def outward_address(peers: Iterable[str]) -> str:
    """Give the address this machine has towards the first peer there is a way to.

    A peer on this machine does not count while there is a way out of it. IPv6 addresses stand in
    brackets. Nothing is sent: a connected datagram socket only makes the kernel choose.
    """
    found = [own for peer in [*peers, *_FAR_AWAY] if (own := _own_address(peer)) is not None]
    outward = [own for own in found if not ip_address(own).is_loopback]
    chosen = next(iter(outward or found), LOOPBACK)
    return f"[{chosen}]" if ":" in chosen else chosen


def _own_address(peer: str) -> str | None:
    """This machine's address towards a peer; None if it has a name, which is not looked up."""
    host = peer.rpartition(":")[0].strip("[]")
    try:
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _DISCARD_PORT))
            return str(probe.getsockname()[0]).partition("%")[0]
    except (OSError, ValueError):
        return None


VIP_PORT_STEP = 2


def vip_address(address: str) -> str:
    """Give the address of a broker's second port, which takes sends and no pulls.

    Source: MixAll.brokerVIPChannel, RocketMQ 5.3.
    """
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - VIP_PORT_STEP}"
