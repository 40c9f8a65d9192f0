"""Finds TCP ports of this machine that nobody uses right now.

Source: ours.
"""

from __future__ import annotations

import socket

from cometmq.model.errors import CometError

FAST_PORT_GAP = 2
"""A broker also listens this far below its port."""

LOOPBACK = "127.0.0.1"
TRIES = 100


def free_port() -> int:
    """Give a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def free_broker_port() -> int:
    """Give a port that was free a moment ago, together with the one two below it.

    Raises:
        CometError: no such pair was found in a hundred tries.
    """
    for _ in range(TRIES):
        port = free_port()
        if _is_free(port - FAST_PORT_GAP):
            return port
    raise CometError(f"no two free ports {FAST_PORT_GAP} apart in {TRIES} tries")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
