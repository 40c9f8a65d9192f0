"""A transport without a socket: the test is the peer, and decides what arrives."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from typing import Any

from cometmq.protocol.command import Command
from cometmq.remoting import Connection, RemotingSettings, RequestHandler, Supervisor
from cometmq.remoting.requests import Guard
from cometmq.remoting.wire import FastPath, write_batch_of
from support.wire.frames import CommandDecoder

PEER = ("10.0.0.9", 51000)
WAIT_S = 60.0


class FakeTransport(asyncio.Transport):
    """Keeps what is written; while it is ``stuck`` the peer takes none of it."""

    def __init__(self, peer: Any = PEER) -> None:
        super().__init__({"peername": peer})
        self.protocol: Connection
        self.writes: list[bytes] = []
        self.wrote = asyncio.Event()
        self.stuck = False
        self.reading = True
        self.aborted = False
        self.closes = 0
        self._unsent = 0
        self._high = 64 * 1024
        self._paused = False
        self._closing = False

    # --- what the connection does -------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self._closing, "written after it was closed"
        self.writes.append(bytes(data))
        self.wrote.set()
        if self.stuck:
            self._unsent += len(data)
            if self._unsent > self._high and not self._paused:
                self._paused = True
                self.protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        self._high = high

    def get_write_buffer_size(self) -> int:
        return self._unsent

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self.closes += 1
        if not self._closing:
            self._closing = True
            if not self._unsent:
                self._lose()

    def abort(self) -> None:
        self.aborted = True
        if not self._closing or self._unsent:
            self._closing, self._unsent = True, 0
            self._lose()

    def _lose(self) -> None:
        asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    # --- what the peer does -------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Let bytes arrive in a turn of their own."""
        self.arrive(data)
        write_batch_of(asyncio.get_running_loop()).end()

    def arrive(self, data: bytes) -> None:
        """Let bytes arrive, as much at a time as the connection has room for."""
        left = memoryview(data)
        while left and not self._closing:
            room = self.protocol.get_buffer(-1)
            assert len(room) > 0, "no room to read into"
            count = min(len(room), len(left))
            room[:count] = left[:count]
            left = left[count:]
            self.protocol.buffer_updated(count)

    def take(self, *, then_stuck: bool = False) -> None:
        """Read all that was written, and, unless ``then_stuck``, what is written from now on."""
        self.stuck = then_stuck
        self._unsent = 0
        if self._paused:
            self._paused = False
            self.protocol.resume_writing()
        if self._closing:
            self._lose()

    @property
    def written(self) -> bytes:
        return b"".join(self.writes)

    def commands(self) -> list[Command]:
        """What was written, as commands; the last one must be whole."""
        decoder, found = CommandDecoder(), []
        decoder.receive(self.written)
        while (command := decoder.next_command()) is not None:
            found.append(command)
        assert sum(len(command.body) for command in found) <= len(self.written)
        return found


class Wired:
    """A real connection on a fake transport."""

    def __init__(
        self,
        handlers: Mapping[int, RequestHandler] | None = None,
        *,
        peer: Any = PEER,
        fast_path: FastPath | None = None,
        guard: Guard | None = None,
        **limits: int,
    ) -> None:
        self.supervisor = Supervisor("test")
        self.lost: list[Connection] = []
        self.connection = Connection(
            handlers or {},
            settings=RemotingSettings(**limits),
            supervisor=self.supervisor,
            on_close=self.lost.append,
            fast_path=fast_path,
            guard=guard,
        )
        self.connection.work_s_max = math.inf  # what was sent is handled at once
        self.transport = FakeTransport(peer)
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)

    @property
    def answers(self) -> list[Command]:
        return self.transport.commands()

    async def settled(self) -> None:
        """Wait until no request is worked on in the background."""
        async with asyncio.timeout(WAIT_S):
            while len(self.supervisor):
                await self.supervisor.drain(WAIT_S)

    async def answered(self, count: int) -> list[Command]:
        """Wait until so many answers were written."""
        async with asyncio.timeout(WAIT_S):
            while len(found := self.answers) < count:
                self.transport.wrote.clear()
                await self.transport.wrote.wait()
        return found
