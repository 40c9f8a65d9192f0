"""Messages that are delivered later: by a delay level, and at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from servers import Cluster

from cometmq.client import Message, MessageQueue, Producer, PullConsumer, ResponseError
from cometmq.model import property_names as names
from support.clients.stored_messages import read_all
from support.runner.versions import VERSIONS_5


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def test_a_delay_level_delivers_later(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    """Level 2 of the cluster of these tests is 2 seconds."""
    async with Producer(name_servers, group=group) as producer:
        sent_ms = now_ms()
        receipt = await producer.send(Message(topic, b"later", delay_level=2))
        await producer.send(Message(topic, b"now"))
    got = await read_all(name_servers, queues, 2)

    by_body = {message.body: message for message in got}
    assert by_body.keys() == {b"now", b"later"}
    assert by_body[b"later"].store_time_ms >= sent_ms + 1_900
    assert by_body[b"later"].message_id == receipt.message_id


async def test_a_level_above_the_highest_is_the_highest(
    name_servers: str, queues: list[MessageQueue], topic: str, group: str
) -> None:
    """It is taken; 18 seconds are too long to wait here."""
    async with Producer(name_servers, group=group) as producer:
        receipt = await producer.send(Message(topic, b"x", delay_level=99))

    assert receipt.queue.topic == topic


@pytest.mark.only_on("comet", *VERSIONS_5)
async def test_a_recalled_message_is_not_delivered(name_servers: str) -> None:
    async with (
        Producer(name_servers, group="g") as producer,
        PullConsumer(name_servers, group="readers") as consumer,
    ):
        recalled = await producer.send(Message("recalled", b"recalled", delay=15))
        await producer.send(Message("recalled", b"kept", delay=15))
        assert recalled.recall_handle is not None
        message_id = await producer.recall("recalled", recalled.recall_handle)
        assert message_id == recalled.message_id

        await consumer.assign(await producer.fetch_queues("recalled"))
        got: list[bytes] = []
        async with asyncio.timeout(120):
            while not got:
                got += [message.body for message in await consumer.poll(1.0)]
        got += [message.body for message in await consumer.poll(2.0)]

    assert got == [b"kept"]


@pytest.mark.only_on("comet", *VERSIONS_5)
@pytest.mark.parametrize("how", ["delay", "deliver_at", names.TIMER_DELAY_SEC])
async def test_a_timer_message_is_delivered_when_it_is_due(name_servers: str, how: str) -> None:
    sent_ms = now_ms()
    message = {
        "delay": Message("t", b"later", delay=timedelta(seconds=3)),
        "deliver_at": Message("t", b"later", deliver_at=datetime.now(UTC) + timedelta(seconds=3)),
        names.TIMER_DELAY_SEC: Message("t", b"later", properties={names.TIMER_DELAY_SEC: "3"}),
    }[how]
    message.topic = topic = f"timer-{how.lower()}"
    async with Producer(name_servers, group="g") as producer:
        await producer.send(message)
        queues = await producer.fetch_queues(topic)
    (got,) = await read_all(name_servers, queues, 1)

    assert got.body == b"later"
    assert got.store_time_ms >= sent_ms + 1_900, "brokers count in whole seconds"


@pytest.mark.only_on("comet", *VERSIONS_5)
@pytest.mark.long_on(*VERSIONS_5)
async def test_a_broker_without_timers_refuses_timer_messages(
    make_cluster: Callable[..., Cluster], group: str
) -> None:
    timer = Message("t", b"x", delay=3)
    name_servers = make_cluster({"timerWheelEnable": False}).namesrv
    async with Producer(name_servers, group=group) as producer:
        with pytest.raises(ResponseError):
            await producer.send(timer)
