"""Simple consumers: receive, acknowledge, put off; our brokers and those before 5.0 refuse it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator

import pytest
from servers import Cluster, Settings

from cometmq.client import (
    ClientClosedError,
    ClientInstance,
    Message,
    MessageQueue,
    PopConsumer,
    Producer,
    ReceiptExpiredError,
    SimpleConsumer,
    StoredMessage,
)
from cometmq.client._connection.instance import core_of
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import ResponseCode
from support.checks.waiting import WAIT_S
from support.clients.consumer_inputs import from_the_first
from support.clients.dead_letters import dead_letters
from support.clients.recording_handlers import Seen
from support.runner.versions import POP_SERVERS, VERSIONS_5

pops = pytest.mark.only_on(*POP_SERVERS)


@pytest.fixture(scope="module")
def session_cluster(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster for this file: RocketMQ hands out messages only while its timer wheel turns."""
    settings: Settings = {"timerWheelEnable": True} if target in VERSIONS_5 else {}
    with Cluster(target, tmp_path_factory.mktemp("simple"), settings) as running:
        yield running


async def send(producer: Producer, topic: str, count: int) -> list[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    await asyncio.gather(*(producer.send(Message(topic=topic, body=body)) for body in bodies))
    return bodies


async def receive(consumer: SimpleConsumer, count: int = 1) -> list[StoredMessage]:
    """Receive so many messages."""
    found: list[StoredMessage] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += await consumer.receive(min(32, count - len(found)), 60.0)
    return found


@pytest.mark.only_on("4.9.7")
async def test_it_does_not_start_where_brokers_do_not_serve_pop(
    name_servers: str, topic: str, group: str
) -> None:
    consumer = SimpleConsumer(name_servers, group=group, subscriptions={topic: "*"})
    with pytest.raises(ResponseError, match=r"needs brokers of RocketMQ 5\.0 or later") as refused:
        await consumer.start()

    assert refused.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    with pytest.raises(ClientClosedError):
        await consumer.start()


@pops
async def test_more_members_than_queues_share_the_messages(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    """Six members, one of them a pop consumer, and four queues."""
    bodies = await send(producer, topic, 200)
    seen: list[bytes] = []
    handled = Seen()
    by_member: list[int] = []

    async def consume(number: int) -> None:
        options = from_the_first(group, topic)
        async with SimpleConsumer(name_servers, invisible=60.0, **options) as consumer:
            await consumer.ready()
            count = 0
            while len(seen) + len(handled.bodies) < len(bodies):
                messages = await consumer.receive(4, 0.5)
                await consumer.ack(*messages)
                seen.extend(message.body for message in messages)
                count += len(messages)
            by_member.append(count)

    async with (
        asyncio.timeout(WAIT_S),
        PopConsumer(name_servers, handler=handled, hold_ms=500, **from_the_first(group, topic)),
    ):
        await asyncio.gather(*(consume(number) for number in range(5)))

    assert sorted(seen + handled.bodies) == sorted(bodies)
    assert len(by_member) == 5


@pops
async def test_messages_that_are_acknowledged_together_are_not_redelivered(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    """From several queues, and one of them extended before."""
    await send(producer, topic, 40)
    async with SimpleConsumer(
        name_servers, invisible=2.0, **from_the_first(group, topic)
    ) as consumer:
        await consumer.ready()
        found = [*await receive(consumer, 20), *await receive(consumer, 20)]
        await consumer.extend(found[3], 2.0)
        *acknowledged, left = found
        await consumer.ack(*acknowledged)
        [again] = await receive(consumer)
        assert again.body == left.body
        await consumer.ack(again)
        assert await consumer.receive(wait=1.0) == []


@pops
async def test_a_receive_that_waits_returns_when_a_message_is_sent(
    name_servers: str, instance: ClientInstance, producer: Producer, topic: str, group: str
) -> None:
    async with SimpleConsumer(name_servers, group=group, subscriptions={topic: "*"}) as consumer:
        await consumer.ready()
        assert await consumer.receive(wait=0) == []
        for number in range(3):
            waiting = asyncio.create_task(consumer.receive(wait=60.0))
            await asyncio.sleep(0.3)
            began = time.monotonic()
            await producer.send(Message(topic=topic, body=b"%d" % number))
            [message] = await waiting
            assert message.body == b"%d" % number
            assert time.monotonic() - began < 2.0  # the request is held for 5 s
            await consumer.ack(message)


@pops
async def test_the_brokers_know_where_a_new_group_starts_once_it_is_started(
    instance: ClientInstance, producer: Producer, queues: list[MessageQueue], group: str
) -> None:
    topic = queues[0].topic
    async with SimpleConsumer(instance=instance, group=group, subscriptions={topic: "*"}):
        address = (await core_of(instance).routes.find(topic)).masters()[0]
        offsets = [
            await core_of(instance).brokers.committed(address, group, queue, zero_if_unknown=False)
            for queue in queues
        ]

    assert offsets == [0, 0, 0, 0]


@pops
async def test_a_message_that_is_put_off_comes_again_and_is_counted(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    await producer.send(Message(topic=topic, body=b"x", keys=["k1"]))
    async with SimpleConsumer(name_servers, **from_the_first(group, topic)) as consumer:
        [first] = await receive(consumer)
        await consumer.nack(first, delay=0)
        [again] = await receive(consumer)
        with pytest.raises(ReceiptExpiredError):
            await consumer.ack(first)
        await consumer.ack(again)

    assert (again.topic, again.body, again.keys) == (topic, b"x", ["k1"])
    assert (first.reconsume_times, again.reconsume_times) == (0, 1)


@pops
async def test_only_what_is_not_extended_comes_again(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    await send(producer, topic, 2)
    async with SimpleConsumer(
        name_servers, invisible=1.0, **from_the_first(group, topic)
    ) as consumer:
        extended, expires = await receive(consumer, 2)
        await consumer.extend(extended, 60.0)
        [again] = await receive(consumer)
        assert again.body == expires.body
        with pytest.raises(ReceiptExpiredError, match="is over"):
            await consumer.ack(expires)
        await consumer.extend(again, 60.0)
        await consumer.ack(extended, again)
        assert await consumer.receive(wait=0.5) == []


@pops
async def test_no_message_is_lost_when_receives_are_cancelled_anywhere(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    bodies = await send(producer, topic, 300)
    chance = random.Random(7)
    seen: list[bytes] = []
    async with SimpleConsumer(
        name_servers, invisible=120.0, **from_the_first(group, topic)
    ) as consumer:
        async with asyncio.timeout(WAIT_S):
            while len(seen) < len(bodies):
                found: list[StoredMessage] = []
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(chance.uniform(0.0, 0.02)):
                        found = await consumer.receive(8, 5.0)
                await consumer.ack(*found)
                seen.extend(message.body for message in found)
        assert consumer.in_flight == 0

    assert sorted(seen) == sorted(bodies)


@pops
async def test_a_message_that_came_too_often_is_a_dead_letter(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    await producer.send(Message(topic=topic, body=b"x"))
    async with SimpleConsumer(
        name_servers, retries_max=0, **from_the_first(group, topic)
    ) as consumer:
        [message] = await receive(consumer)
        await consumer.nack(message, delay=0)
        again = asyncio.create_task(receive(consumer))
        [dead] = await dead_letters(name_servers, group)
        assert not again.done()
        again.cancel()

    assert dead.body == b"x"
