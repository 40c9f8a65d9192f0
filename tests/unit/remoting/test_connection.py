"""One connection, driven byte by byte by a test that is its peer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command, encode_command
from cometmq.protocol.frame import BINARY_HEADER
from cometmq.remoting import (
    CallTimeoutError,
    ConnectionLostError,
    Request,
    Response,
    TooManyCallsError,
)
from cometmq.remoting.connection import WORKING_MAX, failure
from cometmq.remoting.wire import (
    BURST_BYTES_MAX,
    JOIN_BYTES_MAX,
    LARGE_BYTES_MIN,
    PARTIAL_BYTES_MIN,
    READ_BYTES,
    UNSENT_FACTOR_MAX,
)
from support.wire.fake_transport import Wired

ECHO, FAIL, HOLD, WORK, TWICE, ALONE = 9001, 9002, 9003, 9004, 9005, 9006


class Peers:
    """Handlers, and the commands that they have received."""

    def __init__(self) -> None:
        self.met: list[Command] = []
        self.held: list[Request] = []
        self.gate = asyncio.Event()

    def echo(self, request: Request) -> Response:
        self.met.append(request.command)
        return Response(body=request.body, fields=request.command.fields)

    def fail(self, request: Request) -> Response:
        raise RuntimeError("out of luck")

    async def work(self, request: Request) -> Response:
        self.met.append(request.command)
        await self.gate.wait()
        return Response(body=request.body)

    def alone(self, request: Request) -> Awaitable[Response]:
        request.is_exclusive = True
        return self.work(request)

    def twice(self, request: Request) -> Response:
        request.reply(Response(body=b"first"))
        return Response(body=b"second")

    def wired(self, **limits: int) -> Wired:
        return Wired(
            {
                ECHO: self.echo,
                FAIL: self.fail,
                HOLD: self.held.append,
                WORK: self.work,
                TWICE: self.twice,
                ALONE: self.alone,
            },
            **limits,
        )


@pytest.fixture
async def peers() -> Peers:
    return Peers()


def asked(opaque: int, body: bytes = b"", *, code: int = ECHO, flag: int = 0) -> bytes:
    return encode_command(Command(code, opaque=opaque, body=body, flag=flag))


def answered(opaque: int, body: bytes = b"") -> bytes:
    return encode_command(Command(0, opaque=opaque, body=body, flag=1))


async def turn() -> None:
    """Let everything run that is due now."""
    for _ in range(3):
        await asyncio.sleep(0)


# --- reading ------------------------------------------------------------------------------------


async def test_frames_are_handled_wherever_the_stream_is_cut(peers: Peers) -> None:
    stream = asked(1, b"one") + asked(2) + asked(3, b"three" * 7)
    for cut in range(1, len(stream)):
        wired = peers.wired()
        wired.transport.send(stream[:cut])
        wired.transport.send(stream[cut:])
        assert [(answer.opaque, answer.body) for answer in wired.answers] == [
            (1, b"one"), (2, b""), (3, b"three" * 7)
        ], f"cut at byte {cut}"  # fmt: skip


async def test_a_frame_may_come_byte_by_byte(peers: Peers) -> None:
    wired = peers.wired()
    for byte in asked(1, b"slow") + asked(2, b"slower"):
        wired.transport.send(bytes([byte]))

    assert [answer.body for answer in wired.answers] == [b"slow", b"slower"]


async def test_an_exclusive_request_is_overtaken_by_none_of_its_connection(peers: Peers) -> None:
    wired = peers.wired()
    wired.transport.send(asked(1) + asked(2, code=ALONE) + asked(3) + asked(4)[:30])
    await turn()
    assert [answer.opaque for answer in wired.answers] == [1]
    assert not wired.transport.reading
    wired.transport.send(asked(4)[30:])  # was on its way already

    peers.gate.set()
    await turn()
    assert [answer.opaque for answer in wired.answers] == [1, 2, 3, 4]
    assert wired.transport.reading


async def test_an_exclusive_request_that_fails_lets_the_others_go_on(peers: Peers) -> None:
    wired = peers.wired()
    wired.transport.send(asked(1, code=ALONE) + asked(2))
    await turn()
    wired.connection.abort()
    peers.gate.set()
    await turn()
    assert wired.answers == []


async def test_what_arrived_before_the_peer_ended_is_handled(peers: Peers) -> None:
    """With TLS it comes together with the end, and the transport closes by itself."""
    wired = peers.wired()
    wired.connection.work_s_max = 0.0
    wired.transport.send(b"".join(asked(number, b"x") for number in range(3)))
    assert len(peers.met) == 1
    wired.connection.eof_received()
    assert [command.opaque for command in peers.met] == [0, 1, 2]
    assert wired.transport.is_closing()


async def test_what_is_behind_an_exclusive_request_is_handled_although_the_peer_has_gone(
    peers: Peers,
) -> None:
    wired = peers.wired()
    wired.transport.send(asked(1, code=ALONE) + asked(2) + asked(3, code=ALONE) + asked(4))
    wired.connection.eof_received()
    wired.transport.abort()
    await turn()
    assert [command.opaque for command in peers.met] == [1]
    peers.gate.set()
    await turn()
    await turn()
    assert [command.opaque for command in peers.met] == [1, 2, 3, 4]
    assert wired.connection._partial is None


async def test_many_frames_of_one_read_let_other_work_come_between(peers: Peers) -> None:
    wired = peers.wired()
    wired.connection.work_s_max = 0.0
    wired.transport.send(b"".join(map(asked, range(5))))
    assert [answer.opaque for answer in wired.answers] == [0]
    assert not wired.transport.reading
    seen = []
    while len(wired.answers) < 5:
        await asyncio.sleep(0)
        seen.append(len(wired.answers))
    assert seen == [2, 3, 4, 5]
    await turn()
    assert wired.transport.reading


@pytest.mark.parametrize(
    "size",
    [
        PARTIAL_BYTES_MIN - 200,
        PARTIAL_BYTES_MIN,
        LARGE_BYTES_MIN - 200,
        LARGE_BYTES_MIN,
        READ_BYTES - 1,
        READ_BYTES,
        READ_BYTES + 1,
        2 * READ_BYTES,
        5_000_001,
        16 * 1024 * 1024 - 500,
    ],
)
async def test_a_large_frame_arrives_whole_between_small_ones(peers: Peers, size: int) -> None:
    body = bytes(range(251)) * (size // 251) + bytes(size % 251)
    wired = peers.wired()

    wired.transport.send(asked(1, b"before") + asked(2, body) + asked(3, b"after"))
    while len(peers.met) < 3 or wired.connection._unsent:
        await asyncio.sleep(0)

    assert [command.body for command in peers.met] == [b"before", body, b"after"]


async def test_memory_grows_with_what_has_come_and_not_with_what_is_announced(
    peers: Peers,
) -> None:
    wired = peers.wired()
    whole = asked(1, bytes(8 * 1024 * 1024))

    wired.transport.send(whole[:100])
    assert len(wired.connection.get_buffer(-1)) <= PARTIAL_BYTES_MIN
    wired.transport.send(whole[100 : 1024 * 1024])
    assert len(wired.connection.get_buffer(-1)) <= 2 * 1024 * 1024
    wired.transport.send(whole[1024 * 1024 :])

    assert len(peers.met) == 1
    assert len(wired.connection.get_buffer(-1)) == READ_BYTES


async def test_two_connections_do_not_mix_their_bytes(peers: Peers) -> None:
    """Both read into the same buffer, one after the other."""
    one, two = peers.wired(), peers.wired()
    first, second = asked(1, b"a" * 300), asked(2, b"b" * 300)
    for at in range(0, len(first), 50):
        one.transport.send(first[at : at + 50])
        two.transport.send(second[at : at + 50])

    assert [answer.body for answer in one.answers] == [b"a" * 300]
    assert [answer.body for answer in two.answers] == [b"b" * 300]


@pytest.mark.parametrize(
    "junk",
    [b"\xff" * 8, b"\x00\x00\x00\x04\x05\x00\x00\x00", b"\x00\x00\x00\x06\x00\x00\x00\x02{]"],
    ids=["length", "encoding", "header"],
)
async def test_malformed_input_ends_the_connection_after_the_answers_before_it(
    peers: Peers, junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    wired = peers.wired()

    wired.transport.send(asked(1, b"fine") + junk + asked(2, b"never"))
    await turn()

    assert [answer.body for answer in wired.answers] == [b"fine"]
    assert wired.lost == [wired.connection]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "10.0.0.9:51000" in caplog.text


async def test_a_handler_that_closes_the_connection_is_the_last_one_to_see_it() -> None:
    met: list[bytes] = []

    def close(request: Request) -> None:
        met.append(request.body)
        request.connection.close()

    wired = Wired({ECHO: close})
    wired.transport.send(asked(1, b"1") + asked(2, b"2"))
    await turn()

    assert met == [b"1"]
    assert wired.lost == [wired.connection]


async def test_who_the_peer_is_is_noted_from_its_address_and_its_requests(peers: Peers) -> None:
    wired = peers.wired()
    wired.transport.send(encode_command(Command(ECHO, opaque=1, language="CPP", version=309)))

    connection = wired.connection
    assert connection.peer == ("10.0.0.9", 51000)
    assert connection.peer_text == "10.0.0.9:51000"
    assert connection.peer_bytes == bytes((10, 0, 0, 9, 0, 0, 0xC7, 0x38))
    assert (connection.language, connection.version) == ("CPP", 309)


@pytest.mark.parametrize(
    ("peer", "text", "octets"),
    [
        (("::1", 80, 0, 0), "[::1]:80", bytes(15) + b"\x01" + b"\x00\x00\x00\x50"),
        (
            ("fe80::2%eth0", 80, 0, 3),
            "[fe80::2%eth0]:80",
            b"\xfe\x80" + bytes(13) + b"\x02" + b"\x00\x00\x00\x50",
        ),
        (("::ffff:10.1.2.3", 80, 0, 0), "10.1.2.3:80", bytes((10, 1, 2, 3, 0, 0, 0, 80))),
        (None, "", b""),
    ],
)
async def test_peers_with_other_addresses_are_noted_too(
    peer: object, text: str, octets: bytes
) -> None:
    connection = Wired(peer=peer).connection

    assert (connection.peer_text, connection.peer_bytes) == (text, octets)


# --- answering ----------------------------------------------------------------------------------


async def test_the_answers_to_one_read_leave_in_one_write(peers: Peers) -> None:
    wired = peers.wired()
    wired.transport.send(b"".join(asked(n + 1, b"x" * 100) for n in range(50)))

    assert len(wired.transport.writes) == 1
    assert len(wired.answers) == 50


async def test_answers_given_later_leave_together_too(peers: Peers) -> None:
    wired = peers.wired()
    wired.transport.send(b"".join(asked(n + 1, code=HOLD) for n in range(20)))
    assert wired.transport.writes == []

    for request in reversed(peers.held):
        request.reply(Response(body=b"late"))
    assert wired.transport.writes == []
    await turn()

    assert len(wired.transport.writes) == 1
    assert [answer.opaque for answer in wired.answers] == list(range(20, 0, -1))


async def test_slices_of_a_body_leave_in_order_whatever_their_size() -> None:
    small = [b"ab", memoryview(b"cd"), b"ef"]
    large = [bytes([n]) * (JOIN_BYTES_MAX // 4) for n in range(10)]
    many = [bytes([n % 256]) for n in range(JOIN_BYTES_MAX + 5000)]
    bodies = {1: small, 2: large, 3: many}
    wired = Wired({ECHO: lambda request: Response(body=bodies[request.command.opaque])})
    for opaque in bodies:
        wired.transport.send(asked(opaque))

    assert [answer.body for answer in wired.answers] == [b"".join(body) for body in bodies.values()]


async def test_a_request_is_answered_in_its_own_encoding(peers: Peers) -> None:
    wired = peers.wired()
    wired.transport.send(
        encode_command(
            Command(ECHO, opaque=1, fields={"k": "v"}, body=b"x", serialization=BINARY_HEADER)
        )
    )
    (answer,) = wired.answers

    assert (answer.serialization, answer.fields, answer.body) == (BINARY_HEADER, {"k": "v"}, b"x")


async def test_a_oneway_request_is_never_answered(peers: Peers) -> None:
    wired = peers.wired()
    for code in (ECHO, FAIL, HOLD, WORK, 31999):
        wired.transport.send(asked(1, b"x", code=code, flag=2))
    peers.gate.set()
    peers.held[0].reply(Response())
    await turn()

    assert wired.transport.writes == []
    assert [command.code for command in peers.met] == [ECHO, WORK]


async def test_a_request_with_both_flag_bits_is_an_answer(peers: Peers) -> None:
    wired = peers.wired()
    wired.transport.send(asked(1, b"x", flag=3))

    assert peers.met == []
    assert wired.transport.writes == []


async def test_a_code_without_a_handler_gets_code_3(peers: Peers) -> None:
    wired = peers.wired()
    wired.transport.send(asked(1, code=31999) + asked(2, code=RequestCode.POP_MESSAGE))
    first, second = wired.answers

    assert (first.code, first.remark) == (3, " request type 31999 not supported")
    assert second.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "POP_MESSAGE" in (second.remark or "")


async def test_an_accident_is_answered_with_code_1_and_logged_once(
    peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    wired = peers.wired()
    wired.transport.send(asked(1, code=FAIL) + asked(2, b"next"))
    failed, fine = wired.answers

    assert (failed.code, failed.remark) == (1, "RuntimeError: out of luck")
    assert fine.body == b"next"
    assert len(caplog.records) == 1


async def test_what_is_raised_later_is_answered_as_well() -> None:
    async def refuse(request: Request) -> Response:
        await asyncio.sleep(0)
        raise ResponseError(17, "no such topic")

    wired = Wired({WORK: refuse})
    wired.transport.send(asked(1, code=WORK))
    await turn()
    (answer,) = wired.answers

    assert (answer.code, answer.remark) == (17, "no such topic")


async def test_a_second_answer_is_a_bug_that_is_logged_and_not_sent(
    peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    wired = peers.wired()
    wired.transport.send(asked(1, code=TWICE) + asked(2, b"next"))

    assert [answer.body for answer in wired.answers] == [b"first", b"next"]
    assert "after its response" in caplog.text
    assert not wired.connection.closed


@pytest.mark.parametrize("late", [False, True])
async def test_an_answer_that_cannot_be_written_becomes_one_that_says_so(
    late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bad = Response(fields={"k": "\ud800"})

    async def later() -> Response:
        return bad

    def answer(request: Request) -> Response | Awaitable[Response]:
        return later() if late else bad

    wired = Wired({WORK: answer})
    wired.transport.send(asked(1, code=WORK))
    await turn()
    (answered_with,) = wired.answers

    assert answered_with.code == ResponseCode.SYSTEM_ERROR
    assert "UnicodeEncodeError" in (answered_with.remark or "")


async def test_a_remark_that_has_no_utf8_is_made_writable() -> None:
    request = Request(Command(1), Wired().connection)
    response = failure(request, ResponseError(14, "file \udcff is full"))

    assert response.remark == "file ? is full"


async def test_requests_worked_on_in_the_background_are_bounded(peers: Peers) -> None:
    wired = peers.wired()
    wired.transport.send(b"".join(asked(n + 1, code=WORK) for n in range(WORKING_MAX + 2)))
    await turn()

    refused = wired.answers
    assert [answer.opaque for answer in refused] == [WORKING_MAX + 1, WORKING_MAX + 2]
    assert {answer.code for answer in refused} == {ResponseCode.SYSTEM_BUSY}
    assert (refused[0].remark or "").startswith("[OVERLOAD]")

    peers.gate.set()
    await turn()
    assert len(wired.answers) == WORKING_MAX + 2
    wired.transport.send(asked(5000, code=WORK))
    await turn()
    assert wired.answers[-1].code == 0
    assert len(wired.supervisor) == 0


# --- a peer that does not read ------------------------------------------------------------------


async def test_a_peer_that_takes_no_answers_is_not_served_until_it_does(peers: Peers) -> None:
    wired = peers.wired(write_buffer_bytes_max=1024)
    wired.transport.stuck = True

    wired.transport.send(b"".join(asked(n + 1, b"x" * 500) for n in range(100)))

    assert not wired.transport.reading
    assert len(peers.met) < 10
    wired.transport.take()
    assert [command.opaque for command in peers.met] == list(range(1, 101))
    assert wired.transport.reading
    assert len(wired.answers) == 100


async def test_a_peer_that_pauses_again_and_again_gets_each_answer_once(peers: Peers) -> None:
    wired = peers.wired(write_buffer_bytes_max=1024)
    stream = b"".join(asked(n + 1, b"y" * 400) for n in range(60))
    wired.transport.stuck = True
    wired.transport.send(stream[:7_777])
    pauses = 0
    while not wired.transport.reading:
        pauses += 1
        wired.transport.take(then_stuck=True)
    wired.transport.take()
    wired.transport.send(stream[7_777:])

    assert pauses > 1
    assert [answer.opaque for answer in wired.answers] == list(range(1, 61))


async def test_a_frame_cut_by_the_pause_is_finished_after_it(peers: Peers) -> None:
    wired = peers.wired(write_buffer_bytes_max=1024)
    stream = asked(1, b"z" * 2000) + asked(2, b"second")
    wired.transport.stuck = True
    wired.transport.send(stream[:-3])
    wired.transport.take()
    wired.transport.send(stream[-3:])

    assert [answer.opaque for answer in wired.answers] == [1, 2]


async def test_requests_left_at_a_close_are_not_handled_when_the_peer_reads_again(
    peers: Peers,
) -> None:
    wired = peers.wired(write_buffer_bytes_max=1024)
    wired.transport.stuck = True
    wired.transport.send(b"".join(asked(n + 1, b"x" * 500) for n in range(100)))
    met = len(peers.met)

    wired.connection.close()
    wired.transport.take()
    await turn()

    assert len(peers.met) == met
    assert wired.lost == [wired.connection]


async def test_a_peer_is_given_up_when_held_answers_pile_up_for_it(
    peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    wired = peers.wired(write_buffer_bytes_max=1024)
    count = 3 * UNSENT_FACTOR_MAX
    wired.transport.send(b"".join(asked(n + 1, code=HOLD) for n in range(count)))
    wired.transport.stuck = True

    for request in peers.held:
        request.reply(Response(body=bytes(1024)))
    await turn()

    assert wired.transport.aborted
    assert wired.lost == [wired.connection]
    assert wired.transport.get_write_buffer_size() == 0
    assert len(wired.transport.written) < (UNSENT_FACTOR_MAX + 2) * 1200
    assert "does not read" in caplog.text


@pytest.mark.usefixtures("virtual_time")
async def test_writing_to_a_stuck_peer_is_no_sign_of_life(peers: Peers) -> None:
    """Else a peer that never reads would never count as idle."""
    wired = peers.wired(write_buffer_bytes_max=1024)
    wired.transport.stuck = True
    wired.connection.oneway(ECHO, body=bytes(2000))
    await turn()
    noted = wired.connection.last_active_s
    await asyncio.sleep(10)
    wired.connection.oneway(ECHO, body=b"x")
    await turn()

    assert wired.connection.last_active_s == noted
    wired.transport.take()
    assert wired.connection.last_active_s > noted


async def test_nothing_is_written_after_the_close(peers: Peers) -> None:
    """The transport of the test refuses it."""
    wired = peers.wired()
    wired.transport.send(asked(1, code=HOLD) + asked(2, code=WORK))
    wired.connection.close()
    peers.gate.set()
    peers.held[0].reply(Response(body=b"late"))
    wired.connection.oneway(ECHO)
    await turn()

    assert wired.transport.writes == []
    assert wired.connection.closed


async def test_what_was_answered_before_the_peer_hung_up_still_leaves(peers: Peers) -> None:
    wired = peers.wired()
    wired.transport.send(asked(1, code=HOLD))
    peers.held[0].reply(Response(body=b"just in time"))

    wired.connection.eof_received()
    await turn()

    assert [answer.body for answer in wired.answers] == [b"just in time"]


# --- calling ------------------------------------------------------------------------------------


async def test_calls_are_told_apart_by_their_numbers() -> None:
    wired = Wired()
    calls = [
        asyncio.create_task(wired.connection.call(ECHO, body=b"%d" % n, timeout=60))
        for n in range(3)
    ]
    await turn()
    sent = wired.transport.commands()
    for command in reversed(sent):
        wired.transport.send(answered(command.opaque, b"to " + command.body))

    assert [answer.body for answer in await asyncio.gather(*calls)] == [b"to 0", b"to 1", b"to 2"]
    assert [command.flag for command in sent] == [0, 0, 0]


async def test_an_answer_nobody_waits_for_is_dropped() -> None:
    wired = Wired()
    call = asyncio.create_task(wired.connection.call(ECHO, timeout=5))
    await turn()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)

    wired.transport.send(answered(1) + answered(77))

    assert not wired.connection.closed


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_waiting_calls_end_when_the_connection_does(how: str) -> None:
    wired = Wired()
    calls = [asyncio.create_task(wired.connection.call(ECHO, timeout=60)) for _ in range(3)]
    await turn()
    getattr(wired.connection, how)()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [ConnectionLostError] * 3
    with pytest.raises(ConnectionLostError, match=r"10\.0\.0\.9:51000"):
        await wired.connection.call(ECHO, timeout=1)
    await asyncio.wait_for(wired.connection.wait_closed(), 60)


async def test_a_call_that_cannot_be_written_leaves_nothing_waiting() -> None:
    wired = Wired(calls_in_flight_max=1)
    for _ in range(3):
        with pytest.raises(UnicodeEncodeError):
            await wired.connection.call(ECHO, fields={"k": "\ud800"}, timeout=1)

    call = asyncio.create_task(wired.connection.call(ECHO, timeout=60))
    await turn()
    (sent,) = wired.transport.commands()
    wired.transport.send(answered(sent.opaque))
    assert (await call).code == 0


async def test_calls_beyond_the_limit_are_refused_and_not_sent() -> None:
    wired = Wired(calls_in_flight_max=2)
    calls = [asyncio.create_task(wired.connection.call(ECHO, timeout=60)) for _ in range(3)]
    await turn()

    assert isinstance(calls[2].exception(), TooManyCallsError)
    assert len(wired.transport.commands()) == 2
    wired.connection.abort()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_calls_wait_while_the_peer_does_not_read() -> None:
    wired = Wired(write_buffer_bytes_max=1024)
    wired.transport.stuck = True
    calls = [
        asyncio.create_task(wired.connection.call(ECHO, body=bytes(600), timeout=60))
        for _ in range(50)
    ]
    await turn()
    assert wired.transport.get_write_buffer_size() < 5000

    wired.transport.take()
    await turn()
    sent = wired.transport.commands()
    assert len(sent) == 50
    wired.transport.send(b"".join(answered(command.opaque) for command in sent))
    assert len(await asyncio.gather(*calls)) == 50


async def test_a_call_that_cannot_be_sent_in_time_says_so() -> None:
    wired = Wired(write_buffer_bytes_max=1024)
    wired.transport.stuck = True
    wired.connection.oneway(ECHO, body=bytes(3000))
    await turn()

    with pytest.raises(CallTimeoutError, match="not sent"):
        await wired.connection.call(ECHO, timeout=0.02)
    waiting = asyncio.create_task(wired.connection.call(ECHO, timeout=5))
    await turn()
    wired.connection.abort()
    with pytest.raises(ConnectionLostError):
        await waiting
    assert len(wired.transport.commands()) == 1


async def test_cancelling_a_call_before_it_is_sent_sends_nothing() -> None:
    wired = Wired(write_buffer_bytes_max=1024)
    wired.transport.stuck = True
    wired.connection.oneway(ECHO, body=bytes(3000))
    await turn()
    calls = [asyncio.create_task(wired.connection.call(ECHO, timeout=60)) for _ in range(2)]
    await turn()
    calls[0].cancel()
    await asyncio.gather(calls[0], return_exceptions=True)
    wired.transport.take()
    await turn()

    sent = wired.transport.commands()
    assert len(sent) == 2
    wired.transport.send(answered(sent[1].opaque, b"the other one"))
    assert (await calls[1]).body == b"the other one"


async def test_loops_in_two_threads_do_not_read_into_one_buffer() -> None:
    mine = Peers().wired().connection.get_buffer(-1)

    async def elsewhere() -> memoryview:
        return Peers().wired().connection.get_buffer(-1)

    theirs = await asyncio.to_thread(asyncio.run, elsewhere())
    mine[:1], theirs[:1] = b"a", b"b"
    assert bytes(mine[:1]) == b"a"
    assert Peers().wired().connection.get_buffer(-1).obj is mine.obj


# --- large responses ----------------------------------------------------------------------------


async def test_a_large_response_is_written_in_bursts_and_nothing_is_read_meanwhile(
    peers: Peers,
) -> None:
    wired = peers.wired()
    wired.transport.send(asked(1, bytes(5 * BURST_BYTES_MAX)) + asked(2))
    assert not wired.transport.reading
    turns = 0
    while wired.connection._unsent:
        await asyncio.sleep(0)
        turns += 1
    assert turns > 4
    assert max(map(len, wired.transport.writes)) <= BURST_BYTES_MAX
    assert [answer.opaque for answer in wired.answers] == [1, 2]
    assert wired.answers[0].body == bytes(5 * BURST_BYTES_MAX)
    assert wired.transport.reading


async def test_a_burst_waits_for_a_peer_that_does_not_read(peers: Peers) -> None:
    wired = peers.wired(write_buffer_bytes_max=1024)
    wired.transport.stuck = True
    wired.transport.send(asked(1, bytes(5 * BURST_BYTES_MAX)))
    await turn()
    assert len(wired.transport.writes) == 1
    wired.transport.take()
    while wired.connection._unsent:
        await asyncio.sleep(0)
    assert wired.answers[0].body == bytes(5 * BURST_BYTES_MAX)


@pytest.mark.parametrize("by_peer", [False, True])
async def test_a_large_response_leaves_before_the_connection_is_closed(
    peers: Peers, by_peer: bool
) -> None:
    wired = peers.wired()
    wired.transport.send(asked(1, bytes(3 * BURST_BYTES_MAX)))
    if by_peer:
        assert wired.connection.eof_received()  # the transport stays open for the rest
    else:
        wired.connection.close()
    assert wired.connection.closed
    assert not wired.transport.is_closing()
    while not wired.transport.is_closing():
        await asyncio.sleep(0)
    assert wired.answers[0].body == bytes(3 * BURST_BYTES_MAX)
