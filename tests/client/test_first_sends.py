"""The shortest ways to send and to handle a message, as users of other clients write them."""

from __future__ import annotations

import asyncio

import pytest

import cometmq
from cometmq.client import Message, Producer, PullConsumer, PushConsumer, StoredMessage, blocking

IN_TIME_S = 60


async def test_every_short_send_arrives_as_the_message_would(
    name_servers: str, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", name_servers)
    handled: dict[bytes, StoredMessage] = {}
    complete = asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        handled[message.body] = message
        if len(handled) == 6:
            complete.set()

    async with Producer() as producer, cometmq.Producer(name_servers) as named:
        await producer.send(Message(topic, b"1"))
        await producer.send(topic, b"2", tags="paid", keys=["k"], properties={"a": "b"})
        await (await named.send_soon(topic=topic, body=b"3"))
        await producer.send_nowait(topic, b"4", order_key="42")
        await producer.send_oneway(topic, b"5")
        with blocking.Producer() as plain:
            await asyncio.to_thread(plain.send, topic, b"6", tags="paid")
        async with PushConsumer(topic=topic, group=group, handler=handle):
            await asyncio.wait_for(complete.wait(), IN_TIME_S)

    assert sorted(handled) == [b"1", b"2", b"3", b"4", b"5", b"6"]
    second = handled[b"2"]
    assert (second.tags, second.keys, second.properties["a"]) == ("paid", ["k"], "b")
    assert handled[b"6"].tags == "paid"


async def test_a_pull_consumer_takes_one_topic_by_name(
    name_servers: str, topic: str, group: str
) -> None:
    async with Producer(name_servers) as producer:
        await producer.send(topic, b"1")
    async with PullConsumer(name_servers, topic=topic, group=group) as consumer:
        message = await asyncio.wait_for(anext(consumer), IN_TIME_S)

    assert message.body == b"1"


async def test_a_consumer_that_starts_before_the_first_send_gets_it_at_once(
    name_servers: str, group: str
) -> None:
    """No regular rebalance is due while the test waits."""
    topic = f"{group}-new"
    handled: asyncio.Queue[StoredMessage] = asyncio.Queue()
    consumer = PushConsumer(
        name_servers, topic=topic, group=group, handler=handled.put, rebalance_ms=600_000
    )
    async with consumer, Producer(name_servers) as producer:
        with pytest.raises(TimeoutError):
            await consumer.ready(0.5)
        await producer.send(topic, b"first")
        message = await asyncio.wait_for(handled.get(), IN_TIME_S)

    assert message.body == b"first"
