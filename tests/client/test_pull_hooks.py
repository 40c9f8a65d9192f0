"""Pull consumers with filters, hooks, traces, namespaces, and topics that do not exist yet."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from cometmq.client import (
    AdminClient,
    ClientError,
    ClientInstance,
    ConfigError,
    Filter,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    StartFrom,
    StoredMessage,
)
from cometmq.client.hooks import ConsumeEnd, ConsumeHook, DeliveryContext, FilterHook
from cometmq.client.trace.records import ConsumeAfter
from support.checks.waiting import until

FOUND_S = 120.0


async def send(instance: ClientInstance, queue: MessageQueue, count: int) -> None:
    """Send numbered messages."""
    async with Producer(instance=instance, group="pull-tests") as producer:
        for number in range(count):
            await producer.send(Message(queue.topic, str(number).encode()), queue=queue)


async def take(consumer: PullConsumer, count: int) -> list[StoredMessage]:
    """The next messages, one at a time."""
    async with asyncio.timeout(FOUND_S):
        return [await anext(consumer) for _ in range(count)]


async def test_a_filter_that_no_broker_serves_is_refused_before_anything_is_read(
    instance: ClientInstance, topic: str, group: str
) -> None:
    """Brokers filter by properties only if they are set to."""
    wanted = {topic: Filter.sql("a > 5")}
    with pytest.raises(ConfigError, match=r"cannot filter .* by 'a > 5'"):
        await PullConsumer(instance=instance, group=group, subscriptions=wanted).start()

    async with PullConsumer(instance=instance, group=group) as consumer:
        with pytest.raises(ConfigError, match="cannot filter"):
            await consumer.subscribe(topic, Filter.sql("a > 5"))
        await consumer.assign([])


async def test_two_consumers_of_a_group_do_not_share_connections(
    instance: ClientInstance, topic: str, group: str
) -> None:
    """The one that was first goes on, and still answers for the group."""
    async with (
        PullConsumer(instance=instance, group=group, subscriptions={topic: "*"}),
        AdminClient(instance=instance) as admin,
    ):
        with pytest.raises(ClientError, match="already"):
            await PullConsumer(instance=instance, group=group).start()

        info = await admin.running_info(group, instance.client_id)
    assert [wanted.topic for wanted in info.subscription_set] == [topic]


class OnlyEven(FilterHook):
    """Lets even numbers pass."""

    def keep(
        self, group: str, queue: MessageQueue, messages: list[StoredMessage]
    ) -> list[StoredMessage]:
        return [message for message in messages if int(message.body) % 2 == 0]


class Seen(ConsumeHook):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[bytes], ConsumeEnd | None]] = []

    def before(self, context: DeliveryContext) -> None:
        self.calls.append(("before", [m.body for m in context.messages], context.end))

    def after(self, context: DeliveryContext) -> None:
        self.calls.append(("after", [m.body for m in context.messages], context.end))


async def test_hooks_filter_and_see_what_is_handed_out_and_finished(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    seen = Seen()
    await send(instance, queues[0], 5)
    async with PullConsumer(
        instance=instance, group=group, start_from=StartFrom.FIRST, hooks=[OnlyEven(), seen]
    ) as consumer:
        await consumer.assign(queues[:1])
        assert [message.body for message in await take(consumer, 2)] == [b"0", b"2"]
        consumer.take_back()
        await take(consumer, 1)

    assert seen.calls == [
        ("before", [b"0"], None),
        ("after", [b"0"], ConsumeEnd.SUCCESS),
        ("before", [b"2"], None),
        ("after", [b"2"], ConsumeEnd.FAILED),
        ("before", [b"2"], None),
        ("after", [b"2"], ConsumeEnd.SUCCESS),
    ]


async def test_messages_that_a_hook_takes_out_count_as_consumed(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    await send(instance, queues[0], 2)
    async with PullConsumer(
        instance=instance, group=group, start_from=StartFrom.FIRST, hooks=[OnlyEven()]
    ) as consumer:
        await consumer.assign(queues[:1])
        await take(consumer, 1)
        await consumer.commit()

        assert await consumer.committed(queues[0]) == 2


async def test_what_is_handed_out_is_traced(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    await send(instance, queues[0], 1)
    async with PullConsumer(
        instance=instance, group=group, start_from=StartFrom.FIRST, trace=True
    ) as consumer:
        await consumer.assign(queues[:1])
        (message,) = await take(consumer, 1)
    async with AdminClient(instance=instance) as admin:

        async def traced() -> bool:
            records = await admin.trace(message.message_id)
            return any(isinstance(record, ConsumeAfter) for record in records)

        await until(traced)


async def test_a_subscribed_topic_is_read_once_it_exists(
    name_servers: str, instance: ClientInstance, group: str
) -> None:
    topic = f"t-{uuid.uuid4().hex}"
    async with (
        PullConsumer(
            name_servers,
            group=group,
            start_from=StartFrom.FIRST,
            subscriptions={topic: "*"},
            rebalance_ms=1000,
        ) as consumer,
        AdminClient(instance=instance) as admin,
    ):
        (queue,) = await admin.create_topic(topic, queues=1)
        await send(instance, queue, 1)

        (message,) = await take(consumer, 1)
    assert message.topic == topic


async def test_names_are_shown_without_the_namespace_they_have_on_the_wire(
    name_servers: str, instance: ClientInstance, group: str
) -> None:
    plain = f"t-{uuid.uuid4().hex}"
    async with AdminClient(instance=instance) as admin:
        (wrapped,) = await admin.create_topic(f"shop%{plain}", queues=1)
        await send(instance, wrapped, 3)
        async with PullConsumer(
            name_servers, group=group, start_from=StartFrom.FIRST, namespace="shop"
        ) as consumer:
            (queue,) = await consumer.fetch_queues(plain)
            assert queue.topic == plain
            await consumer.assign([queue])
            messages = await take(consumer, 2)
            consumer.pause(queue)
            consumer.resume(queue)
            await consumer.commit({queue: 1})
            committed = await admin.committed(f"shop%{group}", f"shop%{plain}")

            assert {message.topic for message in messages} == {plain}
            assert consumer.queues() == [queue]
            assert consumer.position(queue) == 2
            assert committed == {wrapped: 1}
