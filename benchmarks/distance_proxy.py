"""Delays TCP connections, as a network does whose ends are far apart.

Arguments are pairs of addresses, ``FROM=TO``: a connection to ``FROM`` goes on to ``TO``. Each line
of the standard input is a delay for each direction, in milliseconds, for all bytes that are
received from then on. Bandwidth is not limited. ``ready`` is printed when all addresses listen, and
once for each delay that was set.

The loop waits with ``select``, whose time limits are exact to microseconds; ``epoll`` would round
each delay up to a whole millisecond.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
from collections import deque

READ_BYTES = 1 << 20


class Delay:
    """The delay of each direction, which may change."""

    def __init__(self) -> None:
        self.seconds = 0.0


class End(asyncio.BufferedProtocol):
    """One end of a connection; what it receives is sent to the other end after the delay."""

    _space = memoryview(bytearray(READ_BYTES))

    def __init__(self, delay: Delay) -> None:
        self._delay = delay
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, bytes | None]] = deque()
        """When to send what; None closes the other end."""
        self.other: End | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.other is not None:
            self.other.transport_came()

    def transport_came(self) -> None:
        """Send what has waited for the other end to be connected."""
        if self._waiting:
            self._send()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the space for the next bytes."""
        return self._space

    def buffer_updated(self, count: int) -> None:
        """Bytes have come."""
        self._add(bytes(self._space[:count]))

    def connection_lost(self, error: Exception | None) -> None:
        """Close the other end, too, behind all bytes."""
        self._add(None)

    def _add(self, data: bytes | None) -> None:
        due_s = self._loop.time() + self._delay.seconds
        self._waiting.append((due_s, data))
        if len(self._waiting) == 1:
            if self._delay.seconds:
                self._loop.call_at(due_s, self._send)
            else:
                self._send()

    def _send(self) -> None:
        other = self.other
        if other is None or other.transport is None:
            return  # `transport_came` sends it
        now_s = self._loop.time()
        while self._waiting:
            due_s, data = self._waiting[0]
            if due_s > now_s:
                self._loop.call_at(due_s, self._send)
                return
            self._waiting.popleft()
            if data is None:
                other.transport.close()
            elif not other.transport.is_closing():
                other.transport.write(data)


async def _listen(pair: str, delay: Delay) -> asyncio.Server:
    (host, port), (to_host, to_port) = (address.rsplit(":", 1) for address in pair.split("="))
    loop = asyncio.get_running_loop()
    connecting: set[asyncio.Task[object]] = set()

    def accepted() -> End:
        near, far = End(delay), End(delay)
        near.other, far.other = far, near
        task = loop.create_task(_connect(near, far, to_host, int(to_port)))
        connecting.add(task)
        task.add_done_callback(connecting.discard)
        return near

    return await loop.create_server(accepted, host, int(port))


async def _connect(near: End, far: End, host: str, port: int) -> None:
    try:
        await asyncio.get_running_loop().create_connection(lambda: far, host, port)
    except OSError:
        if near.transport is not None:
            near.transport.abort()


async def main() -> None:
    """Listen until the standard input ends."""
    delay = Delay()
    servers = [await _listen(pair, delay) for pair in sys.argv[1:]]
    print("ready", flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    while line := await lines.readline():
        delay.seconds = float(line) / 1000
        print("ready", flush=True)
    for server in servers:
        server.close()


if __name__ == "__main__":
    with asyncio.Runner(
        loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())
    ) as runner:
        runner.run(main())
