"""A scripted master or slave at the other end of a replication connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cometmq.broker.replication.greeting import GREETING_BYTES, MAGIC
from cometmq.broker.replication.wire import HEADER, REPORT

WAIT_S = 60.0


class Peer:
    """A connection whose bytes a test reads and writes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int, *, room_bytes: int | None = None) -> Peer:
        """Connect to a master, as a slave does; with so little room for what is not read yet."""
        if room_bytes is None:
            return cls(*await asyncio.open_connection("127.0.0.1", port))
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room_bytes)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        return cls(*await asyncio.open_connection(sock=connection, limit=room_bytes))

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._writer.write(data)

    async def header(self) -> tuple[int, int]:
        """Offset and size of the next chunk or heartbeat."""
        offset, size = HEADER.unpack(await self.read(HEADER.size))
        return offset, size

    async def chunk(self) -> tuple[int, bytes]:
        """Offset and bytes of the next chunk, heartbeats left out."""
        while True:
            offset, size = await self.header()
            if size:
                return offset, await self.read(size)

    async def report(self) -> int:
        """The next report of a slave, behind its greeting if it sends one."""
        data = await self.read(REPORT.size)
        if data.startswith(MAGIC):
            await self.read(GREETING_BYTES - len(data))
            data = await self.read(REPORT.size)
        return int(REPORT.unpack(data)[0])

    async def closed(self) -> bytes:
        """Wait until the other side has closed the connection; return what it has sent."""
        found = bytearray()
        async with asyncio.timeout(WAIT_S):
            try:
                while data := await self._reader.read(1 << 16):
                    found += data
            except ConnectionError:
                pass
        self.close()
        return bytes(found)

    async def read(self, count: int) -> bytes:
        """The next bytes."""
        async with asyncio.timeout(WAIT_S):
            return await self._reader.readexactly(count)

    def close(self) -> None:
        """Close this side."""
        self._writer.transport.abort()


class Masters:
    """A listener to which slaves connect."""

    def __init__(self) -> None:
        self._accepted: asyncio.Queue[Peer] = asyncio.Queue()
        self._peers: list[Peer] = []
        self._is_closed = False
        self.address = ""

    def add(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection; one that was accepted during the close is closed at once."""
        peer = Peer(reader, writer)
        if self._is_closed:
            peer.close()
            return
        self._peers.append(peer)
        self._accepted.put_nowait(peer)

    async def accept(self) -> Peer:
        """The next connection of a slave."""
        async with asyncio.timeout(WAIT_S):
            return await self._accepted.get()

    def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        for peer in self._peers:
            peer.close()


@asynccontextmanager
async def listening() -> AsyncIterator[Masters]:
    """Listen for slaves within ``async with``."""
    masters = Masters()
    server = await asyncio.start_server(masters.add, "127.0.0.1", 0)
    masters.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield masters
    finally:
        server.close()
        masters.close()
