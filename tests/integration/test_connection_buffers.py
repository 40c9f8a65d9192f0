"""What all connections hold together has a limit, and honest clients are served beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cometmq.protocol.command import Command, encode_command
from cometmq.remoting import RemotingClient, RemotingServer, RemotingSettings, Response
from cometmq.remoting import buffer_budget as module
from cometmq.remoting.buffer_budget import BufferBudget
from cometmq.remoting.wire import PARTIAL_BYTES_MIN, write_batch_of

ECHO, FILL = 9001, 9002
MIB = 1024 * 1024
LIMIT_S = 60.0
Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(autouse=True)
def soon_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.1)
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
    async with asyncio.timeout(LIMIT_S):
        while budget().held_bytes < size_bytes:
            await asyncio.sleep(0.01)


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
    peers = [await connected(server, asked) for _ in range(3)]
    for _, writer in peers:
        assert isinstance(writer.transport, asyncio.ReadTransport)
        writer.transport.pause_reading()
    await until_held(2 * MIB)
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


async def test_what_ended_connections_held_is_free(server: RemotingServer) -> None:
    half = encode_command(Command(ECHO, body=bytes(MIB // 2)))[: MIB // 4]
    peers = [await connected(server, half) for _ in range(4)]
    await until_held(4 * PARTIAL_BYTES_MIN)
    for _, writer in peers:
        writer.transport.abort()
    async with asyncio.timeout(LIMIT_S):
        while budget().held_bytes:
            await asyncio.sleep(0.01)


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
