"""A listening port, and peers that misbehave."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.protocol.command import ONEWAY_FLAG, Command, encode_command
from cometmq.remoting import RemotingServer, RemotingSettings
from cometmq.remoting import server as module
from cometmq.remoting.config import TlsSettings
from cometmq.system.failure_log import LINES_MAX
from support.checks.waiting import until

GIANT_FRAME = b"\x7f\xff\xff\xff" * 2


async def test_however_many_connections_send_garbage_the_log_stays_short(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = RemotingServer({}, name="broker")
    await server.start("127.0.0.1", 0)
    for _ in range(3 * LINES_MAX):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GIANT_FRAME)
        assert await reader.read() == b"", "the connection was not closed"
        writer.close()
    await server.stop()

    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "malformed input" in line]) == LINES_MAX
    assert lines[-1] == f"{2 * LINES_MAX} more connections refused or closed server=broker"


async def test_connections_that_send_nothing_have_no_tasks_and_end_with_the_idle_time() -> None:
    server = RemotingServer(
        {}, settings=RemotingSettings(idle_s=1), tls=TlsSettings(mode="permissive"), name="broker"
    )
    await server.start("127.0.0.1", 0)
    before = len(asyncio.all_tasks())
    peers = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(100)]
    await until(lambda: server.arriving == len(peers))
    assert len(asyncio.all_tasks()) <= before + 1
    for reader, writer in peers:
        async with asyncio.timeout(60.0):
            assert await reader.read() == b""
        writer.close()
    assert server.arriving == server.connections == 0
    await server.stop()


async def test_a_connection_that_ends_before_its_first_byte_is_not_opened() -> None:
    opened: list[object] = []
    server = RemotingServer({}, tls=TlsSettings(mode="permissive"), on_close=opened.append)
    await server.start("127.0.0.1", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await until(lambda: server.arriving == 1)
    writer.close()
    await until(lambda: server.arriving == 0)
    await server.stop()
    assert opened == []


async def test_a_stopping_server_closes_connections_that_have_sent_nothing() -> None:
    server = RemotingServer({}, tls=TlsSettings(mode="permissive"))
    await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await until(lambda: server.arriving == 1)
    await server.stop()
    assert await reader.read() == b""
    writer.close()


async def test_idle_connections_are_closed_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CLOSES_PER_ITERATION", 2)
    server = RemotingServer({}, settings=RemotingSettings(idle_s=1))
    await server.start("127.0.0.1", 0)
    peers = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(7)]
    for _, writer in peers:
        writer.write(encode_command(Command(9001, flag=ONEWAY_FLAG)))
    await until(lambda: server.connections == len(peers))
    for reader, writer in peers:
        async with asyncio.timeout(60.0):
            assert await reader.read() == b""
        writer.close()
    await until(lambda: server.connections == 0)
    await server.stop()
