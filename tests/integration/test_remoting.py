"""Remoting over loopback: frames in any pieces, both directions, limits, TLS, and broken peers."""

import asyncio
import contextlib
import gc
import itertools
import logging
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from cometmq.model.errors import ConfigError, ResponseError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import ONEWAY_FLAG, Command, encode_command
from cometmq.protocol.frame import BINARY_HEADER
from cometmq.protocol.headers.namesrv import GetRouteinfoByTopicRequest
from cometmq.remoting import (
    CallTimeoutError,
    ConnectError,
    Connection,
    ConnectionLostError,
    OutgoingCall,
    RemotingClient,
    RemotingServer,
    RemotingSettings,
    Request,
    Response,
    TlsSettings,
    TooManyCallsError,
    check,
)
from cometmq.remoting.server import (
    CLOSES_PER_ITERATION,
    FIRST_KERNEL_UNSENT_BYTES_MAX,
    KERNEL_UNSENT_BYTES_MAX,
    OPENINGS_PER_ITERATION,
)
from cometmq.remoting.tls import client_context
from cometmq.system.platforms import SYSTEM
from support.checks.virtual_time import virtual
from support.checks.waiting import until
from support.wire.frames import CommandDecoder
from support.wire.open_access import OpenAccess

ECHO, FAIL, REFUSE, HOLD, ASK_BACK, LARGE, WORK = 9001, 9002, 9003, 9004, 9005, 9006, 9007
FIRST_FRAME = encode_command(Command(ECHO, flag=ONEWAY_FLAG))

BOTH_LOOPS = True


