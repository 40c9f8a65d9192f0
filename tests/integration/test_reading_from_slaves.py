"""Consumers that are far behind read from a slave, and from the master when they have caught up."""

from __future__ import annotations

from cometmq.broker.app import Broker
from cometmq.client import AdminClient, Message, Producer
from support.brokers.pairs import SLAVE, Pairs
from support.checks.waiting import until

MESSAGES = 300
READABLE = {"slaveReadEnable": "true", "flushDiskType": "ASYNC_FLUSH"}


async def filled(pairs: Pairs, **of_slave: str) -> tuple[Broker, Broker]:
    """A master that counts nothing as being in memory, and its slave, which has all messages."""
    master = await pairs.start("master", **READABLE, accessMessageInMemoryMaxRatio="0")
    slave = await pairs.start("slave", **SLAVE, **READABLE, **of_slave)
    async with AdminClient(pairs.name_server.address) as admin:
        [queue] = await admin.create_topic("T", queues=1)
        await admin.create_group("G")
    async with Producer(pairs.name_server.address, group="p") as producer:
        for number in range(MESSAGES):
            await producer.send(Message("T", str(number).encode()), queue=queue)
    await until(lambda: slave.core.store.written_to == master.core.store.written_to)
    await until(lambda: "T" in slave.core.topics and "G" in slave.core.groups)
    return master, slave


EXPECTED = [str(number).encode() for number in range(MESSAGES)]


async def test_a_slave_serves_what_has_left_the_memory_of_the_master(pairs: Pairs) -> None:
    master, slave = await filled(pairs, accessMessageInMemoryMaxRatio="0")
    assert await pairs.consume("G", "T", MESSAGES) == EXPECTED
    by_master = master.core.stats.get_messages
    assert 0 < by_master < MESSAGES / 2  # the first pull, and those at the end
    assert slave.core.stats.get_messages == MESSAGES - by_master
    await until(lambda: master.core.offsets.committed("G", "T", 0) == MESSAGES)
    assert slave.core.offsets.of("G", "T") in ({}, master.core.offsets.of("G", "T"))


async def test_a_slave_sends_consumers_that_have_caught_up_back(pairs: Pairs) -> None:
    master, slave = await filled(pairs, accessMessageInMemoryMaxRatio="100")
    assert await pairs.consume("G", "T", MESSAGES) == EXPECTED
    assert master.core.stats.get_messages > 0
    assert slave.core.stats.get_messages > 0
