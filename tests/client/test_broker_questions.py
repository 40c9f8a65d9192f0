"""Requests of administrators to a consumer, which its brokers relay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from cometmq.client import (
    AdminClient,
    ClientInstance,
    Consumed,
    ConsumedInOrder,
    ConsumeLater,
    Message,
    MessageQueue,
    OrderedContext,
    Producer,
    PushConsumer,
    StoredMessage,
)
from cometmq.client._connection.instance import core_of
from cometmq.client.hooks import ConsumeEnd, ConsumeHook, DeliveryContext
from cometmq.model.errors import ResponseError
from cometmq.protocol.bodies.client import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
)
from cometmq.protocol.bodies.group import GetConsumerStatusBody
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.consumer import (
    ConsumeMessageDirectlyRequest,
    GetConsumerRunningInfoRequest,
    InvokeBrokerToGetConsumerStatusRequest,
)
from cometmq.protocol.headers.offset import InvokeBrokerToResetOffsetRequest
from support.checks.waiting import until
from support.clients.consumer_inputs import from_the_first
from support.clients.recording_handlers import Seen


@pytest.fixture
async def broker(instance: ClientInstance, topic: str) -> str:
    """The address of the topic's broker."""
    return (await core_of(instance).routes.find(topic)).masters()[0]


async def reset(
    instance: ClientInstance, broker: str, topic: str, group: str, timestamp_ms: int
) -> None:
    """Order all members of a group to go on at a time; -1 means the end."""
    header = InvokeBrokerToResetOffsetRequest(
        topic=topic, group=group, timestamp=timestamp_ms, is_force=True
    )
    await core_of(instance).brokers.call(broker, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)


async def running_info(
    instance: ClientInstance, broker: str, consumer: PushConsumer, *, stacks: bool = False
) -> ConsumerRunningInfo:
    header = GetConsumerRunningInfoRequest(
        consumer_group=consumer.group, client_id=consumer.client_id, jstack_enable=stacks
    )
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    answer = await core_of(instance).brokers.call(broker, code, header, timeout=10.0)
    return ConsumerRunningInfo.decode(answer.body)


async def consume_directly(
    instance: ClientInstance, broker: str, consumer: PushConsumer, offset_message_id: str
) -> ConsumeMessageDirectlyResult:
    header = ConsumeMessageDirectlyRequest(
        consumer_group=consumer.group,
        client_id=consumer.client_id,
        msg_id=offset_message_id,
        broker_name="broker-a",
    )
    code = RequestCode.CONSUME_MESSAGE_DIRECTLY
    answer = await core_of(instance).brokers.call(broker, code, header, timeout=10.0)
    return ConsumeMessageDirectlyResult.decode(answer.body)


def fetched(consumer: PushConsumer, queues: list[MessageQueue]) -> int:
    """How many messages of the queues wait or are being handled."""
    table = consumer.running_info().mq_table
    return sum(table[queue].cached_msg_count for queue in queues if queue in table)


async def committed_everything(name_servers: str, topic: str, group: str) -> bool:
    async with AdminClient(name_servers) as admin:
        ends = await admin.queue_bounds(topic)
        told = await admin.committed(group, topic)
    return all(told[queue] == bounds.max_offset for queue, bounds in ends.items())


@pytest.mark.parametrize("ordered", [False, True])
async def test_messages_are_consumed_again_after_offsets_were_set_back(
    name_servers: str,
    instance: ClientInstance,
    producer: Producer,
    broker: str,
    queues: list[MessageQueue],
    group: str,
    ordered: bool,
) -> None:
    topic, seen = queues[0].topic, Seen()
    for number in range(12):
        await producer.send(
            Message(topic=topic, body=b"%d" % number), queue=queues[number % len(queues)]
        )
    async with PushConsumer(
        name_servers,
        handler=seen,
        ordered=ordered,
        **from_the_first(group, topic),
        persist_ms=100,
        hold_ms=1000,
    ):
        await seen.count(12)
        # Brokers reset only queues of which the group has committed something.
        async with asyncio.timeout(120):
            while not await committed_everything(name_servers, topic, group):
                await asyncio.sleep(0.05)
        await reset(instance, broker, topic, group, 0)
        await seen.count(24)

    assert sorted(seen.bodies[:12]) == sorted(seen.bodies[12:])
    assert await committed_everything(name_servers, topic, group)


