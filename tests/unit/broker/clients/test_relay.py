"""Requests that are relayed to consumers: members found, responses, timeouts, lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping

import pytest

from cometmq.broker.clients import relay as relay_module
from cometmq.broker.clients.consumers import ConsumerRegistry
from cometmq.broker.clients.relay import ConsumerRelay
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.remoting import Request, RequestHandler, Response
from support.checks.manual_clock import ManualClock
from support.wire.memory_link import link

ASK = RequestCode.GET_CONSUMER_RUNNING_INFO
FIELDS = {"consumerGroup": "G", "clientId": "c1"}


class Online:
    """A group G with the one member c1, whose side of the connection a test holds."""

    def __init__(
        self, handlers: Mapping[int, RequestHandler], *, version: int = 479, timeout_s: float = 10.0
    ) -> None:
        self.consumers = ConsumerRegistry(ManualClock())
        self.relay = ConsumerRelay(self.consumers, timeout_s=timeout_s)
        server, self.client = link(client=handlers, on_close=self.consumers.connection_closed)
        server.version, server.language = version, "JAVA"
        self.consumers.register(
            server,
            "c1",
            "G",
            kind="CONSUME_PASSIVELY",
            model="CLUSTERING",
            consume_from="CONSUME_FROM_LAST_OFFSET",
            subscriptions=[],
        )

    async def ask(self, client_id: str = "c1", **options: float) -> Command:
        return await self.relay.call("G", client_id, ASK, fields=FIELDS, **options)


def never(request: Request) -> None:
    """Leave the caller without an answer."""


async def refused(awaitable: Awaitable[Command]) -> ResponseError:
    with pytest.raises(ResponseError) as caught:
        await awaitable
    return caught.value


async def test_the_answer_comes_back_as_it_is() -> None:
    seen: list[Request] = []

    def answer(request: Request) -> Response:
        seen.append(request)
        return Response(7, "odd", fields={"x": "1"}, body=b"state")

    command = await Online({ASK: answer}).ask()

    assert (command.code, command.remark, command.body) == (7, "odd", b"state")
    assert command.fields == {"x": "1"}
    assert seen[0].command.fields == FIELDS


async def test_an_absent_client_is_code_1() -> None:
    refusal = await refused(Online({}).ask("nobody"))

    assert refusal.code == 1
    assert refusal.remark == "The Consumer <G> <nobody> not online"


async def test_an_old_client_is_told_to_upgrade() -> None:
    refusal = await refused(Online({}, version=61).ask())

    assert refusal.code == 1
    assert refusal.remark == (
        "The Consumer <c1> Version <V61> too low to finish, please upgrade it to V3_1_8_SNAPSHOT"
    )


async def test_a_silent_client_is_code_207() -> None:
    refusal = await refused(Online({ASK: never}, timeout_s=0.01).ask())

    assert refusal.code == 207
    assert refusal.remark.startswith("consumer <G> <c1> Timeout: ")


async def test_a_lost_client_ends_the_call_at_once() -> None:
    asked = asyncio.Event()
    online = Online({ASK: lambda request: asked.set()})
    call = asyncio.ensure_future(online.ask())
    async with asyncio.timeout(60):
        await asked.wait()
        online.client.close()
        refusal = await refused(call)

    assert refusal.code == 1
    assert refusal.remark.startswith("invoke consumer <G> <c1> Exception: ")


async def test_too_many_calls_are_refused_and_ended_ones_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_module, "CALLS_MAX", 1)
    asked = asyncio.Event()
    waiting: list[Request] = []

    def hold(request: Request) -> None:
        waiting.append(request)
        asked.set()

    online = Online({ASK: hold})
    first = asyncio.ensure_future(online.ask())
    async with asyncio.timeout(60):
        await asked.wait()
        assert (await refused(online.ask())).code == 2
        waiting[0].reply(Response())
        await first
        second = asyncio.ensure_future(online.ask())
        asked.clear()
        await asked.wait()
        waiting[1].reply(Response(body=b"second"))

        assert (await second).body == b"second"
