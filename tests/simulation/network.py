"""The network of a simulation: connections that delay, are cut, and wait in a partition.

Bytes of one direction of a connection keep their order and are never doubled, as TCP has it.
Connections are independent of each other. A partitioned direction holds its bytes until it heals,
as retransmission does; a new connection over it is never made.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from simulation.kernel import PROCESS, Process, SimulatedLoop

ORDER_S = 1e-6
"""Least time between two arrivals of one direction of a connection."""


class Listener:
    """A socket that listens."""

    def __init__(self, network: Network, process: Process, port: int) -> None:
        self.number = network.next_number()
        self.process = process
        self.waiting: deque[Link] = deque()
        self._network = network
        self._name = (process.ip, port)

    def fileno(self) -> int:
        return self.number

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def accept(self) -> tuple[Accepted, tuple[str, int]]:
        if not self.waiting:
            raise BlockingIOError
        link = self.waiting.popleft()
        return Accepted(link), link.client.address

    def close(self) -> None:
        self._network.listeners.pop(self._name, None)


class Accepted:
    """A connection as a server accepts it."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def fileno(self) -> int:
        return self.link.number

    def recv(self, size: int, flags: int) -> bytes:
        """Look at what arrived first, and leave it there."""
        assert flags == socket.MSG_PEEK
        end = self.link.server
        if self.link.is_cut or end.is_over:
            return b""
        if not end.arrived:
            raise BlockingIOError
        return (end.arrived[0] or b"")[:size]

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def setsockopt(self, *_: Any) -> None:
        """No options matter here."""

    def shutdown(self, how: int) -> None:
        self.link.cut()

    def close(self) -> None:
        self.link.cut()


