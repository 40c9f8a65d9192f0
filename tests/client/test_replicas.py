"""Reading from a replica: when it is asked for, and when the master is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from servers import Cluster

from cometmq.client import (
    AdminClient,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    StoredMessage,
)
from cometmq.client._connection.broker_calls import QueueOffsets
from cometmq.client._connection.instance import ClientCore
from cometmq.model.errors import CometError
from support.brokers.replicas import WAIT_S, Replica, ReplicatedCluster, new_replica
from support.clients.consumer_inputs import from_the_first

pytestmark = [
    pytest.mark.long_elsewhere,
    pytest.mark.slow,
]

MESSAGES = 6


class Replicated:
    """A master with its replica, and a topic whose messages both have."""

    def __init__(self, cluster: Cluster, instance: ClientCore, queue: MessageQueue) -> None:
        self.cluster = cluster
        self.instance = instance
        self.queue = queue
        self.received: list[StoredMessage] = []

    async def handle(self, message: StoredMessage) -> None:
        self.received.append(message)

    async def until_received(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.received) < count:
                await asyncio.sleep(0.02)

    async def until_copied(self, group: str) -> None:
        """Wait until the replica has all messages, the topic and the group."""
        offsets = QueueOffsets(self.instance.routes, self.instance.brokers)
        async with asyncio.timeout(WAIT_S), AdminClient(instance=self.instance) as admin:
            while True:
                await self.instance.routes.refresh(self.queue.topic)
                address = await offsets.address(self.queue, 1)
                try:
                    end = await self.instance.brokers.max_offset(address, self.queue)
                    if end == MESSAGES and group in await admin.broker_groups(address):
                        return
                except CometError:
                    pass
                await asyncio.sleep(0.2)


@pytest.fixture
async def replicated(
    target: str, tmp_path: Path, request: pytest.FixtureRequest, group: str
) -> AsyncIterator[Replicated]:
    cluster = ReplicatedCluster(target, tmp_path / "master")
    replica: Replica | None = None
    try:
        await asyncio.to_thread(cluster.start)
        replica = new_replica(cluster, tmp_path / "replica")
        async with ClientCore(cluster.namesrv) as instance:
            async with AdminClient(instance=instance) as admin:
                [queue] = await admin.create_topic("t", queues=1)
                await admin.create_group(group)
            await asyncio.to_thread(replica.start)
            made = Replicated(cluster, instance, queue)
            async with Producer(group="p", instance=instance) as producer:
                for number in range(MESSAGES):
                    await producer.send(Message("t", str(number).encode()), queue=queue)
            await made.until_copied(group)
            yield made
    finally:
        if replica is not None:
            replica.kill()
        cluster.kill()


async def test_consuming_begins_at_the_replica_while_the_master_is_gone_and_goes_on_with_it(
    replicated: Replicated, group: str
) -> None:
    await asyncio.to_thread(replicated.cluster.kill_broker)
    async with PushConsumer(
        replicated.cluster.namesrv, handler=replicated.handle, **from_the_first(group, "t")
    ):
        await replicated.until_received(MESSAGES)

        await asyncio.to_thread(replicated.cluster.start_broker)
        async with Producer(replicated.cluster.namesrv, group="p2") as producer:
            await send_when_possible(producer)
        await replicated.until_received(MESSAGES + 1)

    assert [message.body for message in replicated.received] == [
        *(str(number).encode() for number in range(MESSAGES)),
        b"after",
    ]


async def send_when_possible(producer: Producer) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await producer.send(Message("t", b"after"))
                return
            except CometError:
                await asyncio.sleep(0.2)


async def test_a_replica_is_read_from_when_it_is_asked_for(
    replicated: Replicated, group: str
) -> None:
    consumer = PushConsumer(
        replicated.cluster.namesrv, handler=replicated.handle, **from_the_first(group, "t")
    )
    consumer.read_from(1)
    async with consumer:
        await replicated.until_received(MESSAGES)
        pulled_from_master = await pulls_of_master(replicated, group)

    assert len(replicated.received) == MESSAGES
    assert pulled_from_master == 0


async def pulls_of_master(replicated: Replicated, group: str) -> int:
    """How many messages the master has given to the group, by its own account."""
    offsets = QueueOffsets(replicated.instance.routes, replicated.instance.brokers)
    address = await offsets.address(replicated.queue)
    async with AdminClient(instance=replicated.instance) as admin:
        figures = await admin.broker_runtime_info(address)
    return int(figures["msgGetTotalTodayNow"])
