"""Offsets that brokers store: read by other members, and sent again after a broker was away."""

from __future__ import annotations

import asyncio

import pytest
from servers import Cluster

from cometmq.client import AdminClient, ClientInstance, Message, MessageQueue, Producer
from cometmq.client.offsets import RemoteOffsetStore
from cometmq.model.errors import CometError
from cometmq.model.offsets import QueueOffset
from support.clients.stored_messages import until_queued

WAIT_S = 60.0


@pytest.fixture
async def known_group(instance: ClientInstance, group: str) -> str:
    """A group that the brokers know: they keep offsets of no other."""
    async with AdminClient(instance=instance) as admin:
        await admin.create_group(group)
    return group


async def stored(producer: Producer, queues: list[MessageQueue], count: int) -> None:
    """Store messages in each queue: a broker keeps no offset behind its end."""
    for queue in queues:
        for _ in range(count):
            await producer.send(Message(topic=queue.topic, body=b"x"), queue=queue)


async def test_another_member_finds_what_was_persisted(
    name_servers: str,
    instance: ClientInstance,
    producer: Producer,
    queues: list[MessageQueue],
    known_group: str,
) -> None:
    await stored(producer, queues, 4)
    store = RemoteOffsetStore(instance, known_group)
    for number, queue in enumerate(queues):
        store.update(queue, QueueOffset(number + 1))
    await store.persist(queues)

    async with ClientInstance(name_servers) as elsewhere:
        other = RemoteOffsetStore(elsewhere, known_group)
        found = [await other.stored(queue) for queue in queues]

    assert found == [1, 2, 3, 4]


async def test_an_offset_may_go_back_when_it_is_told_to(
    instance: ClientInstance, producer: Producer, queues: list[MessageQueue], known_group: str
) -> None:
    await stored(producer, queues[:1], 9)
    store = RemoteOffsetStore(instance, known_group)
    for offset in (9, 4):
        store.update(queues[0], QueueOffset(offset))
        await store.persist(queues[:1])

    assert await RemoteOffsetStore(instance, known_group).stored(queues[0]) == 4


async def test_a_commit_of_zero_makes_a_new_group_visible(
    instance: ClientInstance, producer: Producer, queues: list[MessageQueue], known_group: str
) -> None:
    """Brokers return 0 for a group without offsets while the first message is in memory."""
    await producer.send(Message(topic=queues[0].topic, body=b"x"), queue=queues[0])
    store = RemoteOffsetStore(instance, known_group)
    async with AdminClient(instance=instance) as admin:
        await until_queued(admin, queues[0].topic, 1)
        assert await store.stored(queues[0]) == 0
        assert await admin.groups_of_topic(queues[0].topic) == []

        await store.persist(queues[:1])

        assert await admin.groups_of_topic(queues[0].topic) == [known_group]


@pytest.mark.long_on("5.3.3")
async def test_offsets_are_told_as_soon_as_a_killed_broker_is_back(
    own_cluster: Cluster, group: str
) -> None:
    async with ClientInstance(own_cluster.namesrv) as instance:
        async with AdminClient(instance=instance) as admin:
            queues = await admin.create_topic("t", queues=2)
            await admin.create_group(group)
        async with Producer(own_cluster.namesrv, group="p") as producer:
            await stored(producer, queues, 7)
        store = RemoteOffsetStore(instance, group)
        await asyncio.to_thread(own_cluster.kill_broker)
        for queue in queues:
            store.update(queue, QueueOffset(7))
        await store.persist(queues)

        await asyncio.to_thread(own_cluster.start_broker)
        other = RemoteOffsetStore(instance, group)
        async with asyncio.timeout(WAIT_S):
            while not await _all_told(store, other, queues):
                await asyncio.sleep(0.1)


async def _all_told(
    store: RemoteOffsetStore, other: RemoteOffsetStore, queues: list[MessageQueue]
) -> bool:
    await store.persist(queues)
    try:
        return [await other.stored(queue) for queue in queues] == [7, 7]
    except CometError:
        return False
