"""All connections together hold a limited number of bytes; honest clients are served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

from cometmq.protocol.command import Command, encode_command
from cometmq.remoting import RemotingClient, RemotingServer, RemotingSettings, Request, Response
from cometmq.remoting import buffer_budget as module
from cometmq.remoting.buffer_budget import BufferBudget
from cometmq.remoting.wire import PARTIAL_BYTES_MIN, write_batch_of
from support.checks.waiting import until
from support.wire.open_access import OpenAccess

ECHO, FILL = 9001, 9002
MIB = 1024 * 1024
LIMIT_S = 60.0
Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(autouse=True)
def soon_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.1)
    monkeypatch.setattr(module, "UNREAD_S", 0.1)
    monkeypatch.setattr(module, "PAUSE_S", 0.01)


@pytest.fixture
async def server() -> AsyncIterator[RemotingServer]:
    started = RemotingServer(
        {
            ECHO: lambda request: Response(body=request.body),
            FILL: lambda request: Response(body=bytes(MIB)),
        },
        settings=RemotingSettings(connection_buffers_max=4 * MIB, connections_max=150),
        name="broker",
    )
    await started.start("127.0.0.1", 0)
    yield started
    await started.stop(0.1)


def budget() -> BufferBudget:
    found: BufferBudget = write_batch_of(asyncio.get_running_loop()).budget
    return found


async def connected(server: RemotingServer, data: bytes) -> Peer:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data)
    return reader, writer


async def until_held(size_bytes: int) -> None:
    await until(lambda: budget().held_bytes >= size_bytes, timeout=LIMIT_S)


async def check_honest(server: RemotingServer, body: bytes) -> None:
    client = RemotingClient(name="honest")
    answer = await client.call(f"127.0.0.1:{server.port}", ECHO, body=body, timeout=LIMIT_S)
    assert answer.body == body
    await client.close()


async def test_silent_peers_with_half_a_frame_are_closed_when_there_is_no_room(
    server: RemotingServer,
) -> None:
    half = encode_command(Command(ECHO, body=bytes(MIB // 2)))[: MIB // 4]
    peers = [await connected(server, half) for _ in range(15)]
    await until_held(15 * len(half) // 2)
    await asyncio.sleep(2 * module.SILENT_S)  # they send nothing for so long
    await check_honest(server, bytes(3 * MIB))
    assert budget().closed > 0
    assert budget().held_bytes <= 4 * MIB
    reader, _ = peers[0]
    async with asyncio.timeout(LIMIT_S):
        assert await reader.read() == b""
    for _, writer in peers:
        writer.close()


async def test_peers_that_do_not_read_are_closed_when_there_is_no_room(
    server: RemotingServer,
) -> None:
    asked = b"".join(encode_command(Command(FILL, opaque=n)) for n in range(32))
    peers = [await connected(server, asked) for _ in range(30)]
    for _, writer in peers:
        assert isinstance(writer.transport, asyncio.ReadTransport)
        writer.transport.pause_reading()
    await until_held(3 * MIB)
    await asyncio.sleep(2 * module.SILENT_S)  # they send nothing for so long
    await check_honest(server, bytes(3 * MIB))
    assert budget().closed > 0
    for _, writer in peers:
        writer.close()


async def test_peers_that_go_on_are_served_one_after_the_other(server: RemotingServer) -> None:
    frame = encode_command(Command(ECHO, body=bytes(2 * MIB)))

    async def send(peer: Peer) -> bool:
        reader, writer = peer
        for at in range(0, len(frame), MIB // 8):
            writer.write(frame[at : at + MIB // 8])
            await asyncio.sleep(0)
        try:
            return len(await reader.readexactly(2 * MIB)) == 2 * MIB
        except (ConnectionError, asyncio.IncompleteReadError):
            return False
        finally:
            writer.close()

    peers = [await connected(server, b"") for _ in range(8)]
    async with asyncio.timeout(LIMIT_S):
        served = await asyncio.gather(*map(send, peers))
    assert sum(served) >= 2
    assert budget().held_bytes <= 4 * MIB + 8 * PARTIAL_BYTES_MIN
    await check_honest(server, bytes(3 * MIB))


async def test_peers_that_send_single_bytes_are_closed_before_honest_ones(
    server: RemotingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT_S", LIMIT_S)
    monkeypatch.setattr(module, "PAUSE_S", 0.1)
    half = encode_command(Command(ECHO, body=bytes(MIB // 2)))[: MIB // 4]
    peers = [await connected(server, half) for _ in range(15)]
    await until_held(15 * len(half) // 2)

    async def send_single_bytes() -> None:
        while True:
            for _, writer in peers:
                writer.write(b"\0")
            await asyncio.sleep(0.02)

    sending = asyncio.create_task(send_single_bytes())
    await check_honest(server, bytes(3 * MIB))
    sending.cancel()
    for _, writer in peers:
        writer.close()


class Greedy:
    """Asks for more as soon as it is read on, as a peer whose frames have waited."""

    received_s = math.inf
    _writing_paused = False
    peer_text = "greedy"

    def __init__(self, budget: BufferBudget) -> None:
        self._budget = budget
        self.resume_frames()

    def warn(self, *args: object) -> None:
        pass

    def abort(self) -> None:
        pass

    def pause_frames(self) -> None:
        pass

    def resume_frames(self) -> None:
        self._budget.hold(self, 2 * MIB)


async def test_connections_that_are_paused_again_leave_one_timer() -> None:
    timers: list[Callable[[], None]] = []

    class Timers:
        def call_later(self, _: float, call: Callable[[], None]) -> object:
            timers.append(call)
            return call

        def call_soon(self, call: Callable[[], None]) -> None:
            call()

    found = BufferBudget(cast(asyncio.AbstractEventLoop, Timers()))
    found.bytes_max = MIB
    peers = [Greedy(found), Greedy(found)]
    for _ in range(10):
        assert len(timers) == 1
        timers.pop()()
    assert len(peers) == 2


async def test_what_ended_connections_held_is_free(server: RemotingServer) -> None:
    half = encode_command(Command(ECHO, body=bytes(MIB // 2)))[: MIB // 4]
    peers = [await connected(server, half) for _ in range(4)]
    await until_held(4 * PARTIAL_BYTES_MIN)
    for _, writer in peers:
        writer.transport.abort()
    await until(lambda: not budget().held_bytes, timeout=LIMIT_S)


async def test_a_large_response_needs_no_account() -> None:
    """Clients sign requests only; a client with many queues has a large state to show."""
    answers: asyncio.Queue[Command] = asyncio.Queue()

    async def ask(request: Request) -> None:
        answers.put_nowait(await request.connection.call(ECHO, timeout=LIMIT_S))

    server = RemotingServer({FILL: ask}, access=OpenAccess(), name="broker")
    await server.start("127.0.0.1", 0)
    state = bytes(MIB)
    client = RemotingClient(handlers={ECHO: lambda _: Response(body=state)}, name="client")
    await client.oneway(f"127.0.0.1:{server.port}", FILL)
    async with asyncio.timeout(LIMIT_S):
        assert (await answers.get()).body == state
    late = encode_command(Command(ECHO, opaque=77, flag=1, body=state))
    reader, writer = await connected(server, late)
    async with asyncio.timeout(LIMIT_S):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()
    await client.close()
    await server.stop(0.1)


async def test_connections_have_a_limit(
    server: RemotingServer, caplog: pytest.LogCaptureFixture
) -> None:
    peers = [await connected(server, b"") for _ in range(151)]
    reader, _ = peers[-1]
    async with asyncio.timeout(LIMIT_S):
        assert await reader.read() == b""
    assert "150 are open (connectionsMax)" in caplog.text
    for _, writer in peers:
        writer.close()
