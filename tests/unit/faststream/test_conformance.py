"""What FastStream's base tests for brokers cover, in short: the originals are in no package.

Each test names the base test in the folder ``tests`` of FastStream's repository.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any

import pytest
from faststream import BaseMiddleware, Depends, ExceptionMiddleware, Path
from faststream.exceptions import SubscriberNotFound
from faststream.response import Response
from pydantic import BaseModel

from cometmq.faststream import (
    RocketAsyncAPI,
    RocketBroker,
    RocketMessageContext,
    RocketPublishCommand,
    RocketResponse,
    RocketRouter,
    TestRocketBroker,
)
from cometmq.model.errors import InvalidNameError


class Model(BaseModel):
    name: str
    number: int = 1


@dataclass
class Point:
    x: int
    y: int


@pytest.fixture
def broker() -> RocketBroker:
    return RocketBroker(logger=None)


@pytest.mark.parametrize(
    ("sent", "kind", "met"),
    [
        (b"bytes", bytes, b"bytes"),
        ("text", str, "text"),
        (1, int, 1),
        (1.5, float, 1.5),
        (False, bool, False),
        ([1, "a"], list, [1, "a"]),
        ({"a": [1]}, dict, {"a": [1]}),
        (Model(name="a"), Model, Model(name="a")),
        ({"name": "a"}, Model, Model(name="a")),
        (Point(1, 2), Point, Point(1, 2)),
        (date(2026, 11, 30), date, date(2026, 11, 30)),
        ([Model(name="a")], list[Model], [Model(name="a")]),
        ("1", int, 1),
        (None, Any, b""),
    ],
    ids=str,
)
async def test_bodies(broker: RocketBroker, sent: Any, kind: Any, met: Any) -> None:
    """Base: publish.BrokerPublishTestcase, parameters of serialization."""
    seen: list[Any] = []

    async def handle(body: Any) -> None:
        seen.append(body)

    handle.__annotations__["body"] = kind
    broker.subscriber("t")(handle)
    async with TestRocketBroker(broker) as br:
        await br.publish(sent, "t")
    assert seen == [met]


async def test_a_body_fills_several_parameters(broker: RocketBroker) -> None:
    """Base: publish.test_unwrap_dict, test_unwrap_list."""
    seen: list[Any] = []

    @broker.subscriber("t")
    async def handle(a: int, b: Model) -> None:
        seen.append((a, b.name))

    async with TestRocketBroker(broker) as br:
        await br.publish({"a": 1, "b": {"name": "x"}}, "t")
        await br.publish([2, {"name": "y"}], "t")
    assert seen == [(1, "x"), (2, "y")]


async def test_results_go_to_all_publishers_and_to_the_reply_topic(broker: RocketBroker) -> None:
    """Base: publish.test_base_publisher, test_multiple_publishers, test_reply_to, test_no_reply."""
    seen: list[tuple[str, Any, Any, str]] = []
    object_publisher = broker.publisher("third", headers={"by": "object"})

    @broker.subscriber("quiet", no_reply=True)
    @broker.subscriber("t")
    @broker.publisher("first", headers={"by": "first"}, reply_to="elsewhere")
    @broker.publisher("second")
    async def handle(body: int) -> Response:
        await object_publisher.publish(body, headers={"more": "1"})
        return RocketResponse(body + 1, headers={"result": "yes"}, correlation_id="own")

    for topic in ("first", "second", "third", "replies"):

        @broker.subscriber(topic, group=topic)
        async def note(body: int, message: RocketMessageContext) -> None:
            headers = {n: v for n, v in message.headers.items() if n in ("by", "result", "more")}
            seen.append((message.raw_message.topic, body, headers, message.reply_to))

    async with TestRocketBroker(broker) as br:
        await br.publish(1, "t", reply_to="replies")
        assert sorted(seen, key=str) == [
            ("first", 2, {"result": "yes", "by": "first"}, "elsewhere"),
            ("replies", 2, {"result": "yes"}, ""),
            ("second", 2, {"result": "yes"}, ""),
            ("third", 1, {"by": "object", "more": "1"}, ""),
        ]
        seen.clear()
        await br.publish(1, "quiet", reply_to="replies")
        assert "replies" not in [topic for topic, *_ in seen]


async def test_a_message_that_no_handler_wants_is_an_error(broker: RocketBroker) -> None:
    """Base: testclient.test_error_without_filter."""
    subscriber = broker.subscriber("t")

    @subscriber(filter=lambda message: message.headers.get("kind") == "a")
    async def handle(body: str) -> None: ...

    async with TestRocketBroker(broker) as br:
        with pytest.raises(SubscriberNotFound):
            await br.publish("x", "t")


def noting(name: str, seen: list[str]) -> type[BaseMiddleware]:
    class Noting(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            seen.append(f"{name} consumes")
            result = await call_next(msg)
            seen.append(f"{name} consumed")
            return result

        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            assert isinstance(cmd, RocketPublishCommand)
            seen.append(f"{name} publishes")
            cmd.headers["by"] = name
            return await call_next(cmd)

    return Noting


async def test_middlewares_of_broker_and_router_nest_and_change_what_is_published() -> None:
    """Base: middlewares.MiddlewareTestcase, MiddlewaresOrderTestcase."""
    seen: list[str] = []
    broker = RocketBroker(logger=None, middlewares=[noting("broker", seen)])
    router = RocketRouter(middlewares=[noting("router", seen)])
    headers: list[str] = []

    @router.subscriber("t")
    @router.publisher("out")
    async def handle(body: str) -> str:
        seen.append("handler")
        return body

    @broker.subscriber("out")
    async def out(body: str, message: RocketMessageContext) -> None:
        headers.append(message.headers["by"])

    broker.include_router(router)
    async with TestRocketBroker(broker) as br:
        await br.publish("x", "t")
    assert seen[:7] == [
        *("broker publishes", "broker consumes", "router consumes", "handler"),
        *("router consumed", "broker consumed", "broker publishes"),
    ]
    assert headers == ["router"]


async def test_an_exception_middleware_publishes_another_result() -> None:
    """Base: middlewares.ExceptionMiddlewareTestcase."""
    errors = ExceptionMiddleware()

    @errors.add_handler(ValueError, publish=True)
    async def value_error(error: ValueError) -> str:
        return f"instead of {error}"

    broker = RocketBroker(logger=None, middlewares=[errors])

    @broker.subscriber("t")
    @broker.publisher("out")
    async def handle(body: str) -> str:
        raise ValueError(body)

    @broker.subscriber("out")
    async def out(body: str) -> None: ...

    async with TestRocketBroker(broker) as br:
        await br.publish("x", "t")
        out.mock.assert_called_once_with("instead of x")


class Reversing:
    """A codec: bodies are reversed on the way."""

    async def encode(self, msg: Any, serializer: Any = None) -> tuple[bytes, str | None]:
        return json.dumps(msg).encode()[::-1], "application/reversed"

    async def decode(self, msg: Any) -> Any:
        return json.loads(msg.body[::-1])

    async def encode_batch(
        self, msgs: Sequence[Any], serializer: Any = None
    ) -> list[tuple[bytes, str | None]]:
        return [await self.encode(msg) for msg in msgs]

    async def decode_batch(self, msg: Any) -> list[Any]:
        return [json.loads(body[::-1]) for body in msg.body]


async def test_codecs_encode_and_decode_messages_and_batches() -> None:
    """Base: codec.CodecTestcase, BatchCodecTestcase."""
    broker = RocketBroker(logger=None, codec=Reversing())

    @broker.subscriber("t")
    async def handle(body: dict[str, int], message: RocketMessageContext) -> None:
        assert message.content_type == "application/reversed"

    @broker.subscriber("many", batch=True)
    async def many(bodies: list[int]) -> None: ...

    async with TestRocketBroker(broker) as br:
        await br.publish({"a": 1}, "t")
        handle.mock.assert_called_once_with({"a": 1})
        await br.publish_batch(1, 2, topic="many")
        many.mock.assert_called_once_with([1, 2])


@pytest.mark.parametrize(
    ("body", "bodies"),
    [(None, ()), ((), ()), ("text", ("text",)), ([1, 2], (1, 2)), (["a"], ("a",)), (b"b", (b"b",))],
)
def test_a_command_of_a_batch(body: Any, bodies: tuple[Any, ...]) -> None:
    """Base: publish_command.BatchPublishCommandTestcase."""
    cmd = RocketPublishCommand.from_cmd(Response(body).as_publish_command(), batch=True)
    assert cmd.batch_bodies == bodies
    own = RocketPublishCommand.from_cmd(RocketResponse(body).as_publish_command(), batch=True)
    assert own.batch_bodies == bodies
    own.batch_bodies = (3, 4)
    assert (own.body, own.extra_bodies) == (3, (4,))


async def test_included_routers_bring_prefix_dependencies_and_middlewares(
    broker: RocketBroker,
) -> None:
    """Base: include_router.IncludeSubscriberTestcase, IncludePublisherTestcase."""
    seen: list[str] = []

    async def noted() -> AsyncIterator[None]:
        seen.append("dependency")
        yield

    inner, outer = RocketRouter("b-"), RocketRouter("a-", dependencies=[Depends(noted)])

    @inner.subscriber("t")
    @inner.publisher("out")
    async def handle(body: str) -> str:
        return body

    outer.include_router(inner, middlewares=[noting("included", seen)])
    broker.include_router(outer, prefix="x-", include_in_schema=False)
    async with TestRocketBroker(broker) as br:
        await br.publish("1", "x-a-b-t")
        handle.mock.assert_called_once_with("1")
    assert [publisher.topic for publisher in broker.publishers] == ["x-a-b-out"]
    assert seen == ["included consumes", "dependency", "included consumed", "included publishes"]
    assert RocketAsyncAPI(broker).to_specification().to_jsonable()["channels"] == {}


@pytest.mark.parametrize("version", ["3.0.0", "2.6.0"])
def test_documents_name_channels_and_payloads(broker: RocketBroker, version: str) -> None:
    """Base: asyncapi.ArgumentsTestcase, NamingTestCase, PublisherTestcase."""

    @broker.subscriber("t", title="Orders", description="What is ordered.")
    async def titled(body: Model) -> None: ...

    @broker.subscriber("hidden", include_in_schema=False)
    async def hidden(body: str) -> None: ...

    @broker.subscriber("t")
    @broker.publisher("out", schema=int)
    async def handle_order(name: str, number: Annotated[int, Depends(lambda: 1)]) -> int:
        """Handle one."""
        return 1

    document = RocketAsyncAPI(broker, schema_version=version).to_specification().to_jsonable()
    channels = document["channels"]
    assert set(channels) == {"Orders", "t:HandleOrder", "out:Publisher"}
    assert channels["Orders"]["description"] == "What is ordered."
    assert channels["t:HandleOrder"]["description"] == "Handle one."
    schemas = document["components"]["schemas"]
    assert schemas["Model"]["required"] == ["name"]
    assert schemas["out:Publisher:Message:Payload"]["type"] == "integer"


async def test_parameters_of_paths_do_not_exist(broker: RocketBroker) -> None:
    """Base: address.AddressTemplateTestcase: topics of RocketMQ have no braces."""
    subscriber = broker.subscriber("orders-{id}")

    @subscriber
    async def handle(body: str, id: Annotated[str, Path()]) -> None: ...

    with pytest.raises(InvalidNameError, match="orders-"):
        await subscriber.start()
