"""Messages through a real server: bodies, properties, queues and times stay as they were sent."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections import defaultdict

import pytest

from cometmq.client import (
    AdminClient,
    ClientError,
    ClientInstance,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PullStatus,
    ResponseError,
    SendReceipt,
    SendStatus,
    StartFrom,
    StoredMessage,
    TopicNotFoundError,
)


async def create(name_servers: str, topic: str, *, queues: int = 1) -> list[MessageQueue]:
    async with AdminClient(name_servers) as admin:
        return await admin.create_topic(topic, queues=queues)


def producer(name_servers: str) -> Producer:
    return Producer(name_servers, group="test-producer", timeout_ms=60_000)


def consumer(name_servers: str, group: str = "test-consumer") -> PullConsumer:
    return PullConsumer(name_servers, group=group, start_from=StartFrom.FIRST)


async def read(
    name_servers: str, topic: str, count: int, *, wanted: str = "*"
) -> list[StoredMessage]:
    """The first messages of a topic, each queue's in order."""
    async with consumer(name_servers, f"read-{topic}") as reading:
        await reading.assign(await reading.fetch_queues(topic), filter=wanted)
        messages: list[StoredMessage] = []
        async with asyncio.timeout(60):
            while len(messages) < count:
                messages += await reading.poll(timeout=10)
    return messages


# --- one message --------------------------------------------------------------------------------


async def test_a_message_comes_out_as_it_went_in(name_servers: str, topic: str) -> None:
    sent = Message(
        topic, "grüße\x00".encode(), tags="a tag", keys=["k1", "k2"], flag=-7,
        properties={"colour": "grün", "n": "1"},
    )  # fmt: skip
    async with producer(name_servers) as sending:
        receipt = await sending.send(sent)

    (message,) = await read(name_servers, topic, 1)

    assert (message.body, message.tags, message.keys) == (sent.body, "a tag", ["k1", "k2"])
    assert (message.topic, message.flag) == (topic, -7)
    assert {name: message.properties[name] for name in sent.properties} == sent.properties
    assert (message.queue, message.queue_offset) == (receipt.queue, receipt.queue_offset)
    assert message.message_id == receipt.message_id
    assert message.offset_message_id == receipt.offset_message_id
    assert message.born_time_ms <= message.store_time_ms <= time.time() * 1000