class Pipe(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, link: Link, process: Process, address: tuple[str, int]) -> None:
        super().__init__()
        self.link = link
        self.process = process
        self.address = address
        self.other: Pipe
        self.protocol: Any = None
        self.is_over = False
        self._closing = False
        self._paused = False
        self.arrived: deque[bytes | None] = deque()
        """What was not handed over yet; None is the end."""
        self._on_way = 0
        self._last_s = 0.0

    # --- sending --------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self.other.address, "sockname": self.address}.get(name, default)

    def write(self, data: Any) -> None:
        if not (self._closing or self.is_over or self.process.is_dead) and len(data):
            self._send(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def _send(self, data: bytes | None) -> None:
        loop, other = self.link.network.loop, self.other
        # Timers of the same time would run in any order.
        self._last_s = max(self._last_s + ORDER_S, loop.now_s + self.link.network.delay_s())
        self._on_way += len(data or b"")
        loop.call_at(self._last_s, self._reached, data, context=other.process.context)

    def _reached(self, data: bytes | None) -> None:
        network = self.link.network
        if self.link.is_cut:
            return
        is_stalled = self.link.port in network.stalled_ports
        if is_stalled or network.is_partitioned(self.process, self.other.process):
            network.held.append((self, data))
            return
        self._on_way -= len(data or b"")
        if not self.other.is_closing():
            self.other.arrive(data)
        elif data is not None:
            self.link.cut()  # that end does not read any more

    def get_write_buffer_size(self) -> int:
        return self._on_way

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Buffers are large here."""

    def is_closing(self) -> bool:
        return self._closing or self.is_over

    def close(self) -> None:
        if not self.is_closing() and not self.process.is_dead:
            self._closing = True
            self._send(None)
            self.link.network.loop.call_soon(self.lose, None, context=self.process.context)

    def abort(self) -> None:
        self.close()

    # --- receiving ------------------------------------------------------------------------------

    def arrive(self, data: bytes | None) -> None:
        self.arrived.append(data)
        if self.protocol is None:
            self.link.network.report(self.link.number)
        self._hand_over()

    def _hand_over(self) -> None:
        while self.arrived and not self._paused and self.protocol is not None:
            data = self.arrived.popleft()
            if self.is_over or self._closing:
                return
            if data is None:
                self._closing = True
                self.lose(None)
            elif isinstance(self.protocol, asyncio.BufferedProtocol):
                left = memoryview(data)
                while left and not self.is_closing():
                    room = memoryview(self.protocol.get_buffer(len(left)))
                    count = min(len(room), len(left))
                    room[:count] = left[:count]
                    self.protocol.buffer_updated(count)
                    left = left[count:]
            else:
                self.protocol.data_received(data)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self.link.network.loop.call_soon(self._hand_over, context=self.process.context)

    def begin(self, protocol: Any) -> None:
        self.protocol = protocol
        protocol.connection_made(self)
        self._hand_over()

    def lose(self, problem: Exception | None) -> None:
        """Tell the protocol that the connection is over."""
        if self.is_over:
            return
        self.is_over = True
        self.link.network.links.discard(self.link)
        if self.process.is_dead:
            return
        if self.protocol is not None:
            self.protocol.connection_lost(problem)
        else:
            self.link.network.report(self.link.number)


class Link:
    """A connection."""

    def __init__(self, network: Network, client: Process, listener: Listener) -> None:
        self.network = network
        self.number = network.next_number()
        self.client = Pipe(self, client, (client.ip, self.number))
        self.server = Pipe(self, listener.process, listener.getsockname())
        self.client.other, self.server.other = self.server, self.client
        self.port = listener.getsockname()[1]
        self.is_cut = False

    def cut(self) -> None:
        """Reset the connection: each end learns of it after a while, what is under way is lost."""
        loop = self.network.loop
        self.is_cut = True
        for end in (self.client, self.server):
            end.arrived.clear()
            reset = ConnectionResetError("connection reset by the simulation")
            loop.call_later(self.network.delay_s(), end.lose, reset, context=end.process.context)


class Network:
    """All connections.

    Args:
        loop: what it runs on; it draws delays from the loop's chances.
    """

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.listeners: dict[tuple[str, int], Listener] = {}
        self.links = _Ordered()
        self.partitioned: dict[tuple[str, str], None] = {}
        """Directions, by names of processes, over which nothing arrives."""
        self.stalled_ports: dict[int, None] = {}
        """Ports of servers to and from which nothing arrives, though all else does."""
        self.held: list[tuple[Pipe, bytes | None]] = []
        self.slow_s = 0.0
        self._numbers = itertools.count(1000)
        loop.network = self

    def next_number(self) -> int:
        """Return the next descriptor or port. Each world has its own: servers limit them."""
        return next(self._numbers)

    def delay_s(self) -> float:
        chance = self.loop.chance
        if chance.below(20) == 0:
            return self.slow_s + chance.fraction() * 0.1
        return 0.0001 + chance.fraction() * 0.002

    def is_partitioned(self, sender: Process, receiver: Process) -> bool:
        return (sender.name, receiver.name) in self.partitioned

    def partition(self, sender: str, receiver: str) -> None:
        self.partitioned[sender, receiver] = None

    def heal(self) -> None:
        """Let everything pass again, and what was held arrive."""
        self.partitioned.clear()
        self.stalled_ports.clear()
        held, self.held = self.held, []
        for pipe, data in held:
            self.loop.call_soon(pipe._reached, data, context=pipe.other.process.context)

    def cut_some(self) -> None:
        for link in list(self.links):
            if self.loop.chance.below(3) == 0:
                link.cut()

    def process_died(self, process: Process) -> None:
        for name, listener in list(self.listeners.items()):
            if listener.process is process:
                del self.listeners[name]
        for link in list(self.links):
            if process in (link.client.process, link.server.process):
                link.cut()

    # --- what the loop asks ---------------------------------------------------------------------

    def listen(self, host: str, port: int, backlog: int) -> Listener:
        process = PROCESS.get()
        assert process is not None
        listener = Listener(self, process, port or self.next_number())
        assert listener.getsockname() not in self.listeners
        self.listeners[listener.getsockname()] = listener
        return listener

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> Any:
        process = PROCESS.get()
        assert process is not None
        await asyncio.sleep(self.delay_s())
        listener = self.listeners.get((host, port))
        if listener is not None:
            there = listener.process
            if self.is_partitioned(process, there) or self.is_partitioned(there, process):
                await asyncio.Event().wait()  # until the caller's patience ends
        if listener is None or listener.process.is_dead:
            raise ConnectionRefusedError(111, "connection refused by the simulation")
        link = Link(self, process, listener)
        self.links.add(link)
        self.loop.call_soon(self._arrive, listener, link, context=listener.process.context)
        protocol = factory()
        link.client.begin(protocol)
        return link.client, protocol

    def _arrive(self, listener: Listener, link: Link) -> None:
        listener.waiting.append(link)
        if not self.report(listener.number):
            link.cut()

    def report(self, descriptor: int) -> bool:
        """Call what watches a socket; return whether anything does."""
        reader = self.loop.readers.get(descriptor)
        if reader is not None:
            reader[1]()
        return reader is not None

    def accepted(self, factory: Callable[[], Any], accepted: Accepted) -> Any:
        protocol = factory()
        accepted.link.server.begin(protocol)
        return accepted.link.server, protocol


class _Ordered(dict[Link, None]):
    """A set that keeps the order of insertion."""

    def add(self, link: Link) -> None:
        self[link] = None

    def discard(self, link: Link) -> None:
        self.pop(link, None)
