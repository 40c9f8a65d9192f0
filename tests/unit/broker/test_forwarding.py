"""The requests that a slave forwards to its master."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from cometmq.broker import forwarding
from cometmq.broker.forwarding import Forwarding
from cometmq.broker.offsets.forwarded_commits import ForwardedCommits
from cometmq.broker.role import MASTER_ID, SLAVE, SYNC_MASTER, Role
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.remoting import (
    Connection,
    ConnectionLostError,
    RemotingClient,
    RemotingServer,
    Request,
    Response,
)
from support.wire.memory_link import link

LIMIT_S = 60.0
NOT_AVAILABLE = ResponseCode.SERVICE_NOT_AVAILABLE
FIELDS = {"a": "group", "b": "T", "Signature": "signed"}

Answer = Callable[[Request], Response | Awaitable[Response | None] | None]


class Slave:
    """A slave, and the masters that it forwards to."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.role = Role(SLAVE, 2, is_elected=True)
        self.taken: list[Command] = []
        """The requests that masters got."""
        self._stack = stack
        client = RemotingClient(name="slave")
        stack.push_async_callback(client.close)
        self.signed_codes: set[int] = set()
        """The requests that need a signature."""
        needs_signature = self.signed_codes.__contains__
        self.decided = asyncio.Event()
        forwarding = Forwarding(self.role, client, needs_signature, self.decided)
        self.handle = forwarding.wrap(self.store)
        self.commit = ForwardedCommits(self.keep, forwarding).handle
        self.kept: list[str] = []
        """The offsets that were committed here."""

    def store(self, _: Request) -> Response:
        """What the handler does here."""
        if self.role.is_slave:
            return Response(NOT_AVAILABLE, "slave")
        return Response(remark="stored here")

    def keep(self, request: Request) -> Awaitable[Response | None]:
        """Commit an offset here; the frames behind the request wait."""
        self.kept.append(request.command.fields["commitOffset"])
        request.is_exclusive = True

        async def respond() -> Response:
            return Response(remark="kept here")

        return respond()

    def connect(self) -> Connection:
        """A client's connection."""
        _, client = link(
            {
                RequestCode.SEND_MESSAGE_V2: self.handle,
                RequestCode.UPDATE_CONSUMER_OFFSET: self.commit,
            }
        )
        return client

    async def follow(self, answer: Answer) -> RemotingServer:
        """Follow a master that answers so."""

        def take(request: Request) -> Response | Awaitable[Response | None] | None:
            self.taken.append(request.command)
            return answer(request)

        served = dict.fromkeys(
            (RequestCode.SEND_MESSAGE_V2, RequestCode.UPDATE_CONSUMER_OFFSET), take
        )
        server = RemotingServer(served, name="master")
        await server.start("127.0.0.1", 0)
        self._stack.push_async_callback(server.stop, 0.0)
        self.role.follow_elected(f"127.0.0.1:{server.port}")
        return server


@pytest.fixture
async def slave() -> AsyncIterator[Slave]:
    async with AsyncExitStack() as stack:
        yield Slave(stack)


async def send(client: Connection, body: bytes = b"body", **more: object) -> Command:
    return await client.call(
        RequestCode.SEND_MESSAGE_V2,
        body=body,
        fields=FIELDS,
        timeout=LIMIT_S,
        **more,  # type: ignore[arg-type]
    )


async def test_the_master_gets_what_the_client_sent_and_its_response_goes_back(
    slave: Slave,
) -> None:
    await slave.follow(
        lambda _: Response(
            ResponseCode.FLUSH_SLAVE_TIMEOUT, "late", fields={"msgId": "1"}, body=b"x"
        )
    )
    response = await send(slave.connect())

    [taken] = slave.taken
    assert (taken.fields, taken.body, taken.remark) == (FIELDS, b"body", forwarding.FORWARDED)
    assert (response.code, response.remark) == (ResponseCode.FLUSH_SLAVE_TIMEOUT, "late")
    assert (response.fields, response.body) == ({"msgId": "1"}, b"x")


async def test_a_forwarded_send_is_not_forwarded_again(slave: Slave) -> None:
    await slave.follow(lambda _: Response())
    response = await send(slave.connect(), remark=forwarding.FORWARDED)
    assert (response.code, slave.taken) == (NOT_AVAILABLE, [])


async def test_only_signed_requests_are_forwarded_if_they_need_a_signature(slave: Slave) -> None:
    await slave.follow(lambda _: Response())
    code = RequestCode.SEND_MESSAGE_V2
    client = slave.connect()
    assert (await client.call(code, fields=FIELDS, timeout=LIMIT_S)).code == 0
    slave.signed_codes.add(code)
    assert (await client.call(code, fields=FIELDS, timeout=LIMIT_S)).code == NOT_AVAILABLE
    signed = FIELDS | {"AccessKey": "publisher"}
    assert (await client.call(code, fields=signed, timeout=LIMIT_S)).code == 0
    assert [taken.fields for taken in slave.taken] == [FIELDS, signed]


async def test_a_master_stores_what_it_gets(slave: Slave) -> None:
    await slave.follow(lambda _: Response())
    slave.role.change(SYNC_MASTER, MASTER_ID)
    assert (await send(slave.connect())).remark == "stored here"
    assert slave.taken == []