@pytest.fixture
async def slack_s() -> AsyncIterator[float]:
    """How much longer than its time a thing may take: nothing on asyncio, whose time is virtual.

    On uvloop, which has no virtual time, the limit only ends what hangs.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.SelectorEventLoop):
        with virtual(loop):
            yield 1e-6
    else:
        yield 60.0


class Peer:
    """A server with a few handlers, and what it has seen."""

    def __init__(self, settings: RemotingSettings, tls: TlsSettings | None) -> None:
        self.held: list[Request] = []
        self.closed: list[Connection] = []
        self.seen: list[Command] = []
        self.gate = asyncio.Event()
        self.server = RemotingServer(
            {
                ECHO: self.echo,
                FAIL: self.fail,
                REFUSE: self.refuse,
                HOLD: self.held.append,
                ASK_BACK: self.ask_back,
                LARGE: lambda request: Response(body=[bytes(1 << 20)] * 8),
                WORK: self.work,
            },
            settings=settings,
            tls=tls,
            on_close=self.closed.append,
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def echo(self, request: Request) -> Response:
        self.seen.append(request.command)
        return Response(body=request.body, fields=request.command.fields)

    def fail(self, request: Request) -> Response:
        raise RuntimeError("out of luck")

    def refuse(self, request: Request) -> Response:
        raise ResponseError(17, "no such topic")

    async def work(self, request: Request) -> Response:
        self.seen.append(request.command)
        await self.gate.wait()
        return Response(body=b"worked")

    async def ask_back(self, request: Request) -> Response:
        answer = await request.connection.call(ECHO, body=b"who are you?", timeout=30)
        return Response(body=answer.body)


MakePeer = Callable[..., Awaitable[Peer]]


@pytest.fixture
async def make_peer() -> AsyncIterator[MakePeer]:
    peers: list[Peer] = []

    async def make(*, tls: TlsSettings | None = None, **limits: int) -> Peer:
        peer = Peer(RemotingSettings(**limits), tls)
        await peer.server.start("127.0.0.1", 0)
        peers.append(peer)
        return peer

    yield make
    for peer in peers:
        await peer.server.stop(1.0)


@pytest.fixture
async def peer(make_peer: MakePeer) -> Peer:
    return await make_peer()


async def read_command(reader: asyncio.StreamReader) -> Command:
    decoder = CommandDecoder()
    while (command := decoder.next_command()) is None:
        data = await asyncio.wait_for(reader.read(65536), 60)
        assert data, "the server closed the connection"
        decoder.receive(data)
    return command


async def test_an_answer_carries_fields_and_body(peer: Peer, client: RemotingClient) -> None:
    header = GetRouteinfoByTopicRequest(topic="orders")
    answer = await client.call(peer.address, ECHO, header, b"body", timeout=30)
    assert check(answer).fields == {"topic": "orders"}
    assert answer.body == b"body"


async def test_a_frame_may_arrive_byte_by_byte(peer: Peer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.server.port)
    data = encode_command(Command(ECHO, opaque=7, body=b"slow"))
    for at in range(len(data)):
        writer.write(data[at : at + 1])
        await writer.drain()
    answer = await read_command(reader)
    assert (answer.opaque, answer.body) == (7, b"slow")
    writer.close()


async def test_many_frames_in_one_write_are_all_answered(
    peer: Peer, client: RemotingClient
) -> None:
    calls = (
        client.call(peer.address, ECHO, body=b"%d" % n * 1000, timeout=60) for n in range(1000)
    )
    answers = await asyncio.gather(*calls)
    assert [answer.body for answer in answers] == [b"%d" % n * 1000 for n in range(1000)]


async def test_a_frame_larger_than_the_read_buffer_arrives_whole(
    peer: Peer, client: RemotingClient
) -> None:
    body = bytes(range(256)) * 4 * 1024 * 15
    answer = await client.call(peer.address, ECHO, body=body, timeout=60)
    assert answer.body == body


async def test_a_binary_request_gets_a_binary_answer(peer: Peer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.server.port)
    command = Command(ECHO, opaque=9, fields={"k": "v"}, serialization=BINARY_HEADER)
    writer.write(encode_command(command))
    answer = await read_command(reader)
    assert (answer.serialization, answer.fields) == (BINARY_HEADER, {"k": "v"})
    writer.close()


async def test_an_exception_becomes_code_1_with_its_text(
    peer: Peer, client: RemotingClient
) -> None:
    answer = await client.call(peer.address, FAIL, timeout=30)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "RuntimeError: out of luck" in (answer.remark or "")


async def test_a_refusal_keeps_its_code_and_remark(peer: Peer, client: RemotingClient) -> None:
    answer = await client.call(peer.address, REFUSE, timeout=30)
    with pytest.raises(ResponseError) as refused:
        check(answer)
    assert (refused.value.code, refused.value.remark) == (17, "no such topic")


async def test_an_unknown_code_gets_3_and_a_known_one_says_that_it_is_not_served(
    peer: Peer, client: RemotingClient
) -> None:
    unknown = await client.call(peer.address, 31999, timeout=30)
    known = await client.call(peer.address, RequestCode.POP_MESSAGE, timeout=30)
    assert (unknown.code, known.code) == (3, 3)
    assert unknown.remark == " request type 31999 not supported"
    assert "POP_MESSAGE is not served in this release" in (known.remark or "")


async def test_a_waiting_request_does_not_hold_up_its_connection(
    peer: Peer, client: RemotingClient
) -> None:
    waiting = asyncio.create_task(client.call(peer.address, HOLD, timeout=60))
    assert (await client.call(peer.address, ECHO, body=b"1", timeout=30)).body == b"1"
    peer.held[0].reply(Response(body=b"late"))
    assert (await waiting).body == b"late"


async def test_the_server_can_call_the_client(peer: Peer) -> None:
    def answer(request: Request) -> Response:
        return Response(body=request.body + b" a client")

    client = RemotingClient(handlers={ECHO: answer})
    answered = await client.call(peer.address, ASK_BACK, timeout=60)
    assert answered.body == b"who are you? a client"
    await client.close()


async def test_a_oneway_request_gets_no_answer(peer: Peer, client: RemotingClient) -> None:
    connection = await client.connection(peer.address)
    connection.oneway(ECHO, body=b"one")
    connection.oneway(FAIL)
    connection.oneway(31999)
    answer = await connection.call(ECHO, body=b"two", timeout=30)
    assert answer.body == b"two"
    assert [command.body for command in peer.seen] == [b"one", b"two"]


async def test_a_call_ends_at_its_timeout_and_the_connection_goes_on(
    peer: Peer, client: RemotingClient
) -> None:
    connection = await client.connection(peer.address)
    with pytest.raises(CallTimeoutError):
        await connection.call(HOLD, timeout=0.1)
    assert (await client.call(peer.address, ECHO, body=b"1", timeout=30)).body == b"1"
    peer.held[0].reply(Response(body=b"too late"))
    assert (await client.call(peer.address, ECHO, body=b"x", timeout=30)).body == b"x"


async def test_cancelling_a_call_leaves_the_connection_usable(
    peer: Peer, client: RemotingClient
) -> None:
    call = asyncio.create_task(client.call(peer.address, HOLD, timeout=60))
    assert (await client.call(peer.address, ECHO, body=b"1", timeout=30)).body == b"1"
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    peer.held[0].reply(Response(body=b"nobody"))
    assert (await client.call(peer.address, ECHO, body=b"2", timeout=30)).body == b"2"


async def test_waiting_calls_fail_at_once_when_the_connection_breaks(
    peer: Peer, client: RemotingClient
) -> None:
    call = asyncio.create_task(client.call(peer.address, HOLD, timeout=60))
    assert (await client.call(peer.address, ECHO, timeout=30)).code == 0
    peer.held[0].connection.abort()
    with pytest.raises(ConnectionLostError):
        await asyncio.wait_for(call, 30)
    assert (await client.call(peer.address, ECHO, body=b"again", timeout=30)).body == b"again"


async def test_connecting_to_a_closed_port_fails_clearly(client: RemotingClient) -> None:
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1"):
        await client.call("127.0.0.1:1", ECHO, timeout=30)


async def test_calls_in_flight_are_bounded(peer: Peer) -> None:
    client = RemotingClient(RemotingSettings(calls_in_flight_max=1))
    first = asyncio.create_task(client.call(peer.address, HOLD, timeout=60))
    connection = await client.connection(peer.address)
    await asyncio.sleep(0)
    with pytest.raises(TooManyCallsError):
        await connection.call(ECHO, timeout=1)
    first.cancel()
    await client.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\x7f\xff\xff\xff\x00\x00\x00\x04abcd",
        b"\x00\x00\x00\x08\x00\x00\x00\xffabcd",
        b"\x00\x00\x00\x08\x05\x00\x00\x04abcd",
        b"\x00\x00\x00\x08\x00\x00\x00\x04abcd",
        b"\x00\x00\x00\x08\x01\x00\x00\x04abcd",
    ],
    ids=["frame too long", "header too long", "encoding 5", "not JSON", "binary too short"],
)
async def test_malformed_input_closes_that_connection_only(
    data: bytes, peer: Peer, client: RemotingClient, caplog: pytest.LogCaptureFixture
) -> None:
    healthy = await client.connection(peer.address)
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.server.port)
    with caplog.at_level(logging.WARNING):
        writer.write(data)
        assert await asyncio.wait_for(reader.read(), 60) == b""
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    assert (await healthy.call(ECHO, body=b"fine", timeout=30)).body == b"fine"
    writer.close()


async def test_a_peer_that_does_not_read_is_not_read_either(make_peer: MakePeer) -> None:
    peer = await make_peer(write_buffer_bytes_max=64 * 1024)
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.server.port, limit=1024)
    asked = 20  # responses of 8 MiB: more than what sockets and the limit hold
    requests = [encode_command(Command(LARGE, opaque=n + 1)) for n in range(asked)]
    writer.write(b"".join(requests))
    connection = next(iter(peer.server._connections), None)
    while connection is None or not connection._writing_paused:
        await asyncio.sleep(0)
        connection = next(iter(peer.server._connections), None)
    assert connection._transport.get_write_buffer_size() <= 2 * (8 << 20)
    decoder, answered = CommandDecoder(), set()
    while len(answered) < asked:
        decoder.receive(await asyncio.wait_for(reader.read(1 << 20), 60))
        while (command := decoder.next_command()) is not None:
            answered.add(command.opaque)
    writer.close()


async def test_an_idle_connection_is_closed(make_peer: MakePeer) -> None:
    peer = await make_peer(idle_s=1)
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.server.port)
    writer.write(FIRST_FRAME)
    assert await asyncio.wait_for(reader.read(), 60) == b""
    assert len(peer.closed) == 1
    writer.close()


async def test_tls_and_plain_share_a_port_when_permissive(make_peer: MakePeer) -> None:
    peer = await make_peer(tls=TlsSettings(mode="permissive"))
    plain, secret = RemotingClient(), RemotingClient(tls=client_context())
    body = bytes(300_000)
    assert (await plain.call(peer.address, ECHO, body=b"plain", timeout=60)).body == b"plain"
    assert (await secret.call(peer.address, ECHO, body=body, timeout=60)).body == body
    await plain.close()
    await secret.close()


async def test_a_plain_connection_is_refused_when_tls_is_enforced(make_peer: MakePeer) -> None:
    peer = await make_peer(tls=TlsSettings(mode="enforcing"))
    plain, secret = RemotingClient(), RemotingClient(tls=client_context())
    with pytest.raises(ConnectionLostError):
        await plain.call(peer.address, ECHO, timeout=60)
    assert (await secret.call(peer.address, ECHO, body=b"s", timeout=60)).body == b"s"
    await plain.close()
    await secret.close()


async def test_a_tls_file_that_cannot_be_used_stops_the_start() -> None:
    """Also the file of authorities, with a certificate that the server makes itself."""
    for wrong in (TlsSettings(certificate="/nowhere.pem"), TlsSettings(trusted="/nowhere.pem")):
        server = RemotingServer({}, tls=wrong)
        with pytest.raises(ConfigError, match=r"=/nowhere\.pem: cannot be read"):
            await server.start("127.0.0.1", 0)


async def test_a_handshake_is_refused_when_tls_is_disabled(make_peer: MakePeer) -> None:
    peer = await make_peer(tls=TlsSettings(mode="disabled"))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", peer.server.port, ssl=client_context())
    secret = RemotingClient(tls=client_context())
    with pytest.raises(ConnectError, match="closed during the TLS handshake"):
        await secret.call(peer.address, ECHO, timeout=60)
    await secret.close()


async def test_stopping_lets_answers_leave_and_then_closes(peer: Peer) -> None:
    client = RemotingClient()
    answers = [
        asyncio.create_task(client.call(peer.address, ECHO, body=b"%d" % n, timeout=60))
        for n in range(100)
    ]
    while len(peer.seen) < 100:
        await asyncio.sleep(0)
    await peer.server.stop(2.0)
    assert [answer.body for answer in await asyncio.gather(*answers)] == [
        b"%d" % n for n in range(100)
    ]
    with pytest.raises(ConnectError):
        await client.call(peer.address, ECHO, timeout=1)
    await client.close()


# --- stopping -----------------------------------------------------------------------------------


async def test_stopping_lets_a_request_that_is_worked_on_answer(peer: Peer) -> None:
    client = RemotingClient()
    call = asyncio.create_task(client.call(peer.address, WORK, timeout=60))
    while not peer.seen:
        await asyncio.sleep(0)
    stopping = asyncio.create_task(peer.server.stop(4.0))
    await asyncio.sleep(0)
    peer.gate.set()

    assert (await call).body == b"worked"
    await stopping
    await client.close()


async def test_stopping_takes_no_longer_than_its_grace(slack_s: float, make_peer: MakePeer) -> None:
    """One request is worked on for ever, one is held, one peer takes no answers."""
    peer = await make_peer(write_buffer_bytes_max=1024)
    client = RemotingClient()
    calls = [
        asyncio.create_task(client.call(peer.address, code, timeout=30)) for code in (WORK, HOLD)
    ]
    stuck, _ = await stuck_peer(peer)
    while not (
        peer.seen and peer.held and any(c._writing_paused for c in peer.server._connections)
    ):
        await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    began = loop.time()

    await peer.server.stop(0.4)

    assert loop.time() - began <= 0.4 + slack_s
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ConnectionLostError] * 2
    assert peer.server.connections == 0
    stuck.close()
    await client.close()


@pytest.mark.parametrize("tls", [None, TlsSettings()], ids=["plain", "first byte"])
async def test_nobody_who_comes_during_the_stop_stays_connected(
    make_peer: MakePeer, tls: TlsSettings | None
) -> None:
    peer = await make_peer(tls=tls)
    came: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def come() -> None:
        try:
            while True:
                reader, writer = await asyncio.open_connection("127.0.0.1", peer.server.port)
                writer.write(encode_command(Command(ECHO, opaque=1)))
                came.append((reader, writer))
        except OSError:
            return

    coming = [asyncio.create_task(come()) for _ in range(5)]
    while len(came) < 10:
        await asyncio.sleep(0)
    await peer.server.stop(0.5)
    await asyncio.gather(*coming)

    assert peer.server.connections == 0
    async with asyncio.timeout(60):
        for reader, writer in came:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()


async def test_a_server_that_stopped_has_given_its_port_back(peer: Peer) -> None:
    port = peer.server.port
    await peer.server.stop(0.1)
    again = RemotingServer({})
    await again.start("127.0.0.1", port)
    await again.stop(0.1)
    await peer.server.stop(0.1)


async def stuck_peer(peer: Peer) -> tuple[socket.socket, int]:
    """A peer that asks for much and reads nothing."""
    stuck = socket.create_connection(("127.0.0.1", peer.server.port))
    sent = stuck.send(b"".join(encode_command(Command(LARGE, opaque=n + 1)) for n in range(4)))
    return stuck, sent


async def test_a_peer_that_never_reads_is_idle_and_its_connection_ends(
    make_peer: MakePeer,
) -> None:
    peer = await make_peer(idle_s=1, write_buffer_bytes_max=1024)
    stuck, _ = await stuck_peer(peer)

    await until(lambda: peer.closed, timeout=60)
    assert peer.server.connections == 0
    stuck.close()


# --- the client ---------------------------------------------------------------------------------


async def test_a_call_can_be_cancelled_at_any_moment(peer: Peer, client: RemotingClient) -> None:
    """After each number of turns of the loop, from connecting to answering."""
    for turns in range(25):
        client.disconnect(peer.address)
        call = asyncio.create_task(client.call(peer.address, ECHO, body=b"1", timeout=60))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])

        answer = await client.call(peer.address, ECHO, body=b"%d" % turns, timeout=60)
        assert answer.body == b"%d" % turns
    connection = await client.connection(peer.address)
    assert len(connection.inflight) == 0
    await until(lambda: peer.server.connections <= 1, timeout=60)


async def test_callers_that_come_while_connecting_share_the_connection(
    peer: Peer, client: RemotingClient
) -> None:
    calls = [asyncio.create_task(client.call(peer.address, ECHO, timeout=60)) for _ in range(5)]
    await asyncio.sleep(0)
    calls[0].cancel()
    await asyncio.gather(*calls, return_exceptions=True)

    assert [call.cancelled() for call in calls] == [True, False, False, False, False]
    assert peer.server.connections == 1


async def test_closing_a_client_that_connects_tells_the_caller_and_leaves_nothing(
    peer: Peer,
) -> None:
    for turns in range(12):
        client = RemotingClient()
        call = asyncio.create_task(client.call(peer.address, ECHO, timeout=60))
        for _ in range(turns):
            await asyncio.sleep(0)
        await client.close()
        (outcome,) = await asyncio.gather(call, return_exceptions=True)
        assert isinstance(outcome, ConnectError | ConnectionLostError | Command), outcome
        with pytest.raises(ConnectError, match="closed"):
            await client.call(peer.address, ECHO, timeout=1)
    await until(lambda: not peer.server.connections, timeout=60)


async def test_connecting_ends_at_the_timeout_of_the_call(slack_s: float) -> None:
    """A listener whose queue is full does not answer."""
    with socket.socket() as full, socket.socket() as one, socket.socket() as two:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filler in (one, two):
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        client = RemotingClient()
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(ConnectError, match=r"within 0\.2 s"):
            await client.call(f"127.0.0.1:{full.getsockname()[1]}", ECHO, timeout=0.2)
        assert loop.time() - began <= 0.2 + slack_s
        await client.close()


@pytest.mark.parametrize(
    "address",
    ["", "host", "host:", ":", "host:0", "host:65536", "host:x", "..:80", "a" * 70 + ":1"],
)
async def test_an_address_that_cannot_be_one_is_told(address: str, client: RemotingClient) -> None:
    with pytest.raises(ConnectError):
        await client.call(address, ECHO, timeout=30)


async def test_a_oneway_request_waits_for_a_peer_that_does_not_read(peer: Peer) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    client = RemotingClient(RemotingSettings(write_buffer_bytes_max=1024))
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    connection = await client.connection(address)
    waiting = asyncio.create_task(client.oneway(address, ECHO, body=bytes(1 << 20)))
    while (await asyncio.wait([waiting], timeout=0.2))[0]:
        waiting = asyncio.create_task(client.oneway(address, ECHO, body=bytes(1 << 20)))

    assert connection._writing_paused
    connection.abort()
    with pytest.raises(ConnectionLostError):
        await waiting
    await client.close()
    listening.close()


# --- addresses and TLS --------------------------------------------------------------------------


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_peers_may_come_by_ipv6() -> None:
    seen: list[Connection] = []

    def echo(request: Request) -> Response:
        seen.append(request.connection)
        return Response(body=request.body)

    server = RemotingServer({ECHO: echo})
    await server.start("::", 0)
    client = RemotingClient()
    for host in ("[::1]", "127.0.0.1"):
        assert (
            await client.call(f"{host}:{server.port}", ECHO, body=b"6", timeout=60)
        ).body == b"6"

    six, four = seen
    assert six.peer_text == f"[::1]:{six.peer[1]}"
    assert six.peer_bytes == bytes(15) + b"\x01" + six.peer[1].to_bytes(4)
    assert four.peer_text == f"127.0.0.1:{four.peer[1]}"
    assert four.peer_bytes == bytes((127, 0, 0, 1)) + four.peer[1].to_bytes(4)
    await client.close()
    await server.stop(0.5)


async def test_much_travels_both_ways_over_tls(make_peer: MakePeer) -> None:
    peer = await make_peer(tls=TlsSettings(), write_buffer_bytes_max=64 * 1024)
    client = RemotingClient(tls=client_context())
    bodies = [bytes([n]) * size for n, size in enumerate((1, 100_000, 3_000_000, 16, 12_000_000))]
    answers = await asyncio.gather(
        *(client.call(peer.address, ECHO, body=body, timeout=20) for body in bodies),
        client.call(peer.address, LARGE, timeout=20),
    )
    assert [len(answer.body) for answer in answers[:-1]] == [len(body) for body in bodies]
    assert [answer.body for answer in answers] == [*bodies, bytes(8 << 20)]
    await client.close()


async def test_a_client_reads_responses_while_its_requests_are_not_taken(peer: Peer) -> None:
    """The server does not read the next request until its response is read."""
    client = RemotingClient()
    bodies = [bytes([n]) * 12_000_000 for n in range(8)]
    answers = await asyncio.gather(
        *(client.call(peer.address, ECHO, body=body, timeout=60) for body in bodies)
    )
    assert [answer.body for answer in answers] == bodies
    await client.close()


@pytest.mark.skipif(SYSTEM.TCP_UNSENT_MAX is None, reason="no such option here")
async def test_the_kernel_takes_little_for_a_peer_that_does_not_read(peer: Peer) -> None:
    stuck = socket.socket()
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.connect(("127.0.0.1", peer.server.port))
    stuck.send(encode_command(Command(LARGE, opaque=1)))
    await until(lambda: any(one._writing_paused for one in peer.server._connections), timeout=60)
    (connection,) = peer.server._connections
    assert connection._transport is not None
    left = sum(map(len, connection._unsent)) + connection._transport.get_write_buffer_size()
    assert (8 << 20) - left <= 3 * FIRST_KERNEL_UNSENT_BYTES_MAX
    stuck.close()


@pytest.mark.skipif(SYSTEM.TCP_UNSENT_MAX is None, reason="no such option here")
async def test_the_kernel_takes_more_for_a_peer_that_has_read_a_large_response(peer: Peer) -> None:
    def limit() -> int:
        assert SYSTEM.TCP_UNSENT_MAX is not None
        (connection,) = peer.server._connections
        return int(connection.socket.getsockopt(socket.IPPROTO_TCP, SYSTEM.TCP_UNSENT_MAX))

    client = RemotingClient()
    await client.call(peer.address, ECHO, body=b"small", timeout=60)
    assert limit() == FIRST_KERNEL_UNSENT_BYTES_MAX
    for _ in range(2):
        await client.call(peer.address, LARGE, timeout=60)
        assert limit() == KERNEL_UNSENT_BYTES_MAX
    await client.close()


async def test_a_kernel_without_the_limit_of_unsent_bytes_serves_connections(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sandboxes that implement the system calls of Linux lack options of sockets."""
    monkeypatch.setattr(SYSTEM, "TCP_UNSENT_MAX", 9999)
    client = RemotingClient()
    assert (await client.call(peer.address, ECHO, body=b"hi", timeout=10)).body == b"hi"
    await client.close()


