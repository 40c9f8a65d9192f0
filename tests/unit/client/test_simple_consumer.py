"""A simple consumer with a scripted broker: its requests, and the result for each message."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from cometmq.client import (
    BackPressureError,
    ClientClosedError,
    ConfigError,
    ReceiptExpiredError,
    SimpleConsumer,
    StartFrom,
    TopicNotFoundError,
)
from cometmq.client._pop.calls import Deliveries, Delivery, ReceiptHandle
from cometmq.client.settings import SimpleSettings
from cometmq.model.errors import CometError, RemotingError, ResponseError
from cometmq.protocol.bodies.pop import BatchAckMessageRequestBody
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.remoting import Request, Response
from support.brokers.pop_broker import Shop
from support.brokers.scripted import ScriptedBroker, ScriptedCluster, route
from support.checks.waiting import WAIT_S
from support.clients.consumer_inputs import stored

GROUP = "g"


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    made = Shop()
    async with ScriptedCluster([made]) as cluster:
        made.cluster = cluster  # type: ignore[attr-defined]
        yield made


def consumer_of(shop: Shop, **options: Any) -> SimpleConsumer:
    cluster: ScriptedCluster = shop.cluster  # type: ignore[attr-defined]
    options.setdefault("subscriptions", {"t": "*"})
    return SimpleConsumer(cluster.address, group=GROUP, **options)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_message_is_received_and_acknowledged_by_its_receipt(shop: Shop) -> None:
    await shop.put(b"1", b"2")
    async with consumer_of(shop, invisible=timedelta(seconds=20)) as consumer:
        await consumer.ready()
        messages = await consumer.receive(16, 0)
        await consumer.ack(*messages)
        assert consumer.in_flight == 0
        assert await consumer.receive(16, 0) == []

    assert [message.body for message in messages] == [b"1", b"2"]
    assert [(ack.extra_info, ack.offset) for ack in shop.acks] == [
        ("0 1700000000000 20000 3 0 a 0 0", 0),
        ("0 1700000000000 20000 3 0 a 0 1", 1),
    ]
    asked = shop.real_pops[0]
    assert (asked.queue_id, asked.max_msg_nums, asked.invisible_time) == (-1, 16, 20_000)
    assert (asked.poll_time, asked.init_mode, asked.exp) == (0, 1, "*")


async def test_messages_of_a_broker_are_acknowledged_together_and_singly_if_that_fails(
    shop: Shop,
) -> None:
    requests: list[BatchAckMessageRequestBody] = []
    refusals = [Response(ResponseCode.SYSTEM_ERROR, "for now")]

    def ack(request: Request) -> Response:
        requests.append(BatchAckMessageRequestBody.decode(request.body))
        return refusals.pop() if refusals else Response()

    shop.handlers[RequestCode.BATCH_ACK_MESSAGE] = ack
    await shop.put(b"1", b"2", b"3", b"4", b"5", b"6")
    async with consumer_of(shop, invisible=timedelta(seconds=20)) as consumer:
        first = await consumer.receive(2, 0)
        await consumer.ack(*first)
        assert [each.offset for each in shop.acks] == [0, 1], "refused together"
        one, two, extended, alone = await consumer.receive(4, 0)
        await consumer.extend(extended, 20)
        await consumer.ack(alone)
        with pytest.raises(ReceiptExpiredError):
            await consumer.ack(one, two, extended, alone)
        assert consumer.in_flight == 0

    assert [each.offset for each in shop.acks] == [0, 1, 5]
    assert [
        (each.start_offset, each.pop_time, int.from_bytes(each.bit_set, "little"))
        for each in requests[1].acks
    ] == [(2, 1_700_000_000_000, 0b11), (4, 1_700_000_000_001, 0b1)]


async def test_messages_beyond_those_asked_for_go_to_the_next_receive(shop: Shop) -> None:
    shop.surplus = 3
    await shop.put(b"1", b"2", b"3", b"4", b"5")
    async with consumer_of(shop, in_flight_max=4) as consumer:
        first = await consumer.receive(2, 0)
        assert [message.body for message in first] == [b"1", b"2"]
        assert consumer.in_flight == 5
        others = [await consumer.receive(2, 0) for _ in range(2)]
        assert [[each.body for each in found] for found in others] == [[b"3", b"4"], [b"5"]]
        with pytest.raises(BackPressureError):
            await consumer.receive(2, 0)
        await consumer.ack(*first, *others[0], *others[1])

    assert [pop.max_msg_nums for pop in shop.real_pops] == [2]
    assert [ack.offset for ack in shop.acks] == [0, 1, 2, 3, 4]


async def test_the_start_of_a_new_group_is_fixed_when_the_consumer_starts(shop: Shop) -> None:
    async with consumer_of(shop, start_from=StartFrom.FIRST):
        [asked] = shop.pops

    assert (asked.max_msg_nums, asked.init_mode) == (0, 0)


async def test_a_topic_that_another_task_subscribes_during_the_start_is_received(
    shop: Shop,
) -> None:
    reached, go_on, pop = asyncio.Event(), asyncio.Event(), shop._pop

    async def pop_later(request: Request) -> Response:
        reached.set()
        await go_on.wait()
        return await pop(request)

    shop.handlers[RequestCode.POP_MESSAGE] = pop_later
    cluster: ScriptedCluster = shop.cluster  # type: ignore[attr-defined]
    cluster.name_server.routes["u"] = cluster.name_server.routes["t"]
    consumer = consumer_of(shop)
    starting = asyncio.create_task(consumer.start())
    await reached.wait()
    await consumer.subscribe("u")
    await consumer.unsubscribe("t")
    go_on.set()
    await starting
    async with consumer:
        assert [queue.topic for queue in consumer.queues()] == ["u"]

    assert [pop.topic for pop in shop.pops] == ["t", "u"]


async def test_a_receive_waits_at_the_broker_and_returns_as_soon_as_a_message_is_there(
    shop: Shop,
) -> None:
    async with consumer_of(shop) as consumer:
        receiving = asyncio.create_task(consumer.receive(wait=60.0))
        await shop.until(lambda: shop.holds == 1)
        await shop.put(b"1")
        [message] = await receiving

    assert message.body == b"1"


async def test_a_receive_returns_nothing_after_its_wait(shop: Shop) -> None:
    async with consumer_of(shop) as consumer:
        assert await consumer.receive(wait=timedelta(milliseconds=50)) == []
        assert await consumer.receive(wait=0) == []


async def test_an_extended_message_is_acknowledged_by_its_new_receipt(shop: Shop) -> None:
    await shop.put(b"1")
    async with consumer_of(shop, invisible=20.0) as consumer:
        [message] = await consumer.receive()
        await consumer.extend(message, 60.0)
        await consumer.extend(message, timedelta(minutes=2))
        await consumer.ack(message)

    assert [(each.extra_info, each.invisible_time) for each in shop.changes] == [
        ("0 1700000000000 20000 3 0 a 0 0", 60_000),
        ("0 1700000000001 60000 3 0 a 0 0", 120_000),
    ]
    assert [ack.extra_info for ack in shop.acks] == ["0 1700000000002 120000 3 0 a 0 0"]


async def test_an_ack_waits_for_the_new_receipt_of_an_extension_under_way(shop: Shop) -> None:
    await shop.put(b"1")
    async with consumer_of(shop) as consumer:
        [message] = await consumer.receive()
        shop.may_change.clear()
        extending = asyncio.create_task(consumer.extend(message, 60.0))
        await shop.until(lambda: len(shop.changes) == 1)
        acknowledging = asyncio.create_task(consumer.ack(message))
        await cancelled(extending)  # its request goes on
        shop.may_change.set()
        await acknowledging

    assert [ack.extra_info for ack in shop.acks] == ["0 1700000000001 60000 3 0 a 0 0"]


async def test_a_message_is_put_off_and_longer_each_time(shop: Shop) -> None:
    await shop.put(b"1")
    await shop.put(b"2", reconsume_times=2)
    await shop.put(b"3")
    async with consumer_of(shop) as consumer:
        first, again, third = await consumer.receive()
        await consumer.nack(first)
        await consumer.nack(again)
        await consumer.nack(third, delay=5.0)
        with pytest.raises(
            ReceiptExpiredError, match="message ID0 cannot be acknowledged or extended"
        ):
            await consumer.ack(first)

    assert [each.invisible_time for each in shop.changes] == [10_000, 60_000, 5_000]


async def test_a_message_is_settled_once(shop: Shop) -> None:
    await shop.put(b"1", b"2")
    async with consumer_of(shop) as consumer:
        one, two = await consumer.receive()
        await consumer.ack(one)
        for settle in (consumer.ack(one), consumer.nack(one), consumer.extend(one, 9.0)):
            with pytest.raises(ReceiptExpiredError, match="settled before"):
                await settle
        with pytest.raises(ReceiptExpiredError) as failed:
            await consumer.ack(one, stored(0), two)
        assert failed.value.__notes__ == ["2 of 3 messages failed"]

    assert [ack.offset for ack in shop.acks] == [0, 1]


def test_messages_are_renewed_from_a_third_of_their_invisible_time_on_until_it_is_over() -> None:
    deliveries, now = Deliveries(SimpleSettings()), time.monotonic()
    messages = [stored(offset) for offset in range(4)]
    for message, left_s in zip(messages, (29, 21, 19, -1), strict=True):
        receipt = ReceiptHandle.parse(f"0 1 30000 3 0 a 0 {message.queue_offset}")
        deliveries.add(Delivery(message, "t", receipt, now + left_s))

    due = deliveries.of_brokers(to_renew=True)
    assert [each.message for each in due["a"]] == [messages[2]]


async def test_invisible_times_are_renewed_until_the_message_is_settled(shop: Shop) -> None:
    await shop.put(b"1", b"2")
    async with consumer_of(shop, invisible=1.0, renew=True) as consumer:
        slow, quick = await consumer.receive()
        await consumer.ack(quick)
        while len(shop.changes) < 3:
            await shop.moved.wait()
            shop.moved.clear()
        await consumer.ack(slow)
        assert consumer.in_flight == 0

    assert {(change.offset, change.invisible_time) for change in shop.changes} == {(0, 1_000)}
    assert shop.acks[-1].extra_info.startswith("0 1700000000003 1000"), "the last receipt counts"


async def test_what_is_renewed_and_not_settled_is_released_when_the_consumer_closes(
    shop: Shop,
) -> None:
    await shop.put(*(b"%d" % number for number in range(40)))
    async with consumer_of(shop, renew=True) as consumer:
        first = await consumer.receive(32)
        rest = await consumer.receive(32)
        await consumer.ack(first[0])

    released = [(change.offset, change.invisible_time) for change in shop.changes]
    assert sorted(released) == [(offset, 0) for offset in range(1, 40)]
    assert len(rest) == 8


async def test_a_refused_renewal_is_tried_again_after_a_pause(shop: Shop) -> None:
    refused: list[Request] = []

    def refuse_once(request: Request) -> Any:
        shop.handlers[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] = shop._change
        refused.append(request)
        return Response(ResponseCode.SYSTEM_BUSY, "busy")

    shop.handlers[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] = refuse_once
    await shop.put(b"1")
    async with consumer_of(shop, invisible=2.0, renew=True, retry_ms=10) as consumer:
        [message] = await consumer.receive()
        while not shop.changes:
            await shop.moved.wait()
            shop.moved.clear()
        await consumer.ack(message)

    assert len(refused) == 1


@pytest.mark.parametrize("final", [ResponseCode.NO_PERMISSION, ResponseCode.NO_MESSAGE])
async def test_an_acknowledgement_is_tried_again_if_a_retry_may_cure_it(
    shop: Shop, final: int
) -> None:
    def refuse_once(code: int) -> Any:
        def refuse(request: Request) -> Any:
            shop.handlers[RequestCode.ACK_MESSAGE] = shop._ack
            return Response(code, "no")

        return refuse

    await shop.put(b"1", b"2")
    async with consumer_of(shop, settle_again=True, retry_ms=10) as consumer:
        one, two = await consumer.receive()
        shop.handlers[RequestCode.ACK_MESSAGE] = refuse_once(ResponseCode.SYSTEM_BUSY)
        await consumer.ack(one)
        with pytest.raises(ReceiptExpiredError):
            await consumer.ack(one)
        shop.handlers[RequestCode.ACK_MESSAGE] = refuse_once(final)
        with pytest.raises(ResponseError):
            await consumer.ack(two)
        assert consumer.in_flight == 0, "it is not renewed, but redelivered"

    assert [ack.offset for ack in shop.acks] == [0]


def test_a_receipt_is_refused_when_its_invisible_time_is_over() -> None:
    deliveries, message = Deliveries(SimpleSettings(in_flight_max=10)), stored(0)
    handle = ReceiptHandle.parse("0 1 2000 3 0 a 0 0")
    deliveries.add(Delivery(message, "t", handle, time.monotonic() - 1))

    with pytest.raises(ReceiptExpiredError, match="invisible time of 2 s is over"):
        deliveries.of(message)


def test_expired_messages_make_room_and_others_do_not() -> None:
    deliveries, now = Deliveries(SimpleSettings(in_flight_max=3)), time.monotonic()
    for offset, until in ((0, now - 1), (1, now + 100)):
        handle = ReceiptHandle.parse(f"0 1 2000 3 0 a 0 {offset}")
        deliveries.add(Delivery(stored(offset), "t", handle, until))

    assert deliveries.reserve(16) == 2
    with pytest.raises(BackPressureError, match="3 received messages"):
        deliveries.reserve(16)
    deliveries.free(2)
    assert deliveries.reserve(1) == 1


async def test_too_many_messages_in_flight_are_refused(shop: Shop) -> None:
    await shop.put(b"1", b"2", b"3")
    async with consumer_of(shop, in_flight_max=2) as consumer:
        messages = await consumer.receive()
        with pytest.raises(BackPressureError, match="2 received messages"):
            await consumer.receive()
        await consumer.ack(messages[0])
        [third] = await consumer.receive()

    assert third.body == b"3"


async def test_tasks_that_wait_take_no_room(shop: Shop) -> None:
    async with consumer_of(shop, in_flight_max=2) as consumer:
        waiting = [asyncio.create_task(consumer.receive(wait=60.0)) for _ in range(3)]
        await shop.until(lambda: shop.holds == 1)
        for number in range(3):
            await shop.put(b"%d" % number)
            done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await consumer.ack(*task.result())
            waiting = list(rest)

    assert not waiting
    assert len(shop.acks) == 3


async def test_the_limit_holds_for_what_a_cancelled_receive_asked_for(shop: Shop) -> None:
    shop.may_pop.clear()
    await shop.put(b"1", b"2", b"3", b"4")
    async with consumer_of(shop, in_flight_max=3) as consumer:
        receiving = asyncio.create_task(consumer.receive(2))
        await shop.until(lambda: shop.popping == 1)
        await cancelled(receiving)
        shop.may_pop.set()
        messages = [*await consumer.receive(16), *await consumer.receive(16)]
        with pytest.raises(BackPressureError):
            await consumer.receive(16)

    assert [message.body for message in messages] == [b"1", b"2", b"3"]


async def test_what_a_cancelled_receive_asked_for_goes_to_the_next_one(shop: Shop) -> None:
    shop.may_pop.clear()
    await shop.put(b"1", b"2")
    async with consumer_of(shop) as consumer:
        receiving = asyncio.create_task(consumer.receive())
        await shop.until(lambda: shop.popping == 1)
        await cancelled(receiving)
        following = asyncio.create_task(consumer.receive(1))
        shop.may_pop.set()
        [one] = await following
        [two] = await consumer.receive()
        await consumer.ack(one, two)

    assert (one.body, two.body) == (b"1", b"2")
    assert (len(shop.acks), shop.changes) == (2, [])


@pytest.mark.parametrize("closes", [False, True])
async def test_what_no_receive_takes_is_released(shop: Shop, closes: bool) -> None:
    """After a second, or when the consumer is closed."""
    shop.may_pop.clear()
    await shop.put(b"1", b"2")
    async with consumer_of(shop) as consumer:
        receiving = asyncio.create_task(consumer.receive())
        await shop.until(lambda: shop.popping == 1)
        await cancelled(receiving)
        shop.may_pop.set()
        if closes:
            await consumer.close()
        await shop.until(lambda: len(shop.changes) == 2)
        assert consumer.in_flight == 0

    assert [(each.offset, each.invisible_time) for each in shop.changes] == [(0, 0), (1, 0)]


async def test_many_tasks_receive_each_message_once_and_wait_with_one_request(shop: Shop) -> None:
    bodies = [b"%d" % number for number in range(100)]
    seen: list[bytes] = []

    async def receive(consumer: SimpleConsumer) -> None:
        while True:
            messages = await consumer.receive(4, 60.0)
            seen.extend(message.body for message in messages)
            await consumer.ack(*messages)

    async with consumer_of(shop) as consumer:
        tasks = [asyncio.create_task(receive(consumer)) for _ in range(20)]
        await shop.until(lambda: shop.holds == 1)
        for body in bodies:
            await shop.put(body)
        await shop.until(lambda: len(shop.acks) == 100)
        asked = len(shop.real_pops)
        await shop.put(b"last")
        await shop.until(lambda: len(shop.acks) == 101)
        await shop.until(lambda: shop.holds == 1)
        more = len(shop.real_pops) - asked

    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(each) for each in ended} == {ClientClosedError}
    assert sorted(seen) == sorted([*bodies, b"last"])
    assert (shop.holds_max, shop.popping_max) == (1, 1)
    assert more <= 4  # not one for each task that waits


async def test_brokers_take_turns_and_one_that_fails_delays_no_other() -> None:
    one, two, dead = Shop("a"), Shop("b"), ScriptedBroker("c")
    async with ScriptedCluster([one, two, dead]) as cluster:
        await one.put(b"1", b"1", b"1", b"1")
        await two.put(b"2", b"2", b"2", b"2")
        one.cluster = cluster  # type: ignore[attr-defined]
        dead_address = dead.address
        await dead.stop()
        async with consumer_of(one, retry_ms=60_000) as consumer:
            assert len(consumer.queues()) == 3, dead_address
            bodies = [(await consumer.receive(1, 10.0))[0].body for _ in range(6)]

    assert sorted(set(bodies[:3])) == [b"1", b"2"]


async def test_a_receive_says_why_no_broker_could_be_asked(shop: Shop) -> None:
    async with consumer_of(shop, retry_ms=1) as consumer:
        await shop.stop()
        with pytest.raises(RemotingError):
            await consumer.receive(wait=0.05)


async def test_start_is_refused_where_pop_is_not_served(shop: Shop) -> None:
    shop.refusal = Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type not supported")
    consumer = consumer_of(shop)
    with pytest.raises(ResponseError) as refused:
        await consumer.start()

    assert str(refused.value) == (
        "response code 3 (REQUEST_CODE_NOT_SUPPORTED): "
        "broker a refused to pop from t (request type not supported): "
        "SimpleConsumer needs brokers of RocketMQ 5.0 or later with timerWheelEnable=true"
    )
    with pytest.raises(ClientClosedError):
        await consumer.start()


async def test_messages_of_other_tags_are_acknowledged_unseen(shop: Shop) -> None:
    await shop.put(b"other", tags="BB")
    await shop.put(b"wanted", tags="Aa")
    async with consumer_of(shop, subscriptions={"t": "Aa"}) as consumer:
        [message] = await consumer.receive()
        await shop.until(lambda: len(shop.acks) == 1)

    assert message.body == b"wanted"
    assert shop.acks[0].offset == 0
    assert shop.real_pops[0].exp == "Aa"


async def test_a_message_that_came_too_often_is_dead_lettered_unseen(shop: Shop) -> None:
    """As servers of RocketMQ do it for their gRPC clients: brokers do not."""
    await shop.put(b"hopeless", reconsume_times=3)
    await shop.put(b"last try", reconsume_times=2)
    async with consumer_of(shop, retries_max=2) as consumer:
        consumer_topic = route({"a": shop.address})
        shop.cluster.name_server.routes["%RETRY%g"] = consumer_topic  # type: ignore[attr-defined]
        [message] = await consumer.receive()
        await shop.until(lambda: len(shop.acks) == 1)

    assert message.body == b"last try"
    [dead] = shop.sends
    assert (dead.topic, dead.reconsume_times, dead.max_reconsume_times) == ("%RETRY%g", 3, 2)


async def test_a_topic_may_be_created_after_the_start(shop: Shop) -> None:
    cluster: ScriptedCluster = shop.cluster  # type: ignore[attr-defined]
    known = cluster.name_server.routes.pop("t")
    async with consumer_of(shop) as consumer:
        with pytest.raises(TopicNotFoundError):
            await consumer.receive(wait=0)
        with pytest.raises(
            TimeoutError, match=r"not ready after 0\.05 s: no broker serves topic t"
        ):
            await consumer.ready(0.05)
        cluster.name_server.routes["t"] = known
        await shop.put(b"1")
        await consumer.ready()
        [message] = await consumer.receive()

    assert message.body == b"1"


async def test_subscriptions_may_change(shop: Shop) -> None:
    await shop.put(b"1")
    async with consumer_of(shop, subscriptions=None) as consumer:
        with pytest.raises(CometError, match="no topic is subscribed"):
            await consumer.receive(wait=0)
        receiving = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        await consumer.subscribe("t", "a || b")
        await shop.until(lambda: bool(shop.real_pops))
        assert shop.real_pops[0].exp == "a || b"
        await consumer.unsubscribe("t")
        assert consumer.queues() == []
        await cancelled(receiving)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"max_messages": 0}, "max_messages=0: expected 1 to 32"),
        ({"max_messages": 33}, "max_messages=33: expected 1 to 32"),
        ({"wait": -1}, "wait=-1: expected 0 seconds or more"),
        ({"wait": float("nan")}, "wait=nan: expected a number of seconds"),
        ({"invisible": 0.5}, "invisible=0.5: expected 1 to 43200 seconds"),
    ],
)
async def test_wrong_arguments_are_refused(
    shop: Shop, arguments: dict[str, Any], expected: str
) -> None:
    async with consumer_of(shop) as consumer:
        with pytest.raises(ConfigError, match=expected):
            await consumer.receive(**arguments)


async def test_it_is_used_between_its_start_and_its_close(shop: Shop) -> None:
    consumer = consumer_of(shop)
    with pytest.raises(ClientClosedError, match="not running"):
        await consumer.receive()
    await consumer.start()
    await consumer.close()
    with pytest.raises(ClientClosedError, match="is closed"):
        await consumer.ack(stored(0))
    with pytest.raises(ConfigError, match="either invisible or invisible_ms"):
        consumer_of(shop, invisible=3.0, invisible_ms=3_000)


async def test_a_broker_that_does_not_respond_holds_up_no_renewal_at_another() -> None:
    one, two = Shop("a"), Shop("b")
    async with ScriptedCluster([one, two]) as cluster:
        one.cluster = cluster  # type: ignore[attr-defined]
        await one.put(*(b"1" for _ in range(32)))
        await two.put(b"2")
        one.may_change.clear()  # no response
        async with (
            asyncio.timeout(WAIT_S),
            consumer_of(one, invisible=2.0, renew=True, ack_ms=5_000) as consumer,
        ):
            while consumer.in_flight < 33:
                await consumer.receive(32, 10.0)
            await two.until(lambda: bool(two.changes))
            one.may_change.set()


async def test_what_expires_first_is_renewed_first(shop: Shop) -> None:
    await shop.put(*(b"%d" % number for number in range(40)))
    async with consumer_of(shop, invisible=60.0, renew=True) as consumer:
        messages = [*await consumer.receive(32), *await consumer.receive(32)]
        for left_s, message in enumerate(reversed(messages)):
            consumer._deliveries.of(message).expires_at = time.monotonic() + 20 + left_s / 4
        await shop.until(lambda: len(shop.changes) == 40)

    assert sorted(change.offset for change in shop.changes[:32]) == list(range(8, 40))


async def test_an_expired_message_does_not_keep_others_from_their_release(shop: Shop) -> None:
    await shop.put(*(b"%d" % number for number in range(40)))
    async with consumer_of(shop, invisible=20.0, renew=True) as consumer:
        first = await consumer.receive(32)
        await consumer.receive(32)
        consumer._deliveries.of(first[0]).expires_at = time.monotonic()

    assert sorted(change.offset for change in shop.changes) == list(range(1, 40))


async def test_a_broker_that_does_not_respond_keeps_no_other_from_a_release() -> None:
    one, two = Shop("a"), Shop("b")
    async with ScriptedCluster([one, two]) as cluster:
        one.cluster = cluster  # type: ignore[attr-defined]
        await one.put(*(b"1" for _ in range(32)))
        await two.put(b"2")
        one.may_change.clear()
        async with consumer_of(one, invisible=20.0, renew=True, ack_ms=200) as consumer:
            while consumer.in_flight < 33:
                await consumer.receive(32, 10.0)
        one.may_change.set()

    assert [change.offset for change in two.changes] == [0]


async def test_an_ack_that_is_tried_again_ends_with_the_close(shop: Shop) -> None:
    """The task that acknowledges is not cancelled: it goes on, with an error."""
    refusals: list[Request] = []

    def refuse(request: Request) -> Response:
        refusals.append(request)
        return Response(ResponseCode.SYSTEM_BUSY, "busy")

    shop.handlers[RequestCode.ACK_MESSAGE] = refuse
    await shop.put(b"1", b"2")
    async with consumer_of(shop, settle_again=True, retry_ms=60_000, ack_ms=200) as consumer:
        messages = await consumer.receive()
        settling = [asyncio.create_task(consumer.ack(messages[0]))]
        shop.handlers[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] = refuse
        settling.append(asyncio.create_task(consumer.nack(messages[1], 1)))
        while len(refusals) < 2:
            await asyncio.sleep(0)
    for each in settling:
        with pytest.raises(CometError):
            await each


async def test_what_is_received_during_the_close_is_released_too(shop: Shop) -> None:
    shop.may_pop.clear()
    await shop.put(b"1")
    async with consumer_of(shop, renew=True) as consumer:
        receiving = asyncio.create_task(consumer.receive())
        await shop.until(lambda: bool(shop.popping))
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        shop.may_pop.set()
        await closing
    with contextlib.suppress(ClientClosedError):
        await receiving

    assert [(change.offset, change.invisible_time) for change in shop.changes] == [(0, 0)]