async def test_sends_are_refused_while_no_master_is_known_or_reached(slave: Slave) -> None:
    assert (await send(slave.connect())).code == NOT_AVAILABLE

    await slave.follow(lambda _: Response(ResponseCode.GO_AWAY))
    assert (await send(slave.connect())).code == NOT_AVAILABLE

    server = await slave.follow(lambda _: Response())
    await server.stop(0.0)
    assert (await send(slave.connect())).code == NOT_AVAILABLE


async def test_a_lost_response_closes_the_connection_because_the_message_may_be_stored(
    slave: Slave, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang_up(request: Request) -> None:
        request.connection.abort()

    await slave.follow(hang_up)
    with pytest.raises(ConnectionLostError):
        await send(slave.connect())

    monkeypatch.setattr(forwarding, "TIMEOUT_S", 0.05)
    await slave.follow(lambda _: None)
    with pytest.raises(ConnectionLostError):
        await send(slave.connect())


async def test_a_one_way_request_is_forwarded_and_its_connection_stays(slave: Slave) -> None:
    arrived = asyncio.Event()

    def hang_up(request: Request) -> None:
        arrived.set()
        request.connection.abort()

    await slave.follow(hang_up)
    client = slave.connect()
    client.oneway(RequestCode.SEND_MESSAGE_V2, body=b"body", fields=FIELDS)
    await arrived.wait()
    await slave.follow(lambda _: Response())
    assert (await send(client)).code == ResponseCode.SUCCESS
    assert [taken.body for taken in slave.taken] == [b"body", b"body"]


async def commit(client: Connection, offset: int, **more: object) -> Command:
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": f"{offset}"}
    return await client.call(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        fields=fields,
        timeout=LIMIT_S,
        **more,  # type: ignore[arg-type]
    )


async def test_a_commit_is_forwarded_and_not_kept_unless_no_master_is_known(slave: Slave) -> None:
    slave.decided.set()
    client = slave.connect()
    assert (await commit(client, 1)).remark == "kept here"
    await slave.follow(lambda _: Response(ResponseCode.SYSTEM_ERROR, "refused"))
    assert (await commit(client, 2)).remark == "refused"
    assert (slave.kept, len(slave.taken)) == (["1"], 1)


async def test_a_commit_is_kept_if_the_master_gives_no_response(
    slave: Slave, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a slave of RocketMQ does; the frames behind the commit are handled."""
    slave.decided.set()
    client = slave.connect()

    def hang_up(request: Request) -> None:
        request.connection.abort()

    answers: list[Answer] = [
        lambda _: Response(ResponseCode.GO_AWAY),
        lambda _: Response(NOT_AVAILABLE, "a slave, too"),
        hang_up,
        lambda _: None,
    ]
    for number, answer in enumerate(answers):
        server = await slave.follow(answer)
        if number == 3:
            monkeypatch.setattr(forwarding, "TIMEOUT_S", 0.05)
        assert (await commit(client, number)).remark == "kept here"
    await server.stop(0.0)
    assert (await commit(client, 4)).remark == "kept here"
    assert slave.kept == ["0", "1", "2", "3", "4"]


async def test_a_slave_refuses_a_forwarded_commit(slave: Slave) -> None:
    """The slave that has forwarded it keeps it."""
    slave.decided.set()
    await slave.follow(lambda _: Response())
    response = await commit(slave.connect(), 1, remark=forwarding.FORWARDED)
    assert (response.code, slave.kept, slave.taken) == (NOT_AVAILABLE, [], [])


async def test_an_older_commit_that_fails_does_not_replace_a_newer_one(slave: Slave) -> None:
    slave.decided.set()
    arrived = asyncio.Event()
    pending: list[Request] = []

    def wait(request: Request) -> None:
        pending.append(request)
        arrived.set()

    await slave.follow(wait)
    client = slave.connect()
    first = asyncio.create_task(commit(client, 1))
    await arrived.wait()
    slave.role.change(SYNC_MASTER, MASTER_ID)
    assert (await commit(client, 2)).remark == "kept here"
    pending[0].connection.abort()
    assert (await first).code == ResponseCode.SUCCESS
    assert slave.kept == ["2"]


async def test_a_commit_waits_for_the_first_decision_only_for_a_while(
    slave: Slave, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "DECIDED_S", 0.01)
    client = slave.connect()
    assert (await commit(client, 1)).remark == "kept here"
    monkeypatch.setattr(forwarding, "DECIDED_S", LIMIT_S)
    waiting = asyncio.create_task(commit(client, 2))
    assert (await send(client)).code == NOT_AVAILABLE  # behind the commit, and does not wait
    await slave.follow(lambda _: Response(remark="master"))
    slave.decided.set()
    assert (await waiting).remark == "master"
    assert slave.kept == ["1"]


async def test_bytes_in_flight_are_limited(slave: Slave, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "BYTES_MAX", forwarding.REQUEST_BYTES + 10)
    arrived, goes_on = asyncio.Event(), asyncio.Event()

    async def wait(_: Request) -> Response:
        arrived.set()
        await goes_on.wait()
        return Response()

    await slave.follow(wait)
    client = slave.connect()
    first = asyncio.create_task(send(client, b"123456"))
    await arrived.wait()
    refused = await send(client, b"12345")
    assert refused.code == NOT_AVAILABLE
    goes_on.set()
    assert (await first).code == ResponseCode.SUCCESS
    assert (await send(client, b"12345")).code == ResponseCode.SUCCESS
