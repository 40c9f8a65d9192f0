"""The limit on bytes that many hostile connections hold, and the work of one call for it."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.protocol.command import Command, encode_command
from cometmq.remoting import Request, Response
from cometmq.remoting import buffer_budget as module
from cometmq.remoting.buffer_budget import LOOKS_MAX, BufferBudget
from cometmq.remoting.wire import PARTIAL_BYTES_MIN, write_batch_of
from support.wire.fake_transport import Wired

ECHO = 9001
KIB = 1024


def echo(request: Request) -> Response:
    return Response(body=request.body)


def budget() -> BufferBudget:
    found: BufferBudget = write_batch_of(asyncio.get_running_loop()).budget
    return found


def asked(body_bytes: int) -> bytes:
    return encode_command(Command(ECHO, opaque=1, body=bytes(body_bytes)))


def aborted(peers: list[Wired]) -> int:
    return sum(peer.transport.aborted for peer in peers)


async def test_a_few_bytes_of_a_frame_take_a_small_buffer() -> None:
    frame = asked(100 * KIB)
    peer = Wired({ECHO: echo})
    for at in range(100):
        peer.transport.send(frame[at : at + 1])
    assert budget().held_bytes <= 4 * KIB
    peer.transport.send(frame[100 : 8 * KIB])
    assert budget().held_bytes >= PARTIAL_BYTES_MIN  # it sends faster: it is read in larger pieces
    peer.transport.send(frame[8 * KIB :])
    assert [len(answer.body) for answer in peer.answers] == [100 * KIB]


async def test_a_small_buffer_grows_while_frames_overlap_its_end() -> None:
    frames = b"".join(asked(300) for _ in range(200))
    peer = Wired({ECHO: echo})
    peer.transport.send(frames[:1000])
    peer.transport.send(frames[1000:])
    assert len(peer.answers) == 200


async def test_one_call_closes_a_limited_number_of_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.0)
    peers = [Wired({ECHO: echo}) for _ in range(3 * LOOKS_MAX)]
    for peer in peers:
        peer.transport.send(asked(64 * KIB)[: 8 * KIB])
    budget().bytes_max = KIB
    late = Wired({ECHO: echo})
    late.transport.send(asked(64 * KIB)[: 8 * KIB])
    assert aborted(peers) == LOOKS_MAX
    assert late.connection.is_paused


async def test_no_more_connections_are_closed_than_the_limit_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.0)
    peers = [Wired({ECHO: echo}) for _ in range(10)]
    for peer in peers:
        peer.transport.send(asked(64 * KIB)[: 8 * KIB])
    budget().bytes_max = budget().held_bytes
    late = Wired({ECHO: echo})
    late.transport.send(asked(64 * KIB)[: 8 * KIB])
    assert [peer.transport.aborted for peer in peers] == [True] + [False] * 9
    assert not late.connection.is_paused


async def test_what_a_peer_does_not_read_counts_as_it_is() -> None:
    peer = Wired({ECHO: echo}, write_buffer_bytes_max=64 * KIB)
    peer.transport.stuck = True
    peer.transport.send(asked(100 * KIB))
    await asyncio.sleep(0)
    assert 100 * KIB <= budget().held_bytes <= 110 * KIB
    peer.transport.take()
    assert budget().held_bytes == 0


async def test_peers_that_do_not_read_make_room_before_others_are_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "UNREAD_S", 0.0)
    peers = [Wired({ECHO: echo}, write_buffer_bytes_max=64 * KIB) for _ in range(5)]
    budget().bytes_max = 250 * KIB
    for peer in peers:
        peer.transport.stuck = True
        peer.transport.send(asked(100 * KIB))
        await asyncio.sleep(0)
    assert [peer.transport.aborted for peer in peers] == [True] * 3 + [False] * 2
    honest = Wired({ECHO: echo})
    honest.transport.send(asked(300 * KIB)[: 8 * KIB])
    assert not honest.connection.is_paused
    assert budget().held_bytes <= 250 * KIB


async def test_a_few_bytes_of_a_frame_are_read_even_if_there_is_no_room() -> None:
    budget().bytes_max = KIB
    honest = Wired({ECHO: echo})
    honest.transport.send(asked(0)[:10])
    assert not honest.connection.is_paused


async def test_a_paused_connection_that_ends_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this, connections that are paused and end fill the memory while there is no room."""
    monkeypatch.setattr(module, "SILENT_S", 60.0)
    peer, late = Wired({ECHO: echo}), Wired({ECHO: echo})
    peer.transport.send(asked(64 * KIB)[: 8 * KIB])
    budget().bytes_max = KIB
    late.transport.send(asked(64 * KIB)[: 8 * KIB])
    assert late.connection.is_paused
    late.connection.connection_lost(None)
    await asyncio.sleep(0)
    assert not late.connection.is_paused
    assert budget().held_bytes > KIB
