"""A proxy before a broker or a name server, with the faults of bad networks.

It listens on loopback and passes whole frames on in both directions. It can cut a connection in the
middle of a frame, delay or drop responses, fall silent, or refuse connections. It can rewrite the
responses of a name server, so that clients reach the brokers through proxies, too: `proxied` stands
before a whole cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from cometmq.protocol.command import Command, command_at
from support.checks.waiting import Changes

HOST = "127.0.0.1"
FRAME_BYTES_MAX = 64 * 1024 * 1024
ON_THE_WAY_MAX = 4096
WAIT_S = 100.0

Drops = Callable[[Command, Command], bool]
"""Told a request and its answer, says whether the answer is to be lost."""


class FaultProxy(Changes):
    """One link. Faults hold for connections that are open and for those that come.

    Args:
        target: ``host:port`` of the server behind it.
        rewrite: what is replaced in the bodies of answers.
    """

    def __init__(self, target: str, *, rewrite: Mapping[bytes, bytes] | None = None) -> None:
        super().__init__()
        self._target = target
        self._rewrite = dict(rewrite or {})
        self._server: asyncio.Server | None = None
        self._port = 0
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: Counter[int] = Counter()
        """How many requests of each code passed, answered or not."""
        self.dropped = 0
        """How many answers were swallowed."""
        self.cuts = 0
        """How many connections were cut."""
        self.accepted = 0
        """How many connections were made."""
        self.delay_s = 0.0
        self.drops: Drops | None = None
        self.cut_after: int | None = None
        self.cut_answers = True
        self.junk: bytes | None = None
        self.hang_up_on_connect = False
        """Whether connections are taken and closed at once."""
        self.flowing = asyncio.Event()
        self.flowing.set()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{HOST}:{self._port}"

    @property
    def open(self) -> int:
        """How many connections pass through it now."""
        return len(self._links)

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.refuse()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def accept(self) -> None:
        """Take connections, again on the port it had."""
        self._server = await asyncio.start_server(self._serve, HOST, self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Hang up everywhere and let nobody connect, as a machine whose server is down."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.hang_up()

    def hang_up(self) -> None:
        """Abort every connection that is open."""
        for link in list(self._links):
            link.abort()

    def cut(self, *, after_bytes: int, answers: bool = True) -> None:
        """Close a connection once so many more bytes have passed, wherever in a frame that is.

        Args:
            after_bytes: of answers, or of requests, over all connections.
            answers: which direction counts.
        """
        self.cut_after, self.cut_answers = after_bytes, answers

    def spoil(self, junk: bytes) -> None:
        """Replace the next answer by these bytes."""
        self.junk = junk

    def delay(self, seconds: float) -> None:
        """Keep back each answer, from now on, for so long; 0 for none."""
        self.delay_s = seconds

    def drop_answers(self, which: Drops | None) -> None:
        """Swallow the answers that ``which`` says; None for none."""
        self.drops = which

    def stall(self) -> None:
        """Pass nothing on, in either direction, and close nothing."""
        self.flowing.clear()

    def flow(self) -> None:
        """Pass on what was held back, and what comes."""
        self.flowing.set()

    def freeze(self) -> None:
        """Pass nothing more on over the connections that are open; new ones are not affected.

        So it is when the network was away for long, until TCP sends again what was lost.
        """
        for link in self._links:
            link.is_frozen = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await self._carry(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        except OSError:
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.hang_up_on_connect:
            writer.transport.abort()
            return
        host, _, port = self._target.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        link = _Link(self, writer, far_writer)
        self._links.add(link)
        self.moved.set()
        try:
            async with asyncio.TaskGroup() as group:
                for source, answers in ((reader, False), (far_reader, True)):
                    group.create_task(link.take(source, answers=answers))
                    group.create_task(link.pass_on(answers=answers))
        except* (OSError, EOFError):
            pass
        finally:
            self._links.discard(link)
            link.abort()
            self.moved.set()

    def rewritten(self, body: bytes) -> bytes:
        """Say a body of an answer as the client is to see it."""
        for known, new in self._rewrite.items():
            body = body.replace(known, new)
        return body

    def bytes_before_cut(self, size: int, *, answers: bool) -> int | None:
        """Count bytes that are to pass; how many still may if the link is cut within them."""
        if self.cut_after is None or answers is not self.cut_answers:
            return None
        left, self.cut_after = self.cut_after, self.cut_after - size
        if left >= size:
            return None
        self.cut_after = None
        return left


class _Link:
    """One connection of a client, and the one behind it."""

    def __init__(
        self, proxy: FaultProxy, near: asyncio.StreamWriter, far: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._near, self._far = near, far
        self.is_frozen = False
        self._asked: dict[int, Command] = {}
        self._kept: dict[bool, asyncio.Queue[tuple[float, bytes]]]
        self._kept = {answers: asyncio.Queue(ON_THE_WAY_MAX) for answers in (True, False)}

    def abort(self) -> None:
        for writer in (self._near, self._far):
            writer.transport.abort()

    async def take(self, reader: asyncio.StreamReader, *, answers: bool) -> None:
        """Take frames of one direction until its sender hangs up."""
        while True:
            try:
                head = await reader.readexactly(4)
                frame = head + await reader.readexactly(int.from_bytes(head, "big"))
            except asyncio.IncompleteReadError:
                if self.is_frozen:
                    await asyncio.Event().wait()  # until this proxy ends: the end is lost, too
                raise EOFError from None
            changed = self._seen(frame, answers=answers)
            if changed is not None:
                due = asyncio.get_running_loop().time()
                due += self._proxy.delay_s if answers else 0.0
                await self._kept[answers].put((due, changed))

    def _seen(self, frame: bytes, *, answers: bool) -> bytes | None:
        """Note a frame; None if it is to be lost."""
        command = command_at(frame, 0, len(frame), FRAME_BYTES_MAX)
        assert command is not None
        if not command.is_response:
            if not answers:
                self._asked[command.opaque] = command
                self._proxy.requests[command.code] += 1
                self._proxy.moved.set()
            return frame
        request = self._asked.pop(command.opaque, None) if answers else None
        if request is not None and self._proxy.drops and self._proxy.drops(request, command):
            self._proxy.dropped += 1
            self._proxy.moved.set()
            return None
        if answers and self._proxy.junk is not None:
            frame, self._proxy.junk = self._proxy.junk, None
            self._proxy.moved.set()
            return frame
        return self._with_body(frame, command) if answers else frame

    def _with_body(self, frame: bytes, command: Command) -> bytes:
        body = self._proxy.rewritten(command.body)
        if body == command.body:
            return frame
        rest = frame[4 : len(frame) - len(command.body)] + body
        return len(rest).to_bytes(4, "big") + rest

    async def pass_on(self, *, answers: bool) -> None:
        """Write the frames of one direction when they are due."""
        writer = self._near if answers else self._far
        while True:
            due, frame = await self._kept[answers].get()
            now = asyncio.get_running_loop().time()
            if due > now:
                await asyncio.sleep(due - now)
            await self._proxy.flowing.wait()
            if self.is_frozen:
                continue
            kept = self._proxy.bytes_before_cut(len(frame), answers=answers)
            writer.write(frame if kept is None else frame[:kept])
            if kept is not None:
                await self._cut(writer)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAIT_S):
                    await writer.drain()

    async def _cut(self, writer: asyncio.StreamWriter) -> None:
        """Let what was written arrive, then close both connections."""
        self._proxy.cuts += 1
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        raise ConnectionResetError("cut")


class _Addresses(Protocol):
    """A cluster, as far as it is reached over the network."""

    namesrv: str

    @property
    def broker(self) -> str: ...


@dataclass(frozen=True)
class Proxied:
    """A cluster behind links."""

    name_server: FaultProxy
    broker: FaultProxy

    @property
    def address(self) -> str:
        """The name server that leads clients to the broker's link."""
        return self.name_server.address


@asynccontextmanager
async def proxied(cluster: _Addresses) -> AsyncIterator[Proxied]:
    """Put links before a cluster's name server and its broker."""
    async with FaultProxy(cluster.broker) as broker:
        rewrite = {cluster.broker.encode(): broker.address.encode()}
        async with FaultProxy(cluster.namesrv, rewrite=rewrite) as name_server:
            yield Proxied(name_server, broker)