async def test_a_tls_peer_that_never_reads_does_not_hold_up_the_stop(
    slack_s: float, make_peer: MakePeer
) -> None:
    peer = await make_peer(tls=TlsSettings(), write_buffer_bytes_max=1024)
    _, writer = await asyncio.open_connection(
        "127.0.0.1", peer.server.port, ssl=client_context(), limit=1024
    )
    writer.transport.pause_reading()
    for number in range(4):
        writer.write(encode_command(Command(LARGE, opaque=number + 1)))
    await until(lambda: any(c._writing_paused for c in peer.server._connections), timeout=60)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await peer.server.stop(0.4)

    assert loop.time() - began <= 0.4 + slack_s
    assert peer.server.connections == 0
    writer.transport.abort()


async def test_a_peer_that_says_nothing_does_not_hold_up_the_stop(
    slack_s: float, make_peer: MakePeer
) -> None:
    """With TLS allowed, nothing is known of a connection before its first byte."""
    peer = await make_peer(tls=TlsSettings())
    silent = [socket.create_connection(("127.0.0.1", peer.server.port)) for _ in range(3)]
    await until(lambda: peer.server.arriving >= 3, timeout=60)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await peer.server.stop(1.0)

    assert loop.time() - began <= slack_s
    assert [connection.recv(1) for connection in silent] == [b"", b"", b""]
    for connection in silent:
        connection.close()