@pytest.mark.parametrize("size", [1, 4_095, 4_096, 1_000_000])
async def test_bodies_of_any_size_come_out_whole(name_servers: str, topic: str, size: int) -> None:
    body = os.urandom(size // 2) + b"x" * (size - size // 2)
    async with producer(name_servers) as sending:
        await sending.send(Message(topic, body))

    (message,) = await read(name_servers, topic, 1)

    assert message.body == body


async def test_a_one_way_message_arrives(name_servers: str, topic: str) -> None:
    await create(name_servers, topic)
    async with producer(name_servers) as sending:
        message_id = await sending.send_oneway(Message(topic, b"x"))

        (message,) = await read(name_servers, topic, 1)

    assert message.message_id == message_id


async def test_a_delayed_message_waits_for_its_time(name_servers: str, topic: str) -> None:
    await create(name_servers, topic)
    begun_ms = time.time() * 1000
    async with producer(name_servers) as sending:
        await sending.send(Message(topic, b"later", delay_level=1))
        await sending.send(Message(topic, b"now"))

    messages = await read(name_servers, topic, 2)

    stored_ms = {message.body: message.store_time_ms for message in messages}
    assert stored_ms.keys() == {b"now", b"later"}
    assert stored_ms[b"later"] - begun_ms >= 900


async def test_a_body_over_the_brokers_limit_is_refused(name_servers: str, topic: str) -> None:
    """The client's own limit is set higher here, so that the broker's is the one to be met."""
    from cometmq.client.settings import ProducerSettings

    settings = ProducerSettings(body_bytes_max=6 * 1024 * 1024, compress_level=0)
    async with Producer(name_servers, group="big", settings=settings) as sending:
        with pytest.raises(ResponseError) as refusal:
            await sending.send(Message(topic, b"x" * (5 * 1024 * 1024)))

    assert refusal.value.code == 13


async def test_messages_travel_over_tls(name_servers: str, topic: str) -> None:
    """The server makes itself a certificate, so there is nothing to check it against."""
    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unchecked.check_hostname = False
    unchecked.verify_mode = ssl.CERT_NONE
    async with (
        ClientInstance(name_servers, tls=unchecked) as instance,
        Producer(group="secret", instance=instance) as sending,
        PullConsumer(group="secret", instance=instance) as reading,
    ):
        receipt = await sending.send(Message(topic, b"x"))
        result = await reading.pull(receipt.queue, 0)

    assert [message.body for message in result.messages] == [b"x"]


async def test_a_group_joins_an_instance_once(name_servers: str) -> None:
    async with (
        ClientInstance(name_servers) as instance,
        Producer(group="twice", instance=instance) as first,
    ):
        with pytest.raises(ClientError, match="has a Producer of twice already"):
            await Producer(group="twice", instance=instance).start()
        await first.close()
        async with Producer(group="twice", instance=instance):
            pass


# --- many messages ------------------------------------------------------------------------------


async def test_many_sends_at_once_are_each_stored_once(name_servers: str, topic: str) -> None:
    await create(name_servers, topic, queues=4)
    async with producer(name_servers) as sending:
        receipts = await asyncio.gather(
            *(sending.send(Message(topic, str(number).encode())) for number in range(500))
        )

    messages = await read(name_servers, topic, 500)

    assert {receipt.status for receipt in receipts} == {SendStatus.SEND_OK}
    assert sorted(int(message.body) for message in messages) == list(range(500))
    places = {(receipt.queue, receipt.queue_offset) for receipt in receipts}
    assert places == {(message.queue, message.queue_offset) for message in messages}


async def test_sends_take_the_queues_in_turn(name_servers: str, topic: str) -> None:
    await create(name_servers, topic, queues=4)
    async with producer(name_servers) as sending:
        receipts = [await sending.send(Message(topic, b"x")) for _ in range(8)]

    assert sorted(receipt.queue.queue_id for receipt in receipts) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_a_batch_lies_in_one_queue_without_a_gap(name_servers: str, topic: str) -> None:
    batch = [Message(topic, f"{n}".encode(), tags=f"t{n}", keys=[f"k{n}"]) for n in range(20)]
    async with producer(name_servers) as sending:
        receipt = await sending.send_batch(batch)
        result_of = PullConsumer(name_servers, group="batch")
    async with result_of as reading:
        result = await reading.pull(receipt.queue, receipt.queue_offset)

    assert [message.body for message in result.messages] == [item.body for item in batch]
    assert [message.tags for message in result.messages] == [item.tags for item in batch]
    assert [message.queue_offset for message in result.messages] == list(range(20))
    assert ",".join(m.message_id for m in result.messages) == receipt.message_id
    assert len(receipt.offset_message_id.split(",")) == 20


async def test_messages_of_one_key_keep_their_order(name_servers: str, topic: str) -> None:
    await create(name_servers, topic, queues=4)
    async with producer(name_servers) as sending:
        for number in range(30):
            key = f"customer-{number % 3}"
            await sending.send(Message(topic, str(number).encode(), keys=[key]), order_key=key)

    numbers = defaultdict(list)
    for message in await read(name_servers, topic, 30):
        numbers[message.keys[0]].append(int(message.body))

    assert numbers == {f"customer-{n}": list(range(n, 30, 3)) for n in range(3)}


async def test_a_selector_picks_the_queue(name_servers: str, topic: str) -> None:
    await create(name_servers, topic, queues=4)
    async with producer(name_servers) as sending:
        receipts: list[SendReceipt] = [
            await sending.send(Message(topic, b"x"), selector=lambda queues, message: queues[-1])
            for _ in range(3)
        ]

    assert [receipt.queue.queue_id for receipt in receipts] == [3, 3, 3]
    assert [receipt.queue_offset for receipt in receipts] == [0, 1, 2]


# --- filters ------------------------------------------------------------------------------------


async def test_only_messages_with_a_wanted_tag_come(name_servers: str, topic: str) -> None:
    """``Aa`` and ``BB`` have the same hash, which is all that the broker compares."""
    await create(name_servers, topic)
    async with producer(name_servers) as sending:
        for tag in ["Aa", "BB", "c", None, "Aa"]:
            await sending.send(Message(topic, str(tag).encode(), tags=tag))

    messages = await read(name_servers, topic, 3, wanted="Aa || c")

    assert [message.body for message in messages] == [b"Aa", b"c", b"Aa"]


async def test_a_place_moves_past_messages_that_nobody_wants(name_servers: str, topic: str) -> None:
    (queue,) = await create(name_servers, topic)
    async with producer(name_servers) as sending:
        for _ in range(5):
            await sending.send(Message(topic, b"x", tags="unwanted"))

    async with consumer(name_servers, "picky") as reading:
        await reading.assign([queue], filter="wanted")
        async with asyncio.timeout(60):
            while reading.position(queue) != 5:
                assert await reading.poll(timeout=0.5) == []
        await reading.commit()
        assert await reading.committed(queue) == 5


# --- pulling ------------------------------------------------------------------------------------


async def test_a_held_pull_is_answered_as_soon_as_a_message_comes(
    name_servers: str, topic: str
) -> None:
    (queue,) = await create(name_servers, topic)
    async with producer(name_servers) as sending, consumer(name_servers) as reading:
        waiting = asyncio.create_task(reading.pull(queue, 0, wait=60))
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done

        await sending.send(Message(topic, b"here"))
        async with asyncio.timeout(30):  # long before the wait is over
            result = await waiting

    assert [message.body for message in result.messages] == [b"here"]


async def test_a_pull_of_an_empty_queue_says_that_there_is_nothing(
    name_servers: str, topic: str
) -> None:
    (queue,) = await create(name_servers, topic)
    async with consumer(name_servers) as reading:
        result = await reading.pull(queue, 0)

    assert (result.status, result.messages) == (PullStatus.NO_NEW_MESSAGE, [])
    assert (result.next_offset, result.min_offset, result.max_offset) == (0, 0, 0)


async def test_a_pull_beyond_the_end_is_told_where_the_end_is(
    name_servers: str, topic: str
) -> None:
    (queue,) = await create(name_servers, topic)
    async with producer(name_servers) as sending, consumer(name_servers) as reading:
        await sending.send(Message(topic, b"x"))
        result = await reading.pull(queue, 99)

    assert (result.status, result.next_offset) == (PullStatus.OFFSET_ILLEGAL, 1)


async def test_a_pull_takes_no_more_than_asked_for(name_servers: str, topic: str) -> None:
    (queue,) = await create(name_servers, topic)
    async with producer(name_servers) as sending, consumer(name_servers) as reading:
        for number in range(5):
            await sending.send(Message(topic, str(number).encode()))
        result = await reading.pull(queue, 1, max_messages=2)

    assert [message.body for message in result.messages] == [b"1", b"2"]
    assert result.next_offset == 3


async def test_a_topic_nobody_serves_cannot_be_read(name_servers: str) -> None:
    async with consumer(name_servers) as reading:
        with pytest.raises(TopicNotFoundError, match="nobody-serves-this"):
            await reading.fetch_queues("nobody-serves-this")
