"""Chooses free TCP ports of the loopback, for servers that are started without a port of their own.

The ports lie below the range from which systems usually take ports for outgoing connections. Each
process takes them from lanes: it keeps the first port of a lane bound for as long as it lives, so
other processes see that the lane is taken. Within a lane the ports are given in a circle, so a port
is given again as late as possible.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from itertools import chain

from cometmq.model.errors import CometError

FAST_PORT_GAP = 2
"""The fast port of a broker is this far below its port."""

LOOPBACK = "127.0.0.1"
FIRST = 12_000
"""Above the ports that RocketMQ's servers have by default."""
LAST = 32_767
LANE = 128
"""Number of ports in a lane, including the one that marks it as taken."""


class _Lanes:
    """The lanes that this process has taken."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._marks: list[int] = []
        """File descriptors of the sockets bound to first ports; open as long as the process is."""
        self._lanes: list[range] = []
        self._next: list[int] = []

    def take(self, count: int) -> int:
        """Return the first of ``count`` ports in a row, of a lane at hand or of a new one."""
        for lane in range(len(self._lanes)):
            if first := self._search(lane, count):
                return first
        self._add()
        if first := self._search(-1, count):
            return first
        raise CometError(f"no {count} free ports in a row in {self._lanes[-1]}")

    def close(self) -> None:
        """Release the lanes; in a forked process, leave them to the parent alone."""
        while self._marks:
            os.close(self._marks.pop())

    def _search(self, lane: int, count: int) -> int | None:
        ports = self._lanes[lane]
        at = self._next[lane]
        for start in chain(range(at, ports.stop), range(ports.start, at)):
            row = range(start, start + count)
            if row.stop <= ports.stop and all(_is_free(port) for port in row):
                self._next[lane] = row.stop
                return start
        return None

    def _add(self) -> None:
        lanes = range(FIRST, LAST - LANE + 2, LANE)
        begin = self.pid % len(lanes)
        for first in chain(lanes[begin:], lanes[:begin]):
            mark = socket.socket()
            with contextlib.suppress(OSError):
                mark.bind((LOOPBACK, first))
                self._marks.append(mark.detach())
                self._lanes.append(range(first + 1, first + LANE))
                self._next.append(first + 1)
                return
            mark.close()
        raise CometError(f"no free ports: other programs have all of {FIRST} to {LAST}")


_lanes = _Lanes()
_lock = threading.Lock()


def free_ports(count: int) -> int:
    """Return the first of ``count`` consecutive free ports.

    Args:
        count: how many, at most 127.

    Raises:
        CometError: there are no such ports.
    """
    if not 0 < count < LANE:
        raise ValueError(f"count is {count}, but 1 to {LANE - 1} ports can be had at a time")
    global _lanes
    with _lock:
        if _lanes.pid != os.getpid():
            _lanes.close()  # this process is a fork: those are its parent's
            _lanes = _Lanes()
        return _lanes.take(count)


def free_port() -> int:
    """Return a free port.

    Raises:
        CometError: there is none.
    """
    return free_ports(1)


def free_broker_port() -> int:
    """Return a free port for a broker; its fast port and its replication port are free too.

    Raises:
        CometError: there are no such ports.
    """
    return free_ports(FAST_PORT_GAP + 2) + FAST_PORT_GAP


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