async def test_a_reset_to_the_end_skips_what_was_fetched(
    name_servers: str,
    instance: ClientInstance,
    producer: Producer,
    broker: str,
    queues: list[MessageQueue],
    group: str,
) -> None:
    topic, seen, gate = queues[0].topic, Seen(), asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        seen.add(message)
        await gate.wait()

    for queue in queues:
        await producer.send(Message(topic=topic, body=b"first"), queue=queue)
    async with PushConsumer(
        name_servers,
        handler=handle,
        **from_the_first(group, topic),
        concurrency=4,
        persist_ms=100,
        hold_ms=1000,
    ) as consumer:
        await seen.count(4)
        gate.set()
        async with asyncio.timeout(120):
            while not await committed_everything(name_servers, topic, group):
                await asyncio.sleep(0.05)
        gate.clear()
        for queue in queues:
            for _ in range(10):
                await producer.send(Message(topic=topic, body=b"skipped"), queue=queue)
        await seen.count(8)
        await until(lambda: fetched(consumer, queues) == 40)
        await reset(instance, broker, topic, group, -1)
        await until(lambda: fetched(consumer, queues) == 0)
        gate.set()
        await producer.send(Message(topic=topic, body=b"new"))
        await seen.until(lambda: b"new" in seen.bodies)

    assert seen.bodies.count(b"skipped") == 4, "those that handlers were at already"


async def test_its_running_info_tells_of_settings_queues_and_rates(
    name_servers: str,
    instance: ClientInstance,
    producer: Producer,
    broker: str,
    queues: list[MessageQueue],
    group: str,
) -> None:
    topic, seen = queues[0].topic, Seen()
    async with PushConsumer(
        name_servers, handler=seen, **from_the_first(group, topic, "a || b"), concurrency=7
    ) as consumer:
        await producer.send(Message(topic=topic, body=b"x", tags="a"), queue=queues[0])
        await seen.count(1)
        await until(lambda: len(consumer.queues()) == 4)
        info = await running_info(instance, broker, consumer)
        assert info.jstack is None
        with_stacks = await running_info(instance, broker, consumer, stacks=True)

    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert info.properties["PROP_CONSUMEORDERLY"] == "false"
    assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == "7"
    assert info.properties["PROP_NAMESERVER_ADDR"] == f"{name_servers};"
    assert int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) > 1_600_000_000_000
    assert info.properties["consumeThreadMax"] == "7"
    subscribed = {data.topic: data.sub_string for data in info.subscription_set}
    assert subscribed == {topic: "a || b", f"%RETRY%{group}": "*"}
    assert set(queues) <= info.mq_table.keys()
    assert info.mq_table[queues[0]].commit_offset == 1
    assert info.status_table[topic].consume_ok_tps > 0
    assert "test_broker_questions" in (with_stacks.jstack or "")


async def test_it_tells_where_it_stands(
    name_servers: str,
    instance: ClientInstance,
    producer: Producer,
    broker: str,
    queues: list[MessageQueue],
    group: str,
) -> None:
    topic, seen = queues[0].topic, Seen()
    await producer.send(Message(topic=topic, body=b"x"), queue=queues[1])
    async with PushConsumer(name_servers, handler=seen, **from_the_first(group, topic)) as consumer:
        await seen.count(1)
        await until(lambda: consumer.running_info().mq_table[queues[1]].commit_offset == 1)
        header = InvokeBrokerToGetConsumerStatusRequest(topic=topic, group=group)
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        answer = await core_of(instance).brokers.call(broker, code, header, timeout=10.0)

    table = GetConsumerStatusBody.decode(answer.body).consumer_table
    assert table[consumer.client_id][queues[1]] == 1


