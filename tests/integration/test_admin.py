"""Topics made, seen, changed and deleted; messages looked up."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.client import (
    AdminClient,
    ClientError,
    InvalidNameError,
    Message,
    Producer,
    PullConsumer,
    ResponseError,
    TopicNotFoundError,
)
from cometmq.model.topic import Perm


async def test_a_new_topic_has_the_queues_asked_for(name_servers: str, topic: str) -> None:
    async with AdminClient(name_servers) as admin:
        queues = await admin.create_topic(topic, queues=3)

        assert [queue.queue_id for queue in queues] == [0, 1, 2]
        assert topic in await admin.topics()
        bounds = await admin.queue_bounds(topic)
    assert {queue: tuple(found) for queue, found in bounds.items()} == dict.fromkeys(queues, (0, 0))


async def test_a_deleted_topic_is_gone(name_servers: str, topic: str) -> None:
    async with AdminClient(name_servers) as admin:
        await admin.create_topic(topic)
        await admin.delete_topic(topic)

        assert topic not in await admin.topics()
        with pytest.raises(TopicNotFoundError):
            await admin.topic_stats(topic)


async def test_a_topic_that_may_not_be_written_takes_no_message(
    name_servers: str, topic: str
) -> None:
    async with AdminClient(name_servers) as admin:
        await admin.create_topic(topic, perm=Perm.READ)
    async with Producer(name_servers, group="g") as sending:
        with pytest.raises(TopicNotFoundError, match="no queue that may be written"):
            await sending.send(Message(topic, b"x"))


async def test_statistics_tell_what_each_queue_holds(name_servers: str, topic: str) -> None:
    async with AdminClient(name_servers) as admin, Producer(name_servers, group="g") as sending:
        first, second = await admin.create_topic(topic, queues=2)
        for queue in (first, first, second):
            await sending.send(Message(topic, b"x"), queue=queue)

        stats = await admin.topic_stats(topic)

    assert {queue: found.max_offset for queue, found in stats.items()} == {first: 2, second: 1}
    assert all(found.last_update_timestamp > 0 for found in stats.values())


async def test_a_cluster_tells_who_its_brokers_are(name_servers: str) -> None:
    async with AdminClient(name_servers) as admin:
        info = await admin.cluster_info()
        ((name, broker),) = info.broker_addr_table.items()
        figures = await admin.broker_figures(broker.broker_addrs[0])

    assert info.cluster_addr_table == {"DefaultCluster": [name]}
    assert "putTps" in figures


async def test_a_message_is_found_by_each_of_its_names(name_servers: str, topic: str) -> None:
    async with AdminClient(name_servers) as admin, Producer(name_servers, group="g") as sending:
        receipt = await sending.send(Message(topic, b"x", keys=["k1", "k2"]))
        await sending.send(Message(topic, b"y", keys=["k3"]))

        at = await admin.message_at(receipt.offset_message_id)
        by_key = await admin.messages_by_key(topic, "k2")
        by_id = await admin.messages_by_key(topic, receipt.message_id, unique_id=True)

        assert await admin.messages_by_key(topic, "k4") == []
    assert [found.message_id for found in (at, *by_key, *by_id)] == [receipt.message_id] * 3
    assert by_key[0].queue == receipt.queue


async def test_a_message_that_is_not_there_is_refused(name_servers: str, topic: str) -> None:
    async with AdminClient(name_servers) as admin, Producer(name_servers, group="g") as sending:
        receipt = await sending.send(Message(topic, b"x"))
        beyond = receipt.offset_message_id[:16] + "00000FFFFFFFFFFF"

        with pytest.raises(ResponseError):
            await admin.message_at(beyond)


async def test_a_group_shows_how_far_it_came(name_servers: str, topic: str) -> None:
    async with (
        AdminClient(name_servers) as admin,
        Producer(name_servers, group="g") as sending,
        PullConsumer(name_servers, group=f"g-{topic}") as reading,
    ):
        (queue,) = await admin.create_topic(topic, queues=1)
        assert await admin.committed(f"g-{topic}", topic) == {queue: None}
        await sending.send(Message(topic, b"x"))
        await reading.assign([queue])
        async with asyncio.timeout(5):
            await anext(reading)
        await reading.commit()

        assert await admin.committed(f"g-{topic}", topic) == {queue: 1}


async def test_a_topic_without_a_valid_name_is_refused_before_anything_is_sent(
    name_servers: str,
) -> None:
    async with AdminClient(name_servers) as admin:
        with pytest.raises(InvalidNameError):
            await admin.create_topic("no blanks")


async def test_a_topic_for_an_unknown_broker_is_refused(name_servers: str, topic: str) -> None:
    async with AdminClient(name_servers) as admin:
        with pytest.raises(ClientError, match="no such broker: elsewhere"):
            await admin.create_topic(topic, brokers=["elsewhere"])
