"""The remoting client with peers that are silent or close the connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cometmq.protocol.codes import LanguageCode, ResponseCode
from cometmq.protocol.command import Command
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
)
from cometmq.remoting.client import ConnectionPolicy
from support.checks.cancellation import cancel_at_every_await
from support.checks.waiting import until

ECHO, HOLD, LEAVE, NEVER = 9001, 9002, 9003, 9004
SOON_IDLE = RemotingSettings(idle_s=1)
LONG_ENOUGH_S = 1.1

BOTH_LOOPS = True


class Peer:
    """Answers, holds, says that it leaves to its first connections, or keeps silent."""

    def __init__(self) -> None:
        self.held: list[Request] = []
        self.seen: list[Request] = []
        self.leaving: set[Connection] = set()
        self.leaves_always = False
        self.server = RemotingServer(
            {ECHO: self.echo, HOLD: self.hold, LEAVE: self.leave, NEVER: lambda request: None}
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def echo(self, request: Request) -> Response:
        self.seen.append(request)
        return Response(body=request.body, fields=request.command.fields)

    def hold(self, request: Request) -> None:
        self.held.append(request)

    def leave(self, request: Request) -> Response:
        self.seen.append(request)
        if self.leaves_always or not self.leaving:
            self.leaving.add(request.connection)
        if request.connection in self.leaving:
            return Response(ResponseCode.GO_AWAY, "leaving")
        return Response(body=request.body)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with running() as made:
        yield made


@asynccontextmanager
async def running() -> AsyncIterator[Peer]:
    made = Peer()
    await made.server.start("127.0.0.1", 0)
    try:
        yield made
    finally:
        await made.server.stop(0.0)


@asynccontextmanager
async def client_with(**options: object) -> AsyncIterator[RemotingClient]:
    made = RemotingClient(**options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        await made.close()


async def begun(work: asyncio.Task[Command], peer: Peer) -> None:
    """Wait until the peer holds a request."""
    await until(lambda: peer.held, timeout=60)
    assert not work.done()


async def test_a_connection_is_given_up_when_a_call_over_it_brings_nothing(peer: Peer) -> None:
    """The others that wait over it end at once; the next call has a new connection."""
    async with client_with(policy=ConnectionPolicy(close_silent=True)) as client:
        waiting = asyncio.create_task(client.call(peer.address, HOLD, timeout=30))
        await begun(waiting, peer)
        before = await client.connection(peer.address)

        with pytest.raises(CallTimeoutError):
            await client.call(peer.address, NEVER, timeout=LONG_ENOUGH_S)
        with pytest.raises(ConnectionLostError):
            await waiting

        assert await client.connection(peer.address) is not before
        assert (await client.call(peer.address, ECHO, body=b"x", timeout=60)).body == b"x"


async def test_a_connection_that_many_calls_give_up_is_logged_once(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    async with client_with(policy=ConnectionPolicy(close_silent=True)) as client:
        await client.connection(peer.address)
        calls = [client.call(peer.address, NEVER, timeout=LONG_ENOUGH_S) for _ in range(20)]
        ended = await asyncio.gather(*calls, return_exceptions=True)

    assert {type(error) for error in ended} <= {CallTimeoutError, ConnectionLostError}
    assert caplog.text.count("closed a connection") == 1


@pytest.mark.usefixtures("virtual_time")
async def test_a_held_call_survives_the_time_out_of_another_while_the_peer_answers(
    peer: Peer,
) -> None:
    """A single slow request says nothing about the connection."""
    async with client_with(policy=ConnectionPolicy(close_silent=True)) as client:
        waiting = asyncio.create_task(client.call(peer.address, HOLD, timeout=30))
        await begun(waiting, peer)
        slow = asyncio.create_task(client.call(peer.address, NEVER, timeout=LONG_ENOUGH_S))
        await asyncio.sleep(0)
        await client.call(peer.address, ECHO, timeout=60)
        with pytest.raises(CallTimeoutError):
            await slow

        peer.held[0].reply(Response(body=b"at last"))
        assert (await waiting).body == b"at last"


@pytest.mark.parametrize(("close_silent", "timeout"), [(True, 0.2), (False, LONG_ENOUGH_S)])
async def test_a_connection_is_kept_after_a_short_wait_or_when_told_so(
    peer: Peer, close_silent: bool, timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if close_silent:  # a pause of the machine must not make the short wait a long one
        monkeypatch.setattr("cometmq.remoting.client.SILENT_S", 30.0)
    async with client_with(policy=ConnectionPolicy(close_silent=close_silent)) as client:
        before = await client.connection(peer.address)
        with pytest.raises(CallTimeoutError):
            await client.call(peer.address, NEVER, timeout=timeout)

        assert await client.connection(peer.address) is before


async def test_a_request_is_repeated_over_a_new_connection_when_the_peer_is_leaving(
    peer: Peer,
) -> None:
    """What waits over the old one is still answered there."""
    async with client_with(policy=ConnectionPolicy(retry_leaving=True)) as client:
        waiting = asyncio.create_task(client.call(peer.address, HOLD, timeout=30))
        await begun(waiting, peer)

        answer = await client.call(peer.address, LEAVE, body=b"again", timeout=60)

        assert (answer.code, answer.body) == (0, b"again")
        assert len({request.connection for request in peer.seen}) == 2
        peer.held[0].reply(Response(body=b"from the old one"))
        assert (await waiting).body == b"from the old one"


async def test_a_request_is_repeated_once_and_then_answered_with_what_the_peer_says(
    peer: Peer,
) -> None:
    peer.leaves_always = True
    async with client_with(policy=ConnectionPolicy(retry_leaving=True)) as client:
        answer = await client.call(peer.address, LEAVE, timeout=60)

    assert answer.code == ResponseCode.GO_AWAY
    assert len(peer.seen) == 2


async def test_a_request_is_not_repeated_when_told_so(peer: Peer) -> None:
    async with client_with(policy=ConnectionPolicy(retry_leaving=False)) as client:
        answer = await client.call(peer.address, LEAVE, timeout=60)

    assert answer.code == ResponseCode.GO_AWAY
    assert len(peer.seen) == 1


class Stamp:
    """Counts what it sees, in a field."""

    def __init__(self) -> None:
        self.count = 0

    def before_request(self, address: str, call: OutgoingCall) -> None:
        self.count += 1
        call.fields["count"] = str(self.count)

    def after_response(self, address: str, call: OutgoingCall, response: Command) -> None:
        """Sees nothing of interest."""


async def test_hooks_see_the_repeated_request_as_one_of_its_own(peer: Peer) -> None:
    async with client_with(policy=ConnectionPolicy(retry_leaving=True), hooks=[Stamp()]) as client:
        await client.call(peer.address, LEAVE, timeout=60)

    assert [request.command.fields["count"] for request in peer.seen] == ["1", "2"]


async def test_requests_say_the_language_they_are_told_to(peer: Peer) -> None:
    async with client_with(language=LanguageCode.RUST) as client:
        await client.call(peer.address, ECHO, timeout=60)

    assert [request.command.language for request in peer.seen] == ["RUST"]


async def test_closing_closes_the_connections_of_leaving_peers_too(peer: Peer) -> None:
    async with client_with(policy=ConnectionPolicy(retry_leaving=True)) as client:
        waiting = asyncio.create_task(client.call(peer.address, HOLD, timeout=30))
        await begun(waiting, peer)
        await client.call(peer.address, LEAVE, timeout=60)

    with pytest.raises(ConnectionLostError):
        await waiting


async def test_a_request_that_is_repeated_can_be_cancelled_wherever_it_waits(peer: Peer) -> None:
    async with client_with(policy=ConnectionPolicy(retry_leaving=True)) as client:

        async def repeated() -> None:
            peer.leaving.clear()
            await client.call(peer.address, LEAVE, timeout=60)

        async def works() -> None:
            assert (await client.call(peer.address, ECHO, body=b"x", timeout=60)).body == b"x"

        assert await cancel_at_every_await(repeated, works) > 4


async def test_a_connection_on_which_nothing_moves_is_closed(peer: Peer) -> None:
    """The next call opens a new one."""
    async with client_with(settings=SOON_IDLE) as client:
        await client.call(peer.address, ECHO, timeout=60)
        idle = await client.connection(peer.address)

        await asyncio.wait_for(idle.wait_closed(), 60)

        assert (await client.call(peer.address, ECHO, body=b"x", timeout=60)).body == b"x"
        assert await client.connection(peer.address) is not idle


@pytest.mark.usefixtures("virtual_time")
async def test_a_connection_that_is_used_or_waited_on_is_not_idle(peer: Peer) -> None:
    async with running() as used, running() as idle, client_with(settings=SOON_IDLE) as client:
        waiting = asyncio.create_task(client.call(peer.address, HOLD, timeout=30))
        await begun(waiting, peer)
        kept = [await client.connection(each.address) for each in (peer, used)]
        closing = asyncio.create_task((await client.connection(idle.address)).wait_closed())

        async with asyncio.timeout(60):
            while not closing.done():
                await client.call(used.address, ECHO, timeout=60)
                await asyncio.wait([closing], timeout=0.1)

        assert [await client.connection(each.address) for each in (peer, used)] == kept
        peer.held[0].reply(Response(body=b"at last"))
        assert (await waiting).body == b"at last"


@pytest.mark.usefixtures("virtual_time")
async def test_the_connection_of_a_leaving_peer_is_closed_once_it_is_idle(peer: Peer) -> None:
    async with client_with(
        settings=SOON_IDLE, policy=ConnectionPolicy(retry_leaving=True)
    ) as client:
        leaving = await client.connection(peer.address)
        await client.call(peer.address, LEAVE, timeout=60)
        assert not leaving.closed

        await asyncio.wait_for(leaving.wait_closed(), 60)


@pytest.mark.parametrize("host", ["127.0.0.1\0", "a\0b", "x" * 300, ""])
async def test_a_host_that_is_none_is_a_connect_error(host: str) -> None:
    async with client_with() as client:
        with pytest.raises(ConnectError):
            await client.call(f"{host}:1", ECHO, timeout=60)
