"""Accepted connections whose first frame has not arrived yet.

Many hostile connections never send a whole frame. Until it is there, a connection has no transport,
no task and no timer, and its bytes stay in the buffers of the kernel: the server looks at the first
`PREFIX_BYTES`, and the kernel reports the connection again when the frame is complete, when
`WAITING_BYTES_MAX` of it have arrived, or at the end of the connection.

The kernel reports all these connections through one descriptor. So each iteration of the event loop
looks at a few of them, however many send or end at the same time. Where the kernel has no such
descriptor, a connection is opened at its first byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, Final

from cometmq.model.address import host_and_port
from cometmq.protocol.frame import PREFIX_BYTES
from cometmq.remoting.buffer_budget import BufferBudget
from cometmq.remoting.tls import HANDSHAKE_BYTE
from cometmq.system.platforms import SYSTEM

WAITING_BYTES_MAX: Final = 96 * 1024
"""The limit of a first frame in the kernel. Then the connection is opened, and reads the rest."""
KERNEL_BYTES: Final = 64 * 1024
"""The kernel keeps so much for any connection that is not read, so only more than this counts for
the limit. If the kernel is short of memory, it reports the connections, and they are opened.
Source: tcp_rmem of tcp(7)."""
LOOKS_PER_ITERATION = 8
"""Connections that one iteration of the event loop looks at, which may end or open them."""
_PREFIX = struct.Struct(">II")


class Arrival:
    """An accepted connection without a first frame; a `Holder` of the limit of all connections."""

    __slots__ = (
        "_address",
        "_arrivals",
        "_writing_paused",
        "received_s",
        "socket",
        "wanted_bytes",
        "warn",
    )

    def __init__(self, accepted: socket.socket, address: tuple[Any, ...], owner: Arrivals) -> None:
        self.socket = accepted
        self._address = address
        self._arrivals = owner
        # It cannot be paused, and each of thousands announces much with a few bytes. So it counts
        # as silent as soon as a peer that leaves responses unread.
        self._writing_paused = True
        self.warn = owner.warn
        self.received_s = monotonic()
        """The time of the accept, then of the first bytes of the frame."""
        self.wanted_bytes = 0
        """How many bytes have to arrive before the kernel reports the connection again; 0: one."""

    @property
    def peer_text(self) -> str:
        """The address of the peer."""
        return host_and_port(*self._address[:2])

    def abort(self) -> None:
        """Close the connection."""
        self._arrivals.drop(self)

    def pause_frames(self) -> None:
        """Do nothing: its bytes are not read in any case."""

    def resume_frames(self) -> None:
        """Do nothing: its bytes are not read in any case."""


class Arrivals:
    """The accepted connections of a server that are not open yet.

    Args:
        loop: the event loop.
        budget: the limit of what all connections hold.
        wanted: returns how many bytes of a first frame have to arrive before its connection is
            opened, by its first two numbers; at most `WAITING_BYTES_MAX` are waited for. None opens
            a connection at its first byte.
        opens: called with a connection to open, and whether its first byte is that of TLS.
        warn: logs why a connection was closed.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        budget: BufferBudget,
        *,
        wanted: Callable[[int, int], int] | None,
        opens: Callable[[socket.socket, bool], None],
        warn: Callable[..., None],
    ) -> None:
        self._loop = loop
        self._budget = budget
        self._wanted = wanted
        self._opens = opens
        self.warn = warn
        self._waiting: dict[int, Arrival] = {}
        """The connections by the descriptor of their socket, in the order in which they came."""
        self._readable = SYSTEM.readable_sockets()
        if self._readable is not None:
            loop.add_reader(self._readable.fileno(), self._look_at_some)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, accepted: socket.socket, address: tuple[Any, ...]) -> None:
        """Wait for the first frame of a connection; mostly it is there already."""
        arrival = Arrival(accepted, address, self)
        descriptor = accepted.fileno()
        self._waiting[descriptor] = arrival
        if self._look(arrival, is_ended=False):
            return
        if self._readable is not None:
            self._readable.add(descriptor)
        else:
            self._loop.add_reader(descriptor, self._look, arrival, False)

    def before(self, oldest_s: float) -> Iterator[Arrival]:
        """Return the connections whose last step was before this `monotonic` time."""
        return (one for one in self._waiting.values() if one.received_s < oldest_s)

    def drop(self, arrival: Arrival) -> bool:
        """Close a connection; return whether it was waiting."""
        is_waiting = self._waiting.get(arrival.socket.fileno()) is arrival
        if is_waiting:
            self._forget(arrival)
            arrival.socket.close()
        return is_waiting

    def close(self) -> None:
        """Close all connections."""
        for arrival in list(self._waiting.values()):
            self.drop(arrival)
        if self._readable is not None:
            self._loop.remove_reader(self._readable.fileno())
            self._readable.close()

    def _look_at_some(self) -> None:
        assert self._readable is not None
        for descriptor, is_ended in self._readable.ready(LOOKS_PER_ITERATION):
            arrival = self._waiting.get(descriptor)
            if arrival is not None:  # a connection that was looked at before it may have closed it
                self._look(arrival, is_ended)

    def _look(self, arrival: Arrival, is_ended: bool) -> bool:
        """Open or close a connection if it is time to; return whether it does not wait any more."""
        accepted = arrival.socket
        try:
            prefix = accepted.recv(PREFIX_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            prefix = b""
        if not prefix:
            return self.drop(arrival)
        is_tls = prefix[0] == HANDSHAKE_BYTE
        if self._readable is not None and self._wanted is not None and not is_tls:
            wanted = PREFIX_BYTES
            if len(prefix) == PREFIX_BYTES:
                wanted = min(self._wanted(*_PREFIX.unpack(prefix)), WAITING_BYTES_MAX)
            if self._readable.unread_bytes(accepted.fileno()) < wanted:
                if is_ended:
                    return self.drop(arrival)
                if wanted != arrival.wanted_bytes:
                    self._await_bytes(arrival, wanted)
                    return False
                # The kernel has no room for the rest: a transport reads it from now on.
        self._forget(arrival)
        if arrival.wanted_bytes:
            _report_at(accepted, 1)
        self._opens(accepted, is_tls)
        return True

    def _await_bytes(self, arrival: Arrival, wanted: int) -> None:
        arrival.wanted_bytes = wanted
        arrival.received_s = monotonic()
        _report_at(arrival.socket, wanted)
        if wanted > KERNEL_BYTES:
            self._budget.hold(arrival, wanted - KERNEL_BYTES)

    def _forget(self, arrival: Arrival) -> None:
        descriptor = arrival.socket.fileno()
        del self._waiting[descriptor]
        if arrival.wanted_bytes > KERNEL_BYTES:
            self._budget.hold(arrival, 0)
        if self._readable is None:
            self._loop.remove_reader(descriptor)
        else:
            self._readable.discard(descriptor)


def _report_at(accepted: socket.socket, size_bytes: int) -> None:
    """Let the kernel report a socket as readable when this number of bytes is there."""
    with contextlib.suppress(OSError):  # the peer has reset the connection
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)