async def test_many_first_frames_at_once_open_a_few_connections_in_each_iteration(
    make_peer: MakePeer,
) -> None:
    peer = await make_peer(tls=TlsSettings())
    silent = [socket.create_connection(("127.0.0.1", peer.server.port)) for _ in range(20)]
    await until(lambda: peer.server.arriving >= len(silent), timeout=60)
    for connection in silent:
        connection.send(FIRST_FRAME)
    counts = [peer.server.connections]
    async with asyncio.timeout(60):
        while counts[-1] < len(silent):
            await asyncio.sleep(0)
            counts.append(peer.server.connections)

    opened = [after - before for before, after in itertools.pairwise(counts)]
    assert max(opened) <= OPENINGS_PER_ITERATION
    for connection in silent:
        connection.close()


async def test_many_ends_at_once_close_a_few_connections_in_each_iteration(
    make_peer: MakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = await make_peer(tls=TlsSettings())
    server, count = peer.server, 3 * CLOSES_PER_ITERATION
    ending = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(count)]
    for connection in ending:
        connection.send(FIRST_FRAME)
    await until(lambda: server.connections >= count, timeout=60)
    closed = 0

    def close(end: Callable[[], object]) -> None:
        nonlocal closed
        closed += 1
        end()

    monkeypatch.setattr(server._ended, "_act", close)
    for connection in ending:
        connection.close()
    counts = [0]
    async with asyncio.timeout(60):
        while counts[-1] < count or server.connections:
            await asyncio.sleep(0)
            counts.append(closed)

    in_iterations = [after - before for before, after in itertools.pairwise(counts)]
    assert (closed, max(in_iterations) <= CLOSES_PER_ITERATION) == (count, True)


