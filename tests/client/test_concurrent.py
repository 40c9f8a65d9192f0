"""Consuming in any order, on whole clusters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

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
from cometmq.client.allocation import (
    AllocationStrategy,
    Averagely,
    AveragelyByCircle,
    ByConfiguration,
    ConsistentHash,
    MachineRoomNearby,
)
from cometmq.client.handlers import ConsumeContext
from cometmq.client.hooks import FilterHook
from cometmq.client.push_consumer import PushConsumer
from cometmq.protocol.codes import RequestCode
from support.brokers.clusters import COMET
from support.checks.waiting import until
from support.clients.consumer_inputs import from_the_first
from support.clients.in_flight import InFlight
from support.clients.recording_handlers import Seen
from support.clients.stored_messages import until_queued

WAIT_S = 120.0


async def send(producer: Producer, topic: str, count: int, **options: str) -> list[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    await asyncio.gather(
        *(producer.send(Message(topic=topic, body=body, **options)) for body in bodies)
    )
    return bodies


def places(*seen: Seen) -> set[tuple[int, int]]:
    """Queue and offset of every message that somebody saw, once each."""
    return {(message.queue_id, message.queue_offset) for each in seen for message in each.messages}


async def test_every_message_of_every_queue_is_handled(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    seen = Seen()
    bodies = await send(producer, topic, 100)
    async with PushConsumer(name_servers, handler=seen, **from_the_first(group, topic)) as consumer:
        await seen.count(100)
        bodies += await send(producer, topic, 20)
        await seen.count(120)
        assert {queue.topic for queue in consumer.queues()} == {topic}
        assert len(consumer.queues()) == 4

    assert sorted(seen.bodies) == sorted(bodies)


async def test_a_new_member_goes_on_where_the_last_one_stopped(
    target: str, name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    """RocketMQ may redeliver what its last member was done with."""
    first, second = Seen(), Seen()
    bodies = await send(producer, topic, 50)
    options = {"group": group, "subscriptions": {topic: "*"}, "start_from": StartFrom.FIRST}
    async with PushConsumer(name_servers, handler=first, **options):
        await first.count(50)
    bodies += await send(producer, topic, 30)
    async with PushConsumer(name_servers, handler=second, **options):
        await second.until(lambda: len(places(first, second)) == 80)

    assert {*first.bodies, *second.bodies} == set(bodies)
    if target == COMET:
        assert len(first.bodies) == 50
        assert sorted(first.bodies + second.bodies) == sorted(bodies)


async def test_only_messages_with_a_wanted_tag_are_handled(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    seen = Seen()
    for tag in ("a", "b", "c"):
        await producer.send(Message(topic=topic, body=tag.encode(), tags=tag))
    async with PushConsumer(name_servers, handler=seen, **from_the_first(group, topic, "a || c")):
        await seen.count(2)

    assert sorted(seen.bodies) == [b"a", b"c"]


async def test_two_members_share_the_queues_and_one_takes_all_when_the_other_leaves(
    target: str, name_servers: str, producer: Producer, queues: list[MessageQueue], group: str
) -> None:
    topic = queues[0].topic
    mine: dict[str, list[MessageQueue]] = {}

    def told(name: str) -> Callable[[str, object, Sequence[MessageQueue]], None]:
        def listen(topic: str, all_queues: object, own: Sequence[MessageQueue]) -> None:
            mine[name] = list(own)

        return listen

    async def divided(one: int, two: int) -> None:
        await until(lambda: [len(mine.get(name, [])) for name in ("one", "two")] == [one, two])

    seen = Seen()
    options = {"group": group, "handler": seen, "subscriptions": {topic: "*"}}
    async with PushConsumer(name_servers, on_queues=told("one"), **options):
        await divided(4, 0)
        async with PushConsumer(name_servers, on_queues=told("two"), **options):
            await divided(2, 2)
            assert sorted(mine["one"] + mine["two"]) == sorted(queues)
            await send(producer, topic, 40)
            await seen.until(lambda: len(places(seen)) == 40)
        mine.pop("two")
        await divided(4, 0)
        await send(producer, topic, 40)
        await seen.until(lambda: len(places(seen)) == 80)

    assert target != COMET or len(seen.messages) == 80


@pytest.mark.parametrize(
    "strategy",
    [
        Averagely(),
        AveragelyByCircle(),
        ConsistentHash(),
        MachineRoomNearby(AveragelyByCircle(), lambda queue: "r", lambda client: "r"),
    ],
    ids=lambda strategy: strategy.name,
)
async def test_members_own_what_their_strategy_gives_them(
    name_servers: str, queues: list[MessageQueue], group: str, strategy: AllocationStrategy
) -> None:
    options = {
        "group": group,
        "handler": Seen(),
        "subscriptions": {queues[0].topic: "*"},
        "strategy": strategy,
    }
    async with (
        PushConsumer(name_servers, client_ip="10.0.0.1", **options) as one,
        PushConsumer(name_servers, client_ip="10.0.0.2", **options) as two,
    ):
        ids = sorted([one.client_id, two.client_id])
        for member in (one, two):
            mine = strategy.allocate(group, member.client_id, queues, ids)
            await until(lambda member=member, mine=mine: sorted(member.queues()) == sorted(mine))


async def test_a_member_owns_the_queues_of_its_configuration_alone(
    name_servers: str, producer: Producer, queues: list[MessageQueue], group: str
) -> None:
    seen = Seen()
    for number, queue in enumerate(queues):
        await producer.send(Message(topic=queue.topic, body=b"%d" % number), queue=queue)
    async with PushConsumer(
        name_servers,
        handler=seen,
        **from_the_first(group, queues[0].topic),
        strategy=ByConfiguration([queues[3], queues[1]]),
    ) as consumer:
        await seen.count(2)
        assert sorted(consumer.queues()) == [queues[1], queues[3]]

    assert sorted(seen.bodies) == [b"1", b"3"]


@pytest.mark.parametrize("kind", [PushConsumer, PullConsumer], ids=lambda kind: kind.__name__)
async def test_a_listener_that_cancels_itself_does_not_end_the_dividing(
    name_servers: str, queues: list[MessageQueue], group: str, kind: Callable[..., Any]
) -> None:
    """As one does that awaits a task which somebody cancelled."""
    owned: list[int] = []

    async def listen(topic: str, every: object, mine: Sequence[MessageQueue]) -> None:
        owned.append(len(mine))
        raise asyncio.CancelledError

    options: dict[str, Any] = {"group": group, "subscriptions": {queues[0].topic: "*"}}
    if kind is PushConsumer:
        options["handler"] = Seen()
    async with kind(name_servers, on_queues=listen, **options):
        await until(lambda: owned[-1:] == [4])
        async with kind(name_servers, **options):
            await until(lambda: owned[-1] == 2)
        await until(lambda: owned[-1] == 4)


async def test_a_batch_handler_gets_messages_of_one_queue_together(
    name_servers: str, producer: Producer, queues: list[MessageQueue], group: str
) -> None:
    batches: list[list[StoredMessage]] = []
    seen = Seen()

    async def handle(messages: Sequence[StoredMessage], context: ConsumeContext) -> None:
        assert {message.queue for message in messages} == {context.queue}
        batches.append(list(messages))
        seen.add(*messages)

    await producer.send_batch(
        [Message(topic=queues[0].topic, body=b"%d" % number) for number in range(20)],
        queue=queues[0],
    )
    async with AdminClient(name_servers) as admin:
        await until_queued(admin, queues[0].topic, 20)
    async with PushConsumer(
        name_servers, batch_handler=handle, **from_the_first(group, queues[0].topic), batch_max=8
    ):
        await seen.count(20)

    assert [message.queue_offset for batch in batches for message in batch] == list(range(20))
    assert [len(batch) for batch in batches] == [8, 8, 4]


async def test_a_plain_handler_is_called_in_a_thread(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    import threading

    threads: set[int] = set()
    seen, loop = Seen(), asyncio.get_running_loop()

    def handle(message: StoredMessage) -> None:
        threads.add(threading.get_ident())
        loop.call_soon_threadsafe(seen.add, message)

    await send(producer, topic, 10)
    async with PushConsumer(name_servers, handler=handle, **from_the_first(group, topic)):
        await seen.count(10)

    assert threading.get_ident() not in threads


async def test_a_topic_can_be_subscribed_and_unsubscribed_while_the_consumer_runs(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    seen = Seen()
    async with PushConsumer(
        name_servers, group=group, handler=seen, start_from=StartFrom.FIRST
    ) as consumer:
        await send(producer, topic, 5)
        await consumer.subscribe(topic, Filter.tags("*"))
        await seen.count(5)
        await consumer.unsubscribe(topic)
        await until(lambda: not consumer.queues())

    assert len(seen.messages) == 5


async def test_nothing_is_pulled_while_suspended(
    name_servers: str, producer: Producer, queues: list[MessageQueue], group: str
) -> None:
    """What comes in pulls that a broker holds is pulled again after the resume."""
    topic, seen = queues[0].topic, Seen()
    pulls = InFlight(RequestCode.PULL_MESSAGE, topic)
    async with (
        ClientInstance(name_servers, hooks=[pulls]) as instance,
        PushConsumer(
            instance=instance,
            group=group,
            handler=seen,
            subscriptions={topic: "*"},
            start_from=StartFrom.FIRST,  # what is sent before its queues are divided counts too
        ) as consumer,
    ):
        await send(producer, topic, 4)
        await seen.count(4)
        consumer.suspend()
        assert consumer.suspended
        for queue in queues:
            await producer.send(Message(topic=topic, body=b"held"), queue=queue)
        await until(pulls.is_empty)
        begun = pulls.begun
        await send(producer, topic, 40)
        await asyncio.sleep(0.3)
        assert (pulls.begun, pulls.is_empty()) == (begun, True)
        assert len(seen.messages) == 4
        consumer.resume()
        await seen.count(48)


async def test_the_backlog_can_be_skipped(
    name_servers: str, producer: Producer, queues: list[MessageQueue], group: str
) -> None:
    topic = queues[0].topic
    seen, gate = Seen(), asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        seen.add(message)
        await gate.wait()

    async with PushConsumer(
        name_servers, handler=handle, **from_the_first(group, topic), concurrency=1, persist_ms=100
    ) as consumer:
        await send(producer, topic, 60)
        await seen.count(1)
        async with AdminClient(name_servers) as admin:
            await until_queued(admin, topic, 60)
        await until(lambda: len(consumer.queues()) == 4)
        await consumer.skip_backlog(topic)
        gate.set()
        await producer.send(Message(topic=topic, body=b"new"))
        await seen.until(lambda: b"new" in seen.bodies)
        async with AdminClient(name_servers) as admin:

            async def committed_all() -> bool:
                """Soon, not at once: a pull on its way still carries an offset before the end."""
                ends = await admin.queue_bounds(topic)
                offsets = {queue: bounds.max_offset for queue, bounds in ends.items()}
                return await admin.committed(group, topic) == offsets

            await until(committed_all, timeout=WAIT_S)

    assert len(seen.messages) <= 3


async def test_names_are_shown_without_their_namespace_even_on_a_second_delivery(
    name_servers: str, instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    topic, seen = queues[0].topic, Seen()
    contexts: list[ConsumeContext] = []

    async def handle(messages: Sequence[StoredMessage], context: ConsumeContext) -> None:
        contexts.append(context)
        seen.add(*messages)
        context.delay_level = 1
        if len(seen.messages) == 1:
            raise ValueError

    async with AdminClient(instance=instance) as admin:
        await admin.create_topic(f"shop%{topic}", queues=1)
    async with (
        Producer(name_servers, group="producers", namespace="shop") as producer,
        PushConsumer(
            name_servers, batch_handler=handle, **from_the_first(group, topic), namespace="shop"
        ) as consumer,
    ):
        await producer.send(Message(topic=topic, body=b"x"))
        await seen.count(2)
        assert {queue.topic for queue in consumer.queues()} == {topic}

    assert [message.topic for message in seen.messages] == [topic, topic]
    assert seen.messages[1].reconsume_times == 1
    assert contexts[0].queue == MessageQueue(topic, "broker-a", 0)
    assert {context.group for context in contexts} == {group}


async def test_a_filter_that_was_made_before_the_last_one_replaces_it(
    name_servers: str, producer: Producer, queues: list[MessageQueue], group: str
) -> None:
    """Programs make filters once, and switch between them."""
    topic, seen = queues[0].topic, Seen()
    sent, paid = Filter.tags("sent"), Filter.tags("paid")
    async with PushConsumer(
        name_servers, group=group, handler=seen, subscriptions={topic: paid}, rebalance_ms=3_600_000
    ) as consumer:
        await consumer.ready()
        for number, wanted in enumerate((paid, sent, paid), 1):
            await consumer.subscribe(topic, wanted)
            await producer.send(Message(topic=topic, body=b"x", tags=wanted.expression))
            await seen.count(number)

    assert [message.tags for message in seen.messages] == ["paid", "sent", "paid"]


async def test_what_a_filter_hook_takes_out_counts_as_consumed(
    name_servers: str, producer: Producer, queues: list[MessageQueue], group: str
) -> None:
    topic, seen = queues[0].topic, Seen()

    class Even(FilterHook):
        def keep(
            self, group: str, queue: MessageQueue, messages: list[StoredMessage]
        ) -> list[StoredMessage]:
            return [message for message in messages if int(message.body) % 2 == 0]

    class Broken(FilterHook):
        def keep(
            self, group: str, queue: MessageQueue, messages: list[StoredMessage]
        ) -> list[StoredMessage]:
            raise RuntimeError("a hook's own trouble")

    for number in range(9):
        await producer.send(Message(topic=topic, body=b"%d" % number), queue=queues[0])
    async with PushConsumer(
        name_servers, handler=seen, **from_the_first(group, topic), hooks=[Even(), Broken()]
    ):
        await seen.count(5)
    async with AdminClient(name_servers) as admin:
        committed = await admin.committed(group, topic)

    assert sorted(seen.bodies) == [b"0", b"2", b"4", b"6", b"8"]
    assert committed[queues[0]] == 9


async def test_the_concurrency_can_be_changed_while_messages_are_consumed(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    running = most = 0
    seen, gate = Seen(), asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1
        seen.add(message)

    await send(producer, topic, 40)
    async with PushConsumer(
        name_servers, handler=handle, **from_the_first(group, topic), concurrency=2
    ) as consumer:
        await until(lambda: running == 2)
        consumer.set_concurrency(7)
        await until(lambda: running == 7)
        gate.set()
        await seen.count(40)
        for wrong in (0, 1001):
            with pytest.raises(ConfigError):
                consumer.set_concurrency(wrong)
        with pytest.raises(ClientError, match="runs in another event loop"):
            await asyncio.to_thread(consumer.set_concurrency, 3)

    assert most == 7
