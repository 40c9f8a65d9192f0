"""A connection is opened when its first frame is there; until then it costs next to nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.model.errors import ConfigError
from cometmq.protocol.command import Command, encode_command
from cometmq.remoting import RemotingServer, RemotingSettings, Request, Response, buffer_budget
from cometmq.remoting import arrivals as module
from cometmq.remoting.arrivals import KERNEL_BYTES, WAITING_BYTES_MAX
from cometmq.remoting.config import TlsSettings
from cometmq.remoting.wire import write_batch_of
from support.checks.waiting import until

ECHO = 9001
MIB = 1024 * 1024
LIMIT_S = 60.0
BOTH_LOOPS = True


def echo(request: Request) -> Response:
    return Response(body=request.body)


@pytest.fixture(params=["disabled", "permissive"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[RemotingServer]:
    started = RemotingServer(
        {ECHO: echo},
        tls=TlsSettings(mode=request.param),
        name="broker",
    )
    await started.start("127.0.0.1", 0)
    yield started
    await started.stop(0.1)


def connected(server: RemotingServer, data: bytes) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", server.port))
    peer.setblocking(False)
    assert peer.send(data) == len(data)
    return peer


async def received(peer: socket.socket, size_bytes: int) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):  # closed, and what was sent was not read
        async with asyncio.timeout(LIMIT_S):
            while len(data) < size_bytes:
                more = await asyncio.get_running_loop().sock_recv(peer, MIB)
                if not more:
                    break
                data += more
    return data


def frame(body_bytes: int) -> bytes:
    return encode_command(Command(ECHO, body=bytes(body_bytes)))


@pytest.mark.parametrize("size", [0, 10 * 1024, WAITING_BYTES_MAX // 2])
@pytest.mark.parametrize("begin", [1, 7, 8, 9, -1])
async def test_a_connection_is_opened_when_its_first_frame_is_there(
    server: RemotingServer, size: int, begin: int
) -> None:
    data = frame(size)
    with connected(server, data[:begin]) as peer:
        await until(lambda: server.arriving == 1)
        await asyncio.sleep(0)
        assert server.connections == 0
        await asyncio.get_running_loop().sock_sendall(peer, data[begin:] + data)
        assert len(await received(peer, 2 * size + 1)) > 2 * size
        assert (server.arriving, server.connections) == (0, 1)


async def test_a_connection_that_goes_on_in_single_bytes_is_looked_at_a_few_times(
    server: RemotingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []
    look = module.Arrivals._look
    monkeypatch.setattr(
        module.Arrivals, "_look", lambda *given, **more: looks.append(0) or look(*given, **more)
    )
    data = frame(100)
    with connected(server, b"") as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(data)):
            peer.send(data[at : at + 1])
            await asyncio.sleep(0)
        assert len(await received(peer, 100)) >= 100
    assert 1 <= len(looks) <= 5  # the accept, and at 1 byte, the prefix, and the whole frame


async def test_a_first_frame_that_is_larger_is_read_in_parts(server: RemotingServer) -> None:
    data = frame(2 * MIB)
    with connected(server, b"") as peer:
        await asyncio.get_running_loop().sock_sendall(peer, data)
        assert len(await received(peer, 2 * MIB)) >= 2 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports waiting connections")
@pytest.mark.parametrize(("release", "waits"), [("4.18.0-553.el8", False), ("5.10.0-8", True)])
async def test_a_first_frame_is_not_waited_for_where_the_kernel_may_never_report_it(
    monkeypatch: pytest.MonkeyPatch, release: str, waits: bool
) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "", release, "", "")))
    server = RemotingServer({ECHO: echo})
    await server.start("127.0.0.1", 0)
    data = frame(1000)
    with connected(server, data[:500]) as peer:
        await until(lambda: (server.arriving, server.connections) == (waits, not waits))
        peer.send(data[500:])
        assert len(await received(peer, 1000)) >= 1000
    await server.stop(0.1)


async def test_half_a_first_frame_is_not_opened_when_its_peer_ends(server: RemotingServer) -> None:
    data = frame(MIB // 16)
    peers = [connected(server, data[: len(data) // 2]) for _ in range(5)]
    await until(lambda: server.arriving == 5)
    for peer in peers:
        peer.shutdown(socket.SHUT_WR)
    assert [await received(peer, 1) for peer in peers] == [b""] * 5
    assert (server.arriving, server.connections) == (0, 0)
    for peer in peers:
        peer.close()


async def test_half_a_plain_frame_is_not_waited_for_where_tls_is_required() -> None:
    server = RemotingServer({}, tls=TlsSettings(mode="enforcing"))
    await server.start("127.0.0.1", 0)
    with connected(server, frame(1000)[:500]) as peer:
        assert await received(peer, 1) == b""
    await server.stop()


async def test_a_whole_first_frame_is_handled_although_its_peer_sends_no_more(
    server: RemotingServer,
) -> None:
    with connected(server, frame(1000)) as peer:
        peer.shutdown(socket.SHUT_WR)
        assert len(await received(peer, MIB)) >= 1000


@pytest.mark.parametrize("begin", [0, 1, 100])
async def test_an_iteration_of_the_event_loop_ends_a_few_connections(
    server: RemotingServer, monkeypatch: pytest.MonkeyPatch, begin: int
) -> None:
    monkeypatch.setattr(module, "LOOKS_PER_ITERATION", 3)
    peers = [connected(server, frame(1000)[:begin]) for _ in range(20)]
    await until(lambda: server.arriving == len(peers))
    for peer in peers:
        peer.close()
    counts = [server.arriving]
    async with asyncio.timeout(LIMIT_S):
        while server.arriving:
            await asyncio.sleep(0)
            counts.append(server.arriving)
    assert max(before - after for before, after in itertools.pairwise(counts)) <= 3


async def test_unfinished_first_frames_in_the_kernel_count_for_the_limit_of_all_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Although none is old, and nothing is done later: thousands may come in a second."""
    monkeypatch.setattr(buffer_budget, "UNREAD_S", 0.0)
    monkeypatch.setattr(buffer_budget, "SILENT_S", LIMIT_S)
    monkeypatch.setattr(buffer_budget, "PAUSE_S", LIMIT_S)
    server = RemotingServer(
        {ECHO: echo}, settings=RemotingSettings(connection_buffers_max=MIB), name="broker"
    )
    await server.start("127.0.0.1", 0)
    data = frame(WAITING_BYTES_MAX - 1024)
    counted = len(data) - KERNEL_BYTES
    budget = write_batch_of(asyncio.get_running_loop()).budget
    peers = [connected(server, data[: KERNEL_BYTES // 2]) for _ in range(50)]
    await until(lambda: budget.closed + server.arriving == len(peers))
    await until(lambda: budget.closed == len(peers) - MIB // counted)
    assert budget.held_bytes == MIB // counted * counted
    with connected(server, b"") as honest:
        await asyncio.get_running_loop().sock_sendall(honest, data)
        assert len(await received(honest, WAITING_BYTES_MAX - 1024)) >= WAITING_BYTES_MAX - 1024
    for peer in peers:
        peer.close()
    await until(lambda: server.arriving == 0)
    await until(lambda: budget.held_bytes == 0)
    await server.stop(0.1)


async def test_a_first_frame_has_to_be_there_within_the_idle_time() -> None:
    server = RemotingServer({}, settings=RemotingSettings(idle_s=1))
    await server.start("127.0.0.1", 0)
    with connected(server, frame(1000)[:500]) as peer:
        assert await received(peer, 1) == b""
    await server.stop()


async def test_connections_that_a_forked_process_holds_too_are_reported_no_more_once_they_ended(
    server: RemotingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[socket.socket] = []
    add = module.Arrivals.add

    def add_and_share(arrivals: module.Arrivals, accepted: socket.socket, *address: Any) -> None:
        held.append(accepted.dup())  # as a fork does
        add(arrivals, accepted, *address)

    monkeypatch.setattr(module.Arrivals, "add", add_and_share)
    with connected(server, frame(1000)[:500]):
        await until(lambda: server.arriving == 1)
    (shared,) = held
    with shared:
        await until(lambda: server.arriving == 0)
        assert server._arrivals is not None
        if (readable := server._arrivals._readable) is not None:
            assert readable.ready(10) == []


@pytest.mark.skipif(sys.platform != "linux", reason="counts the descriptors of the process")
async def test_a_start_that_fails_keeps_no_descriptors(server: RemotingServer) -> None:
    def descriptors() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    with pytest.raises(ConfigError, match="cannot listen"):
        await RemotingServer({}).start("127.0.0.1", server.port)
    assert descriptors() == before
