"""Who this client is on the wire: its address, its client id.

Source: ClientConfig.buildMQClientId and RemotingUtil.getLocalAddress, RocketMQ 5.3.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Iterable

from cometmq.client.config import ClientSettings

_instances = itertools.count(1)
LOOPBACK = "127.0.0.1"


def client_id(settings: ClientSettings, name_servers: Iterable[str]) -> str:
    """Make the id of a new client: ``ip@instance``.

    The instance name ``DEFAULT`` becomes process id, time and a running number, so that every
    client of a machine has an id of its own.
    """
    name = settings.instance_name
    if name == "DEFAULT":
        name = f"{os.getpid()}#{time.monotonic_ns()}{next(_instances)}"
    return f"{settings.client_ip or outward_address(name_servers)}@{name}"


def outward_address(peers: Iterable[str]) -> str:
    """Give the address this machine would use to reach the first peer that has a route.

    Nothing is sent: a connected datagram socket only makes the kernel choose an interface.
    """
    for peer in peers:
        host, _, port = peer.rpartition(":")
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host, int(port)))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return LOOPBACK