@pytest.mark.parametrize(
    ("result", "expected", "end"),
    [
        (None, ConsumeResult.CR_SUCCESS, ConsumeEnd.SUCCESS),
        (Consumed.LATER, ConsumeResult.CR_LATER, ConsumeEnd.FAILED),
        (ConsumeLater(), ConsumeResult.CR_LATER, ConsumeEnd.FAILED),
        (ValueError("no such order"), ConsumeResult.CR_THROW_EXCEPTION, ConsumeEnd.EXCEPTION),
    ],
)
async def test_a_message_is_consumed_directly_when_an_administrator_orders_it(
    name_servers: str,
    instance: ClientInstance,
    producer: Producer,
    broker: str,
    queues: list[MessageQueue],
    group: str,
    result: object,
    expected: ConsumeResult,
    end: ConsumeEnd,
) -> None:
    topic, seen = queues[0].topic, Seen()
    calls: list[tuple[str, bytes, ConsumeEnd | None]] = []

    class Notes(ConsumeHook):
        def before(self, context: DeliveryContext) -> None:
            calls.append(("before", context.messages[0].body, context.end))

        def after(self, context: DeliveryContext) -> None:
            calls.append(("after", context.messages[0].body, context.end))

    async def handle(message: StoredMessage) -> object:
        seen.add(message)
        if isinstance(result, Exception):
            raise result
        return result

    receipt = await producer.send(Message(topic=topic, body=b"x"), queue=queues[0])
    async with PushConsumer(
        name_servers,
        group=group,
        handler=handle,
        hooks=[Notes()],
        subscriptions={topic: "nothing"},
    ) as consumer:
        told = await consume_directly(instance, broker, consumer, receipt.offset_message_id)

    assert calls == [("before", b"x", None), ("after", b"x", end)]
    assert (told.consume_result, told.order, told.auto_commit) == (expected, False, True)
    assert [(each.topic, each.body) for each in seen.messages] == [(topic, b"x")]
    if expected is ConsumeResult.CR_THROW_EXCEPTION:
        assert "no such order" in (told.remark or "")


async def test_a_message_is_consumed_directly_by_an_ordered_consumer(
    name_servers: str,
    instance: ClientInstance,
    producer: Producer,
    broker: str,
    queues: list[MessageQueue],
    group: str,
) -> None:
    async def handle(messages: Sequence[StoredMessage], context: OrderedContext) -> ConsumedInOrder:
        context.auto_commit = False
        return ConsumedInOrder.ROLLBACK

    receipt = await producer.send(Message(topic=queues[0].topic, body=b"x"), queue=queues[0])
    async with PushConsumer(
        name_servers,
        group=group,
        batch_handler=handle,
        ordered=True,
        subscriptions={queues[0].topic: "nothing"},
    ) as consumer:
        told = await consume_directly(instance, broker, consumer, receipt.offset_message_id)

    assert (told.consume_result, told.order, told.auto_commit) == (
        ConsumeResult.CR_ROLLBACK,
        True,
        False,
    )


async def test_nobody_answers_for_a_consumer_that_was_closed(
    name_servers: str, instance: ClientInstance, broker: str, topic: str, group: str
) -> None:
    """The connection lives on with the instance, and so does the client id at the broker."""
    async with ClientInstance(name_servers) as shared:
        one = PushConsumer(instance=shared, group=group, handler=Seen(), subscriptions={topic: "*"})
        other = PushConsumer(
            instance=shared, group=f"{group}-2", handler=Seen(), subscriptions={topic: "*"}
        )
        async with other:
            await one.start()
            await running_info(instance, broker, one)
            await one.close()
            with pytest.raises(ResponseError):
                await running_info(instance, broker, one)
            await running_info(instance, broker, other)


@pytest.mark.parametrize("ordered", [False, True])
async def test_members_that_are_told_of_a_reset_move_at_once_and_never_handle_a_queue_twice(
    make_cluster: Callable[..., Any], ordered: bool
) -> None:
    """Without the broker's own way of resetting, as it is with RocketMQ before 5.0."""
    name_servers = make_cluster({"useServerSideResetOffset": False}).namesrv
    seen, gate = Seen(), asyncio.Event()
    running = most = 0

    async def handle(message: StoredMessage) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        seen.add(message)
        if len(seen.messages) == 4:
            await gate.wait()
        running -= 1

    async with (
        ClientInstance(name_servers) as instance,
        AdminClient(instance=instance) as admin,
        Producer(instance=instance, group="producers") as producer,
    ):
        [queue] = await admin.create_topic("orders", queues=1)
        broker = (await core_of(instance).routes.find("orders")).masters()[0]
        for number in range(3):
            await producer.send(Message(topic="orders", body=b"%d" % number))
        async with PushConsumer(
            name_servers,
            handler=handle,
            ordered=ordered,
            **from_the_first("g", "orders"),
            persist_ms=100,
            concurrency=1,
        ) as consumer:
            await seen.count(3)
            async with asyncio.timeout(120):
                while (await admin.committed("g", "orders"))[queue] != 3:
                    await asyncio.sleep(0.05)
            await producer.send(Message(topic="orders", body=b"3"))
            await seen.count(4)
            await reset(instance, broker, "orders", "g", 0)
            await asyncio.sleep(0.3)
            gate.set()
            await seen.count(8)
            await until(lambda: consumer.running_info().mq_table[queue].cached_msg_count == 0)

    assert seen.bodies == [b"0", b"1", b"2", b"3", b"0", b"1", b"2", b"3"]
    assert most == 1
