"""Write batches: responses are written at the end of an iteration of the event loop."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from cometmq.protocol.command import Command, encode_command
from cometmq.remoting import Request, Response
from cometmq.remoting.wire import (
    BATCH_BYTES_MAX,
    BURST_BYTES_MAX,
    BURSTS_BYTES_MAX,
    JOIN_BYTES_MAX,
    FastPath,
    Wire,
    write_batch_of,
)
from support.wire.fake_transport import Wired

ECHO, HOLD = 9001, 9003


def echo(request: Request) -> Response:
    return Response(body=request.body)


def wires(count: int) -> list[Wired]:
    return [Wired({ECHO: echo}) for _ in range(count)]


def asked(opaque: int, body: bytes = b"") -> bytes:
    return encode_command(Command(ECHO, opaque=opaque, body=body))


def opaques(wired: Wired) -> list[int]:
    return [answer.opaque for answer in wired.answers]


async def test_responses_are_written_at_the_end_of_an_iteration() -> None:
    first, second, idle = wires(3)
    first.transport.arrive(asked(1))
    second.transport.arrive(asked(2))
    assert opaques(first) == opaques(second) == []
    await asyncio.sleep(0)
    assert (opaques(first), opaques(second), opaques(idle)) == ([1], [2], [])


async def test_several_reads_of_an_iteration_have_one_write() -> None:
    first, second = wires(2)
    first.transport.arrive(asked(1))
    second.transport.arrive(asked(2))
    first.transport.arrive(asked(3))
    await asyncio.sleep(0)
    assert (opaques(first), len(first.transport.writes)) == ([1, 3], 1)


async def test_a_connection_that_is_alone_is_written_at_once() -> None:
    first, second = wires(2)
    first.transport.send(asked(1))
    first.transport.arrive(asked(2))
    assert opaques(first) == [1, 2]
    second.transport.arrive(asked(3))  # not alone any more
    first.transport.arrive(asked(4))
    assert (opaques(first), opaques(second)) == ([1, 2], [])
    await asyncio.sleep(0)
    assert (opaques(first), opaques(second)) == ([1, 2, 4], [3])


async def test_a_connection_that_is_alone_waits_for_earlier_responses_of_others() -> None:
    held: list[Request] = []
    sender, waiter = Wired({ECHO: echo}), Wired({HOLD: held.append})
    waiter.transport.send(encode_command(Command(HOLD, opaque=7)))
    sender.transport.send(asked(1))
    held[0].reply(Response())
    sender.transport.arrive(asked(2))
    assert (opaques(waiter), opaques(sender)) == ([], [1])
    await asyncio.sleep(0)
    assert (opaques(waiter), opaques(sender)) == ([7], [1, 2])


async def test_a_full_batch_is_written_before_the_iteration_ends() -> None:
    first, second = wires(2)
    body = bytes(BATCH_BYTES_MAX // 2)
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


async def test_more_than_the_write_buffer_may_hold_does_not_wait_for_the_batch() -> None:
    """Even if few responses waited when the connection joined the batch."""
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


async def test_a_connection_that_cannot_be_written_does_not_stop_the_others(
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


async def test_a_closed_connection_sends_the_responses_it_has() -> None:
    first, second = wires(2)
    first.transport.arrive(asked(1))
    second.transport.arrive(asked(2))
    first.connection.close()
    second.connection.abort()
    await asyncio.sleep(0)
    assert (opaques(first), opaques(second)) == ([1], [])


def test_each_loop_has_its_write_batch() -> None:
    async def leave_one_unfinished() -> object:
        wired = wires(1)[0]
        wired.transport.arrive(asked(1))
        return write_batch_of(asyncio.get_running_loop())

    async def answered() -> tuple[object, list[int]]:
        wired = wires(1)[0]
        wired.transport.arrive(asked(2))
        await asyncio.sleep(0)
        return write_batch_of(asyncio.get_running_loop()), opaques(wired)

    before = asyncio.run(leave_one_unfinished())
    after, found = asyncio.run(answered())
    assert before is not after
    assert found == [2]


# --- large responses ----------------------------------------------------------------------------


def written(several: list[Wired]) -> int:
    return sum(len(data) for wired in several for data in wired.transport.writes)


@pytest.mark.parametrize("size", [JOIN_BYTES_MAX, BURST_BYTES_MAX // 2, BURST_BYTES_MAX])
async def test_all_connections_together_write_a_few_bursts_in_an_iteration(
    size: int,
) -> None:
    many = wires(20)
    for opaque, wired in enumerate(many):
        wired.transport.arrive(asked(opaque, bytes(size)))
    counts = [written(many)]
    while any(not wired.answers for wired in many):
        await asyncio.sleep(0)
        counts.append(written(many))

    in_iterations = [after - before for before, after in itertools.pairwise(counts)]
    assert max(in_iterations) <= BURSTS_BYTES_MAX
    assert counts[0] <= BURSTS_BYTES_MAX
    assert [len(wired.answers[0].body) for wired in many] == [size] * len(many)
    assert all(wired.transport.reading for wired in many)


@pytest.mark.parametrize("size", [2 * JOIN_BYTES_MAX, BURST_BYTES_MAX])
async def test_no_requests_are_handled_behind_a_large_response_that_is_not_read(size: int) -> None:
    handled: list[int] = []

    def respond(request: Request) -> Response:
        handled.append(request.command.opaque)
        return Response(body=bytes(size))

    wired = Wired({ECHO: respond})
    wired.transport.set_write_buffer_limits(high=JOIN_BYTES_MAX)
    wired.transport.stuck = True
    wired.transport.arrive(b"".join(asked(opaque) for opaque in range(8)))
    assert handled == [0]
    wired.transport.take()
    while len(wired.answers) < 8:
        await asyncio.sleep(0)
    assert handled == list(range(8))


async def test_small_responses_do_not_wait_for_bursts() -> None:
    *many, small = wires(9)
    for opaque, wired in enumerate(many):
        wired.transport.arrive(asked(opaque, bytes(2 * BURST_BYTES_MAX)))
    small.transport.arrive(asked(1))
    await asyncio.sleep(0)
    assert opaques(small) == [1]
    assert sum(len(wired.answers) for wired in many) < len(many)


async def test_connections_with_bursts_take_turns() -> None:
    first, *_, last = many = wires(9)
    for wired in many:
        wired.transport.arrive(asked(1, bytes(3 * BURST_BYTES_MAX)))
    while not first.answers:
        await asyncio.sleep(0)
    assert len(last.transport.writes) >= 2


async def test_a_connection_that_cannot_be_written_or_is_lost_does_not_keep_the_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    *many, lost, broken, last = wires(9)
    for wired in (*many, lost, broken, last):
        wired.transport.arrive(asked(1, bytes(BURST_BYTES_MAX)))

    def fail(data: bytes) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(broken.transport, "write", fail)
    lost.connection.abort()
    while not last.answers:
        await asyncio.sleep(0)
    assert all(wired.answers for wired in many)
    assert lost.answers == broken.answers == []
    assert "cannot write" in caplog.text
    assert broken.transport.aborted


async def test_an_aborted_connection_writes_no_further_burst(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (aborted,) = wires(1)
    aborted.transport.arrive(asked(1, bytes(3 * BURST_BYTES_MAX)))
    aborted.connection.abort()
    await asyncio.sleep(0)
    assert written([aborted]) == BURST_BYTES_MAX
    assert caplog.text == ""


async def test_a_connection_closes_its_transport_once() -> None:
    """After a second time, TLS transports of asyncio ignore an abort."""
    (wired,) = wires(1)
    wired.transport.stuck = True
    wired.transport.arrive(asked(1, bytes(JOIN_BYTES_MAX)))
    wired.connection.end()
    wired.connection.close()
    assert wired.transport.closes == 1
    wired.connection.abort()
    await asyncio.sleep(0)
    assert wired.lost == [wired.connection]


async def test_a_transport_that_closes_itself_is_not_closed_again() -> None:
    """TLS does so when the peer closes it, while a request of this peer is worked on."""
    (wired,) = wires(1)
    wired.transport.stuck = True
    wired.transport.arrive(asked(1, bytes(JOIN_BYTES_MAX)))
    wired.connection.pause_frames()
    wired.connection.end()
    wired.transport.close()
    wired.connection.resume_frames()
    assert wired.transport.closes == 1
