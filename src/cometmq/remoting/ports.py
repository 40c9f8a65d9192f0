"""Chooses free TCP ports of the loopback, for servers that are started without a port of their own.

The ports lie below the range from which systems usually take ports for outgoing connections. Each
process takes them from blocks: it keeps the first port of a block bound until it ends, so other
processes see that the block is taken. Within a block the ports are used in a circle, so a port is
used again as late as possible.
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
_EVERY_ADDRESS = ("0.0.0.0", "::")
_RESERVED_ADDRESS = ("192.0.2.1", 9)
"""A reserved address: connecting a UDP socket to it selects our address and sends nothing."""
FIRST = 12_000
"""Above the ports that RocketMQ's servers have by default."""
LAST = 32_767
BLOCK = 128
"""Number of ports in a block, including the one that marks it as taken."""


class _Blocks:
    """The blocks that this process has taken."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._marks: list[int] = []
        """File descriptors of the sockets bound to first ports; open until the process ends."""
        self._blocks: list[range] = []
        self._next: list[int] = []

    def take(self, count: int) -> int:
        """Return the first of ``count`` ports in a row, of a taken block or of a new one."""
        for block in range(len(self._blocks)):
            if first := self._search(block, count):
                return first
        self._add()
        if first := self._search(-1, count):
            return first
        raise CometError(f"no {count} free ports in a row in {self._blocks[-1]}")

    def close(self) -> None:
        """Release the blocks; in a forked process, leave them to the parent alone."""
        while self._marks:
            os.close(self._marks.pop())

    def _search(self, block: int, count: int) -> int | None:
        ports = self._blocks[block]
        at = self._next[block]
        for start in chain(range(at, ports.stop), range(ports.start, at)):
            row = range(start, start + count)
            if row.stop <= ports.stop and all(_is_free(port) for port in row):
                self._next[block] = row.stop
                return start
        return None

    def _add(self) -> None:
        blocks = range(FIRST, LAST - BLOCK + 2, BLOCK)
        begin = self.pid % len(blocks)
        for first in chain(blocks[begin:], blocks[:begin]):
            mark = socket.socket()
            with contextlib.suppress(OSError):
                mark.bind((LOOPBACK, first))
                self._marks.append(mark.detach())
                self._blocks.append(range(first + 1, first + BLOCK))
                self._next.append(first + 1)
                return
            mark.close()
        raise CometError(f"no free ports: other programs have all of {FIRST} to {LAST}")


_blocks = _Blocks()
_lock = threading.Lock()


def free_ports(count: int) -> int:
    """Return the first of ``count`` consecutive free ports.

    Args:
        count: how many, at most 127.

    Raises:
        CometError: there are no such ports.
    """
    if not 0 < count < BLOCK:
        raise ValueError(f"count is {count}, but 1 to {BLOCK - 1} ports can be had at a time")
    global _blocks
    with _lock:
        if _blocks.pid != os.getpid():
            _blocks.close()  # this process is a fork: those are its parent's
            _blocks = _Blocks()
        return _blocks.take(count)


def free_port() -> int:
    """Return a free port.

    Raises:
        CometError: there is none.
    """
    return free_ports(1)


def fast_port(port: int) -> int | None:
    """Return the fast port of a broker with this port; None if there is no room below it."""
    return port - FAST_PORT_GAP if port > FAST_PORT_GAP else None


def ha_port(port: int) -> int:
    """Return the port from which the slaves of a broker copy its log."""
    return port + 1


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


def reachable_host(bind_address: str) -> str:
    """Return where others reach what listens on an address of this machine, or on all of them."""
    is_one = bind_address and bind_address not in _EVERY_ADDRESS
    return bind_address if is_one else _machine_address()


def _machine_address() -> str:
    """Return the address of this machine on its network; the loopback if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_RESERVED_ADDRESS)
            found: str = probe.getsockname()[0]
        except OSError:
            return LOOPBACK
    return found
