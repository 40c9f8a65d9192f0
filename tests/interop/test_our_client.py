"""Our own client against official name servers and brokers of both lines."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
from servers import Cluster

from cometmq.client import (
    AdminClient,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    StartFrom,
    StoredMessage,
)
from cometmq.client._connection.instance import ClientCore
from support.runner.versions import VERSIONS

FOUND_SECONDS_MAX = 120
"""An official broker fills queues and index a moment after it has answered a send."""


@pytest.fixture(scope="module", params=VERSIONS)
def name_servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    with Cluster(request.param, tmp_path_factory.mktemp("official")) as cluster:
        yield cluster.namesrv


@pytest.fixture
async def instance(name_servers: str) -> AsyncIterator[ClientCore]:
    async with ClientCore(name_servers) as running:
        yield running


@pytest.fixture
async def queues(instance: ClientCore) -> list[MessageQueue]:
    """The two queues of a new topic."""
    async with AdminClient(instance=instance) as admin:
        return await admin.create_topic(f"t-{uuid.uuid4().hex}", queues=2)


async def take(reading: PullConsumer, count: int) -> list[StoredMessage]:
    async with asyncio.timeout(FOUND_SECONDS_MAX):
        return [await anext(reading) for _ in range(count)]


async def test_every_way_of_sending_is_understood(
    instance: ClientCore, queues: list[MessageQueue]
) -> None:
    topic = queues[0].topic
    large = b"large " + b"0123456789" * 1000
    async with (
        Producer(group="p", instance=instance, timeout_ms=60_000) as sending,
        PullConsumer(group=f"g-{topic}", start_from=StartFrom.FIRST, instance=instance) as reading,
    ):
        await reading.assign(queues, filter="red || blue")
        receipt = await sending.send(
            Message(topic, "größer".encode(), tags="red", keys=["k"], properties={"p": "ünï"})
        )
        await sending.send(Message(topic, large, tags="blue"))
        await sending.send(Message(topic, b"unwanted", tags="green"))
        await sending.send_oneway(Message(topic, b"one-way", tags="red"))
        batch = [Message(topic, b"batch %d" % n, tags="red") for n in range(3)]
        await sending.send_batch(batch, order_key="one queue")
        await sending.send(Message(topic, b"delayed", tags="red", delay_level=1))

        messages = await take(reading, 7)

    bodies = [message.body for message in messages]
    expected = ["größer".encode(), large, b"one-way", *(item.body for item in batch), b"delayed"]
    assert sorted(bodies) == sorted(expected)
    assert [body for body in bodies if body.startswith(b"batch")] == [b.body for b in batch]
    first = next(message for message in messages if message.body == "größer".encode())
    assert (first.message_id, first.offset_message_id) == (
        receipt.message_id,
        receipt.offset_message_id,
    )
    assert (first.tags, first.keys, first.properties["p"]) == ("red", ["k"], "ünï")


async def test_a_group_keeps_its_place(instance: ClientCore, queues: list[MessageQueue]) -> None:
    queue, group = queues[0], f"g-{queues[0].topic}"
    async with Producer(group="p", instance=instance, timeout_ms=60_000) as sending:
        for number in range(6):
            await sending.send(Message(queue.topic, b"%d" % number), queue=queue)
    async with PullConsumer(group=group, start_from=StartFrom.FIRST, instance=instance) as reading:
        await reading.assign([queue])
        assert [m.body for m in await take(reading, 4)] == [b"0", b"1", b"2", b"3"]
        await reading.commit()
    async with PullConsumer(group=group, start_from=StartFrom.FIRST, instance=instance) as reading:
        await reading.assign([queue])
        assert [m.body for m in await take(reading, 2)] == [b"4", b"5"]
        await reading.seek_to_begin()
        assert (await take(reading, 1))[0].body == b"0"


async def test_topics_and_messages_are_looked_up(
    instance: ClientCore, queues: list[MessageQueue]
) -> None:
    topic = queues[0].topic
    async with (
        AdminClient(instance=instance) as admin,
        Producer(group="p", instance=instance, timeout_ms=60_000) as sending,
    ):
        receipt = await sending.send(Message(topic, b"x", keys=["a-key"]), queue=queues[1])
        found: list[StoredMessage] = []
        async with asyncio.timeout(FOUND_SECONDS_MAX):
            while not found:
                found = await admin.messages_by_key(topic, "a-key")

        assert [message.message_id for message in found] == [receipt.message_id]
        assert (await admin.message_at(receipt.offset_message_id)).body == b"x"
        bounds = await admin.queue_bounds(topic)
        assert {queue: tuple(b) for queue, b in bounds.items()} == {
            queues[0]: (0, 0),
            queues[1]: (0, 1),
        }
        assert topic in await admin.topics()
        assert set((await admin.cluster_info()).broker_addr_table) == {receipt.queue.broker_name}