async def test_closed_connections_leave_nothing_to_the_garbage_collector() -> None:
    server = RemotingServer({}, access=OpenAccess())
    await server.start("127.0.0.1", 0)

    async def open_and_close() -> None:
        opened = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        for connection in opened:
            connection.send(FIRST_FRAME)
        async with asyncio.timeout(60):
            while server.connections < len(opened):
                await asyncio.sleep(0.01)
            for connection in opened:
                connection.close()
            while server.connections:
                await asyncio.sleep(0.01)

    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await open_and_close()
        gc.collect()
        garbage = {type(one) for one in gc.garbage}  # some transports of asyncio are
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        await server.stop(0.5)
    assert [one for one in garbage if one.__module__.startswith("cometmq")] == []


async def test_a_broken_handshake_ends_that_connection_only(
    make_peer: MakePeer, caplog: pytest.LogCaptureFixture
) -> None:
    peer = await make_peer(tls=TlsSettings())
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.server.port)
    writer.write(b"\x16" + bytes(400))
    async with asyncio.timeout(60):
        await reader.read()
    client = RemotingClient()

    assert (await client.call(peer.address, ECHO, body=b"x", timeout=60)).body == b"x"
    assert {record.levelname for record in caplog.records if "refused" in record.message} == {
        "WARNING"
    }
    writer.close()
    await client.close()


