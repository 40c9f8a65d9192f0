"""When the answers to what was read leave: together, at the end of a turn of the event loop."""

from __future__ import annotations

import asyncio
import logging

import pytest

from cometmq.protocol.command import Command, encode_command
from cometmq.remoting import Request, Response
from cometmq.remoting.wire import TURN_BYTES_MAX, FastPath, Wire, turn_of
from support.fake_transport import Wired

ECHO, HOLD = 9001, 9003


def echo(request: Request) -> Response:
    return Response(body=request.body)


def wires(count: int) -> list[Wired]:
    return [Wired({ECHO: echo}) for _ in range(count)]


def asked(opaque: int, body: bytes = b"") -> bytes:
    return encode_command(Command(ECHO, opaque=opaque, body=body))


def opaques(wired: Wired) -> list[int]:
    return [answer.opaque for answer in wired.answers]


async def test_what_is_read_in_one_turn_is_answered_at_its_end() -> None:
    first, second, idle = wires(3)
    first.transport.arrive(asked(1))
    second.transport.arrive(asked(2))
    assert opaques(first) == opaques(second) == []
    await asyncio.sleep(0)
    assert (opaques(first), opaques(second), opaques(idle)) == ([1], [2], [])


async def test_several_reads_of_a_turn_leave_in_one_write() -> None:
    first, second = wires(2)
    first.transport.arrive(asked(1))
    second.transport.arrive(asked(2))
    first.transport.arrive(asked(3))
    await asyncio.sleep(0)
    assert (opaques(first), len(first.transport.writes)) == ([1, 3], 1)


async def test_who_is_alone_is_answered_at_once() -> None:
    first, second = wires(2)
    first.transport.send(asked(1))
    first.transport.arrive(asked(2))
    assert opaques(first) == [1, 2]
    second.transport.arrive(asked(3))  # not alone any more
    first.transport.arrive(asked(4))
    assert (opaques(first), opaques(second)) == ([1, 2], [])
    await asyncio.sleep(0)
    assert (opaques(first), opaques(second)) == ([1, 2, 4], [3])


async def test_who_is_alone_waits_for_those_who_were_answered_before() -> None:
    held: list[Request] = []
    sender, waiter = Wired({ECHO: echo}), Wired({HOLD: held.append})
    waiter.transport.send(encode_command(Command(HOLD, opaque=7)))
    sender.transport.send(asked(1))
    held[0].reply(Response())
    sender.transport.arrive(asked(2))
    assert (opaques(waiter), opaques(sender)) == ([], [1])
    await asyncio.sleep(0)
    assert (opaques(waiter), opaques(sender)) == ([7], [1, 2])


async def test_a_long_turn_answers_in_between() -> None:
    first, second = wires(2)
    body = bytes(TURN_BYTES_MAX // 2)
    first.transport.arrive(asked(1, body))
    assert opaques(first) == []
    second.transport.arrive(asked(2, body))
    assert (opaques(first), opaques(second)) == ([1], [2])
    await asyncio.sleep(0)
    assert (opaques(first), opaques(second)) == ([1], [2])


class Mirror(FastPath):
    """Answers what was read with the same bytes."""

    def take(self, data: bytearray, start: int, end: int, wire: Wire) -> int:
        wire.write(bytes(data[start:end]))
        return end - start


async def test_more_than_the_write_buffer_may_hold_does_not_wait_for_the_turn() -> None:
    """Even if the answers that wait were few when the connection joined it."""
    first = Wired({ECHO: echo})
    second = Wired({}, fast_path=Mirror(), write_buffer_bytes_max=4096)
    first.transport.arrive(asked(1))
    second.transport.arrive(asked(2))
    second.transport.arrive(asked(3, bytes(3000)))
    assert opaques(second) == []
    second.transport.arrive(asked(4, bytes(3000)))
    assert (opaques(first), opaques(second)) == ([], [2, 3, 4])
    await asyncio.sleep(0)
    assert (opaques(first), opaques(second)) == ([1], [2, 3, 4])


async def test_nobody_waits_for_a_connection_that_cannot_be_written(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, sound = wires(2)

    def fail(data: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(broken.transport, "write", fail)
    broken.transport.arrive(asked(1))
    sound.transport.arrive(asked(2))
    with caplog.at_level(logging.ERROR):
        await asyncio.sleep(0)
    assert opaques(sound) == [2]
    assert broken.connection.closed
    assert "cannot write" in caplog.text


async def test_a_connection_that_closes_takes_its_answers_along() -> None:
    first, second = wires(2)
    first.transport.arrive(asked(1))
    second.transport.arrive(asked(2))
    first.connection.close()
    second.connection.abort()
    await asyncio.sleep(0)
    assert (opaques(first), opaques(second)) == ([1], [])


def test_each_loop_has_turns_of_its_own() -> None:
    async def leave_one_unfinished() -> object:
        wired = wires(1)[0]
        wired.transport.arrive(asked(1))
        return turn_of(asyncio.get_running_loop())

    async def answered() -> tuple[object, list[int]]:
        wired = wires(1)[0]
        wired.transport.arrive(asked(2))
        await asyncio.sleep(0)
        return turn_of(asyncio.get_running_loop()), opaques(wired)

    before = asyncio.run(leave_one_unfinished())
    after, found = asyncio.run(answered())
    assert before is not after
    assert found == [2]
