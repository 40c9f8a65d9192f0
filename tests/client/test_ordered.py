"""Consuming in order, on whole clusters."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from concurrent.futures import Executor

import pytest
from servers import Cluster

from cometmq.client import (
    AdminClient,
    ClientInstance,
    ConsumedInOrder,
    ConsumeLater,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    StoredMessage,
)
from cometmq.client._connection.instance import core_of
from cometmq.model.errors import CometError
from cometmq.protocol.bodies.group import LockBatchRequestBody, LockBatchResponseBody
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from support.brokers.clusters import COMET
from support.checks.waiting import WAIT_S, until
from support.clients.consumer_inputs import from_the_first
from support.clients.dead_letters import dead_letters
from support.clients.recording_handlers import FailsAtFirst, Seen


async def send_numbers(producer: Producer, queue: MessageQueue, count: int) -> None:
    """Send messages to one queue, whose bodies count from 0 on."""
    for number in range(count):
        await producer.send(Message(topic=queue.topic, body=b"%d" % number), queue=queue)


async def ask_as_somebody_else(
    code: RequestCode, instance: ClientInstance, group: str, queues: list[MessageQueue]
) -> Command:
    """Ask for the locks of the queues, or give them back."""
    route = await core_of(instance).routes.find(queues[0].topic)
    body = LockBatchRequestBody(consumer_group=group, client_id="somebody else", mq_set=queues)
    return await core_of(instance).brokers.call(route.masters()[0], code, body=body.encode())


async def lockable(instance: ClientInstance, group: str, queues: list[MessageQueue]) -> int:
    """How many of the queues somebody else could lock now; those are locked by the asking."""
    answer = await ask_as_somebody_else(RequestCode.LOCK_BATCH_MQ, instance, group, queues)
    return len(LockBatchResponseBody.decode(answer.body).lock_ok_mq_set)


async def test_each_queue_is_consumed_in_order_by_two_members_that_come_and_go(
    target: str, name_servers: str, producer: Producer, queues: list[MessageQueue], group: str
) -> None:
    """Nothing is delivered twice: a queue is unlocked when all that was handled is committed.

    RocketMQ's broker may answer too late to a lock on a busy machine. The queue is lost then, and
    what is not committed is delivered again.
    """
    topic, seen = queues[0].topic, Seen()
    running: defaultdict[int, int] = defaultdict(int)

    async def handle(message: StoredMessage) -> None:
        running[message.queue_id] += 1
        assert running[message.queue_id] == 1, "two calls for one queue"
        await asyncio.sleep(0.001)
        seen.add(message)
        running[message.queue_id] -= 1

    async def feed() -> None:
        for number in range(400):
            queue = queues[number % 4]
            await producer.send(Message(topic=topic, body=b"%d" % (number // 4)), queue=queue)
            await asyncio.sleep(0.005)

    options = from_the_first(group, topic) | {"handler": handle, "ordered": True}
    async with PushConsumer(name_servers, **options) as one:
        feeding = asyncio.create_task(feed())
        await seen.count(50)
        async with PushConsumer(name_servers, **options) as two:
            await until(lambda: len(one.queues()) == 2 and len(two.queues()) == 2)
            await feeding
        await seen.until(lambda: len({(m.queue_id, m.body) for m in seen.messages}) == 400)

    for number in range(4):
        bodies = [int(message.body) for message in seen.messages if message.queue_id == number]
        assert list(dict.fromkeys(bodies)) == list(range(100))
        assert target != COMET or len(bodies) == 100, bodies


@pytest.mark.long_elsewhere
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
async def test_two_members_keep_their_queues_over_a_restart_of_the_broker(
    cluster: Cluster,
    starter: Executor,
    name_servers: str,
    instance: ClientInstance,
    producer: Producer,
    queues: list[MessageQueue],
    group: str,
    caplog: pytest.LogCaptureFixture,
    *,
    killed: bool,
) -> None:
    """No queue is consumed by two members at a time, and none goes back."""
    topic, seen = queues[0].topic, Seen()
    running: Counter[int] = Counter()
    handled: Counter[int] = Counter()
    overlapping: list[int] = []

    async def handle(message: StoredMessage) -> None:
        running[message.queue_id] += 1
        if running[message.queue_id] > 1:
            overlapping.append(message.queue_id)
        await asyncio.sleep(0.001)
        seen.add(message)
        handled[message.queue_id] += 1
        running[message.queue_id] -= 1

    async def send_more() -> None:
        """Send to each queue until each has brought 100 more messages."""
        goal = {queue.queue_id: handled[queue.queue_id] + 100 for queue in queues}
        while any(handled[number] < goal[number] for number in goal):
            for queue in queues:
                with contextlib.suppress(CometError):
                    await producer.send(Message(topic=topic, body=b"x"), queue=queue)

    options = from_the_first(group, topic) | {"handler": handle, "ordered": True}
    async with (
        PushConsumer(name_servers, **options) as one,
        PushConsumer(name_servers, **options) as two,
    ):
        members = {one.client_id, two.client_id}
        await until(lambda: len(one.queues()) == 2 and len(two.queues()) == 2)
        before = [one.queues(), two.queues()]
        await send_more()
        caplog.clear()
        caplog.set_level(logging.INFO)
        loop = asyncio.get_running_loop()

        async def both_listed() -> bool:
            with contextlib.suppress(CometError):
                return set((await core_of(instance).members(group, topic)).client_ids) == members
            return False

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send_more())
            if killed:
                await loop.run_in_executor(starter, cluster.kill_broker)
                await loop.run_in_executor(starter, cluster.start_broker)
            else:
                await loop.run_in_executor(starter, cluster.restart_broker)
            await until(both_listed, timeout=WAIT_S)
        await send_more()
        assert [one.queues(), two.queues()] == before
        moves = [each.message for each in caplog.records if "queues assigned" in each.message]

    assert moves == []
    assert overlapping == []
    for queue in queues:
        offsets = [each.queue_offset for each in seen.messages if each.queue_id == queue.queue_id]
        assert offsets == list(range(len(offsets)))


async def test_a_failing_message_holds_up_its_queue_and_no_other(
    name_servers: str, producer: Producer, queues: list[MessageQueue], group: str
) -> None:
    topic, seen = queues[0].topic, Seen()

    async def handle(message: StoredMessage) -> ConsumedInOrder:
        seen.add(message)
        failing = message.body == b"0" and message.reconsume_times < 3
        failing = failing and message.queue_id == 0
        return ConsumedInOrder.SUSPEND if failing else ConsumedInOrder.SUCCESS

    for queue in queues[:2]:
        await send_numbers(producer, queue, 3)
    async with PushConsumer(
        name_servers, handler=handle, ordered=True, suspend_ms=50, **from_the_first(group, topic)
    ):
        await seen.count(9)

    bodies = {
        number: [message.body for message in seen.messages if message.queue_id == number]
        for number in (0, 1)
    }
    assert bodies == {0: [b"0", b"0", b"0", b"0", b"1", b"2"], 1: [b"0", b"1", b"2"]}


async def test_a_message_that_failed_too_often_is_a_dead_letter_with_its_error(
    name_servers: str, producer: Producer, queues: list[MessageQueue], group: str
) -> None:
    topic, seen = queues[0].topic, Seen()

    async def handle(message: StoredMessage) -> None:
        seen.add(message)
        if message.body == b"0":
            raise ValueError("broken for good")

    await send_numbers(producer, queues[0], 2)
    async with PushConsumer(
        name_servers,
        handler=handle,
        ordered=True,
        suspend_ms=10,
        retries_max=2,
        **from_the_first(group, topic),
    ):
        await seen.until(lambda: b"1" in seen.bodies)
        [dead] = await dead_letters(name_servers, group)

    assert seen.bodies == [b"0", b"0", b"0", b"1"]
    assert dead.body == b"0"
    assert dead.properties["CONSUME_ERROR"] == "builtins.ValueError: broken for good"


async def test_a_message_is_a_dead_letter_at_once_when_the_handler_orders_it(
    name_servers: str, producer: Producer, queues: list[MessageQueue], group: str
) -> None:
    topic, seen = queues[0].topic, FailsAtFirst(ConsumeLater(delay_level=-1))
    await send_numbers(producer, queues[0], 2)
    async with PushConsumer(
        name_servers, handler=seen, ordered=True, **from_the_first(group, topic)
    ):
        await seen.count(2)

    assert seen.bodies == [b"0", b"1"]


async def test_queues_are_locked_while_they_are_owned_and_free_after_the_stop(
    name_servers: str, instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    async with PushConsumer(
        name_servers,
        group=group,
        handler=Seen(),
        ordered=True,
        subscriptions={queues[0].topic: "*"},
    ) as consumer:
        await until(lambda: len(consumer.queues()) == 4)
        assert await lockable(instance, group, queues) == 0
    async with asyncio.timeout(WAIT_S):
        while await lockable(instance, group, queues) < 4:
            await asyncio.sleep(0.01)


async def test_no_message_is_handled_while_somebody_else_has_the_locks(
    name_servers: str,
    instance: ClientInstance,
    producer: Producer,
    queues: list[MessageQueue],
    group: str,
) -> None:
    topic, seen = queues[0].topic, Seen()
    assert await lockable(instance, group, queues) == 4
    await producer.send(Message(topic=topic, body=b"x"))
    async with PushConsumer(
        name_servers, handler=seen, ordered=True, **from_the_first(group, topic)
    ) as consumer:
        await asyncio.sleep(0.5)
        assert (consumer.queues(), seen.messages) == ([], [])
        await ask_as_somebody_else(RequestCode.UNLOCK_BATCH_MQ, instance, group, queues)
        await seen.count(1)
        assert len(consumer.queues()) == 4


async def test_offsets_of_ordered_consumers_are_kept_at_the_stop(
    name_servers: str, producer: Producer, queues: list[MessageQueue], group: str
) -> None:
    topic, seen = queues[0].topic, Seen()
    await send_numbers(producer, queues[0], 10)
    async with PushConsumer(
        name_servers, handler=seen, ordered=True, **from_the_first(group, topic)
    ):
        await seen.count(10)
    async with AdminClient(name_servers) as admin:
        committed = await admin.committed(group, topic)

    assert committed[queues[0]] == 10