class Noting:
    """A hook that stamps its name on requests and notes what it met."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name = name
        self._notes = notes

    def before_request(self, address: str, call: OutgoingCall) -> None:
        self._notes.append(f"{self._name} {call.code} {sorted(call.fields)} {call.body!r}")
        call.fields[self._name] = address

    def after_response(self, address: str, call: OutgoingCall, response: Command) -> None:
        self._notes.append(f"{self._name} answered {response.code}")


async def test_hooks_see_every_request_in_order_and_add_to_it(peer: Peer) -> None:
    notes: list[str] = []
    client = RemotingClient(hooks=[Noting("a", notes), Noting("b", notes)])
    try:
        await client.oneway(peer.address, ECHO, body=b"1")
        header = GetRouteinfoByTopicRequest(topic="orders")
        answer = await client.call(peer.address, ECHO, header, b"2", timeout=30)
    finally:
        await client.close()

    assert notes == [
        f"a {ECHO} [] b'1'",
        f"b {ECHO} ['a'] b'1'",
        f"a {ECHO} ['topic'] b'2'",
        f"b {ECHO} ['a', 'topic'] b'2'",
        "b answered 0",
        "a answered 0",
    ]
    assert answer.fields == {"topic": "orders", "a": peer.address, "b": peer.address}
    assert peer.seen[0].fields == {"a": peer.address, "b": peer.address}


async def test_each_new_connection_is_told_of_before_it_is_used(peer: Peer) -> None:
    told: list[str] = []
    client = RemotingClient(on_connect=lambda address, _: told.append(f"{address} {peer.seen}"))
    try:
        await client.call(peer.address, ECHO, timeout=30)
        await client.call(peer.address, ECHO, timeout=30)
        client.disconnect(peer.address)
        peer.seen.clear()
        await client.call(peer.address, ECHO, timeout=30)
    finally:
        await client.close()

    assert told == [f"{peer.address} []"] * 2


async def test_a_connection_that_is_closed_as_it_opens_cannot_be_used(peer: Peer) -> None:
    """Nothing was sent over it, which a send has to know before it is sent again."""
    client = RemotingClient(on_connect=lambda address, connection: connection.abort())
    try:
        with pytest.raises(ConnectError, match="the peer closed the connection"):
            await client.call(peer.address, ECHO, timeout=30)
    finally:
        await client.close()

    assert peer.seen == []


async def test_failed_handshakes_leave_no_buffers_to_the_garbage_collector() -> None:
    """A server looks at old objects once a minute at most; each handshake has 256 KiB."""
    server = RemotingServer({}, tls=TlsSettings(mode="permissive"), access=OpenAccess())
    await server.start("127.0.0.1", 0)

    async def fail() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"\x16\x03\x01" + b"not a handshake" * 10)
        await reader.read()
        writer.close()

    gc.collect()
    gc.disable()
    try:
        async with asyncio.timeout(60):
            for _ in range(20):
                await fail()
        left = sum(isinstance(one, SSLProtocol) for one in gc.get_objects())
    finally:
        gc.enable()
        await server.stop(0.5)
    assert left <= 1
