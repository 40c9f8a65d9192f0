"""`TestRocketBroker`: handlers are called as brokers would deliver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

import pytest
from faststream import Context, Depends, FastStream
from faststream.exceptions import SetupError, SubscriberNotFound
from faststream.message.message import AckStatus
from faststream.middlewares import AckPolicy
from pydantic import BaseModel, ValidationError

from cometmq.client import CometError, ConfigError, LocalState, Message, StoredMessage
from cometmq.faststream import (
    RocketBroker,
    RocketBrokerContext,
    RocketMessageContext,
    RocketPublisher,
    RocketResponse,
    RocketRoute,
    RocketRouter,
    TestRocketBroker,
)
from cometmq.faststream.message import Settlement
from cometmq.model.errors import InvalidNameError


class Order(BaseModel):
    id: str
    amount: int = 1


@pytest.fixture
def broker() -> RocketBroker:
    return RocketBroker(logger=None)


async def test_a_typed_handler_gets_its_model_and_what_it_returns_is_published(
    broker: RocketBroker,
) -> None:
    @broker.subscriber("orders")
    @broker.publisher("invoices", tags="new", headers={"by": "bill"})
    async def bill(order: Order, message: RocketMessageContext) -> dict[str, str]:
        assert message.keys == ["order-42"]
        return {"order": order.id}

    @broker.subscriber("invoices", tags="new")
    async def archive(
        body: dict[str, str], message: RocketMessageContext, br: RocketBrokerContext
    ) -> None:
        assert br is broker
        assert message.headers["by"] == "bill"

    async with TestRocketBroker(broker) as br:
        await br.publish(Order(id="42"), "orders", keys=["order-42"])
        bill.mock.assert_called_once_with({"id": "42", "amount": 1})
        archive.mock.assert_called_once_with({"order": "42"})


async def test_tags_and_expressions_select_messages(broker: RocketBroker) -> None:
    @broker.subscriber("orders", tags="paid || sent", group="by-tag")
    async def by_tag(body: str) -> None: ...

    @broker.subscriber("orders", sql="amount > 5 AND region IS NOT NULL", group="by-sql")
    async def by_sql(body: str) -> None: ...

    async with TestRocketBroker(broker) as br:
        await br.publish("a", "orders", tags="open")
        assert not by_tag.mock.called
        await br.publish("b", "orders", tags="sent")
        by_tag.mock.assert_called_once_with("b")
        assert not by_sql.mock.called
        await br.publish("c", "orders", headers={"amount": 6, "region": "EU"})
        by_sql.mock.assert_called_once_with("c")


async def test_each_group_gets_a_message_once(broker: RocketBroker) -> None:
    other = RocketBroker(logger=None)

    @broker.subscriber("orders", group="billing")
    async def first(body: str) -> None: ...

    @other.subscriber("orders", group="billing")
    async def second(body: str) -> None: ...

    @broker.subscriber("orders", group="mail")
    async def mail(body: str) -> None: ...

    async with TestRocketBroker(broker, other) as (br, _):
        await br.publish("a", "orders")
        assert first.mock.call_count + second.mock.call_count == 1
        mail.mock.assert_called_once_with("a")


async def test_delayed_messages_are_held_until_time_passes_or_they_are_recalled(
    broker: RocketBroker,
) -> None:
    @broker.subscriber("reminders")
    async def remind(body: str) -> None: ...

    tester = TestRocketBroker(broker)
    async with tester as br:
        at = datetime.now().astimezone() + timedelta(minutes=5)
        await br.publish("in five minutes", "reminders", deliver_at=at)
        receipt = await br.publish("in a minute", "reminders", delay=60)
        recalled = await br.publish("never", "reminders", delay=timedelta(seconds=1))
        assert [message.body for message in tester.delayed] == [
            *(b"never", b"in a minute", b"in five minutes")
        ]
        assert await br.recall(recalled) == recalled.message_id
        with pytest.raises(CometError, match="does not wait"):
            await br.recall(recalled)
        assert await tester.advance(59) == 0
        assert not remind.mock.called
        assert await tester.advance(1) == 1
        remind.mock.assert_called_once_with("in a minute")
        with pytest.raises(CometError, match="does not wait"):
            await br.recall(receipt)
        kept = await br.publish("never", "reminders", delay=1)
        assert await br.recall(kept.recall_handle or "", "reminders") == kept.message_id
        assert await tester.advance(timedelta(minutes=4)) == 1
        assert tester.delayed == []


async def test_a_request_returns_the_result_with_the_callers_correlation_id(
    broker: RocketBroker,
) -> None:
    @broker.subscriber("quotes")
    async def quote(currency: str) -> RocketResponse:
        return RocketResponse({currency: 2}, headers={"source": "test"})

    async with TestRocketBroker(broker) as br:
        reply = await br.request("EUR", "quotes", correlation_id="mine")
        assert await reply.decode() == {"EUR": 2}
        assert reply.correlation_id == "mine"
        assert reply.headers["source"] == "test"
        with pytest.raises(SubscriberNotFound):
            await br.request("EUR", "nobody")


async def test_a_transaction_is_sent_in_the_test_only(broker: RocketBroker) -> None:
    @broker.transaction("orders", group="shop")
    async def place(order: Order) -> bool:
        return order.amount < 100

    @place.check
    async def is_placed(order: Order) -> bool:
        return True

    @broker.subscriber("orders")
    async def bill(order: Order) -> None: ...

    async with TestRocketBroker(broker):
        assert (await place(Order(id="1"))).state is LocalState.COMMIT
        assert (await place(Order(id="2", amount=100))).state is LocalState.ROLLBACK
        bill.mock.assert_called_once_with({"id": "1", "amount": 1})
    assert place.producer is None  # a start makes a real one


@pytest.mark.parametrize("reply_to", ["not a topic!", "rocketmq-client:nobody", "x" * 300])
async def test_a_result_for_an_address_that_is_none_is_dropped(
    broker: RocketBroker, reply_to: str
) -> None:
    """Otherwise the sender of such a message would have its handler fail and run again."""

    @broker.subscriber("orders")
    async def bill(body: str) -> str:
        return "billed"

    tester = TestRocketBroker(broker)
    async with tester as br:
        await br.publish("42", "orders", reply_to=reply_to)
        bill.mock.assert_called_once_with("42")
        assert [message.topic for message in tester._client.sent] == ["orders"]


async def test_a_request_has_a_limit_of_time(broker: RocketBroker) -> None:
    @broker.subscriber("slow")
    async def slow(body: str) -> None:
        await asyncio.Event().wait()

    async with TestRocketBroker(broker) as br:
        with pytest.raises(TimeoutError):
            await br.request("x", "slow", timeout=1e-24)


async def test_a_batch_is_one_list(broker: RocketBroker) -> None:
    @broker.subscriber("numbers", batch=True)
    @broker.publisher("doubled", batch=True)
    async def double(numbers: list[int], message: RocketMessageContext) -> list[int]:
        assert len(message.batch_headers) == len(numbers)
        return [2 * number for number in numbers]

    @broker.subscriber("doubled")
    async def single(number: int) -> None: ...

    async with TestRocketBroker(broker) as br:
        await br.publish_batch(1, 2, 3, topic="numbers")
        double.mock.assert_called_once_with([1, 2, 3])
        assert [call.args[0] for call in single.mock.call_args_list] == [2, 4, 6]


async def test_an_empty_body_arrives_as_none(broker: RocketBroker) -> None:
    seen: list[Any] = []

    @broker.subscriber("empty")
    async def handle(body: Any) -> None:
        seen.append(body)

    async with TestRocketBroker(broker) as br:
        await br.publish(None, "empty")
        await br.publish(b"", "empty")
        await br.publish("", "empty")
    assert seen == [b"", b"", ""]


async def test_routers_prefix_topics_and_routes_are_handlers(broker: RocketBroker) -> None:
    async def double(number: int) -> int:
        return 2 * number

    inner = RocketRouter(
        "b-", handlers=[RocketRoute(double, "in", publishers=[RocketPublisher("out")])]
    )
    outer = RocketRouter("a-", routers=[inner])

    @outer.subscriber("b-out")
    async def out(number: int) -> None: ...

    broker.include_router(outer)
    async with TestRocketBroker(broker) as br:
        await br.publish(21, "a-b-in")
        out.mock.assert_called_once_with(42)
    with pytest.raises(TypeError, match="expected a RocketRouter"):
        broker.include_router(RocketBrokerLike())  # type: ignore[arg-type]


class RocketBrokerLike:
    pass


async def test_filters_parsers_decoders_and_dependencies(broker: RocketBroker) -> None:
    async def session() -> AsyncIterator[str]:
        yield "session"

    sub = broker.subscriber("mixed", decoder=lambda message: message.body.decode())

    @sub(filter=lambda message: message.content_type == "application/json")
    async def as_json(body: Any, used: str = Depends(session)) -> None:
        assert used == "session"

    @sub
    async def others(body: str, tag: Annotated[Any, Context("message.tags")]) -> None:
        assert tag == "x"

    async with TestRocketBroker(broker) as br:
        await br.publish({"a": 1}, "mixed")
        as_json.mock.assert_called_once_with('{"a":1}')
        await br.publish("text", "mixed", tags="x")
        others.mock.assert_called_once_with("text")


async def test_what_cannot_be_decoded_is_told_apart(broker: RocketBroker) -> None:
    @broker.subscriber("orders")
    async def bill(order: Order) -> None: ...

    async with TestRocketBroker(broker) as br:
        with pytest.raises(ValidationError):
            await br.publish({"amount": "many"}, "orders")
        with pytest.raises(ValueError, match="Expecting property name") as raised:
            await br.publish(b"{", "orders", headers={"content-type": "application/json"})
        assert "topic orders cannot be decoded as application/json" in raised.value.__notes__[0]


@pytest.mark.parametrize(
    ("options", "met"),
    [
        ({"pop": True, "ordered": True}, "either pop or ordered"),
        ({"tags": "a", "sql": "b > 1"}, "either tags or sql"),
        ({"ordered": True, "broadcast": True}, "either ordered or broadcast"),
        ({"invisible": 5}, "invisible is only for pop=True"),
        ({"max_records": 5}, "max_records is only for batch=True"),
        ({"auto_offset_reset": "first"}, "'first': expected 'earliest' or 'latest'"),
        ({"retry": 5}, "retry=5: expected a retry policy"),
        ({"max_workers": 0, "pop": True}, "max_workers=0: expected 1 or more"),
    ],
)
def test_options_that_are_wrong_or_exclude_each_other(
    broker: RocketBroker, options: dict[str, Any], met: str
) -> None:
    with pytest.raises(SetupError, match=met):
        broker.subscriber("orders", **options)


async def test_a_name_that_no_option_has_is_refused(broker: RocketBroker) -> None:
    """Otherwise ``tag=`` would drop the filter, and all messages would be handled."""
    wrong: Any = {"tag": "paid"}
    hint = "there is no option 'tag'; did you mean tags"
    makers: list[Callable[..., Any]] = [
        partial(broker.subscriber, "orders"),
        partial(broker.publisher, "orders"),
        lambda **wrong: broker.transaction("orders", group="shop", **wrong)(print),
        partial(broker.transaction, "orders", group="shop"),
        partial(RocketResponse, "42"),
    ]
    for make in makers:
        with pytest.raises(TypeError, match=hint):
            make(**wrong)
    with pytest.raises(
        TypeError, match="there is no option 'middleware'; did you mean middlewares"
    ):
        RocketRouter(middleware=())  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="there is no option 'log_levle'; did you mean log_level"):
        RocketBroker(log_levle=1)  # type: ignore[call-arg]
    async with TestRocketBroker(broker) as br:
        for publish in (br.publish, br.request, br.publisher("orders").publish):
            with pytest.raises(TypeError, match=hint):
                await publish("42", "orders", **wrong)


async def test_one_key_may_be_a_text(broker: RocketBroker) -> None:
    @broker.subscriber("orders")
    async def bill(body: str, keys: Annotated[Any, Context("message.keys")]) -> None:
        assert keys == ["order-42"]

    async with TestRocketBroker(broker) as br:
        await br.publish("x", "orders", keys="order-42")
        bill.mock.assert_called_once()


async def test_groups_are_told_apart_and_named_after_topic_and_handler() -> None:
    broker = RocketBroker(group="shop", ack_policy=AckPolicy.MANUAL)
    subs = [broker.subscriber("orders") for _ in range(2)]
    for sub in subs:

        @sub
        async def bill(body: str) -> None: ...

    broker._number_subscribers()
    assert [sub.group for sub in subs] == ["shop-orders-bill", "shop-orders-bill-2"]
    assert [sub.ack_policy for sub in subs] == [AckPolicy.MANUAL] * 2


async def test_a_topic_that_rocketmq_cannot_have_is_refused_at_the_start() -> None:
    broker = RocketBroker(logger=None)
    broker.subscriber("orders.new")
    with pytest.raises(InvalidNameError, match=r"orders\.new"):
        await broker.subscribers[0].start()


async def test_a_negative_delay_settles_nothing() -> None:
    settlement = Settlement(StoredMessage.of(Message("orders", b"42")), None)
    with pytest.raises(ConfigError, match="expected 0 seconds or more"):
        await settlement.settle(AckStatus.NACKED, -1)
    assert settlement.verdict is None


async def test_an_application_starts_with_the_test_broker(broker: RocketBroker) -> None:
    app = FastStream(broker)
    started: list[str] = []
    app.after_startup(lambda: started.append("yes"))
    from faststream import TestApp

    async with TestRocketBroker(broker), TestApp(app):
        assert started == ["yes"]
