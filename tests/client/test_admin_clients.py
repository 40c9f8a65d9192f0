"""Clients that are online, as an administrator sees them."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.client import (
    AdminClient,
    ClientInstance,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ResponseError,
    StartFrom,
    StoredMessage,
)
from cometmq.client._connection.instance import core_of
from cometmq.protocol.bodies.client import ConsumeResult
from cometmq.protocol.bodies.heartbeat import ConsumeType
from cometmq.protocol.codes import ResponseCode
from support.checks.waiting import until
from support.clients.consumer_inputs import from_the_first

FOUND_S = 120.0


async def test_members_of_a_group_are_shown_while_they_are_online(
    admin: AdminClient, instance: ClientInstance, topic: str, group: str
) -> None:
    async with PullConsumer(instance=instance, group=group, subscriptions={topic: "a"}):
        found = await admin.consumer_connections(group)

    assert [member.client_id for member in found.connection_set] == [instance.client_id]
    assert found.consume_type is ConsumeType.CONSUME_ACTIVELY
    assert found.subscription_table[topic].sub_string == "a"
    with pytest.raises(ResponseError) as refusal:
        await admin.consumer_connections(group)
    assert refusal.value.code == ResponseCode.CONSUMER_NOT_ONLINE


async def test_producers_are_shown_while_they_are_online(
    admin: AdminClient, instance: ClientInstance, topic: str, group: str
) -> None:
    async with Producer(instance=instance, group=group) as producer:
        await producer.send(Message(topic, b"x"))
        await core_of(instance).heartbeat()
        found = await admin.producer_connections(group)

    assert [member.client_id for member in found.connection_set] == [instance.client_id]


async def test_all_producers_of_a_broker_are_shown(
    admin: AdminClient, instance: ClientInstance, target: str, topic: str, group: str
) -> None:
    ((_, broker),) = (await admin.cluster_info()).broker_addr_table.items()
    async with Producer(instance=instance, group=group) as producer:
        await producer.send(Message(topic, b"x"))
        await core_of(instance).heartbeat()
        found = await admin.producers(broker.broker_addrs[0])

    assert [one.client_id for one in found.data[group]] == [instance.client_id]


async def test_a_pull_consumer_says_how_it_is(
    admin: AdminClient,
    instance: ClientInstance,
    queues: list[MessageQueue],
    group: str,
    name_servers: str,
) -> None:
    topic = queues[0].topic
    async with Producer(instance=instance, group="admin-tests") as producer:
        for _ in range(3):
            await producer.send(Message(topic, b"x"), queue=queues[0])
    async with PullConsumer(
        instance=instance, group=group, subscriptions={topic: "*"}, start_from=StartFrom.FIRST
    ) as consumer:
        async with asyncio.timeout(FOUND_S):
            for _ in range(2):
                await anext(consumer)
        await consumer.commit()
        info = await admin.running_info(group, instance.client_id)
        status = await admin.consumer_status(group, topic)

    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
    assert info.properties["PROP_CONSUMEORDERLY"] == "true"
    assert info.properties["PROP_NAMESERVER_ADDR"] == f"{name_servers};"
    assert [wanted.topic for wanted in info.subscription_set] == [topic]
    assert set(info.mq_table) == set(queues)
    assert info.mq_table[queues[0]].commit_offset == 2
    assert status[instance.client_id][queues[0]] == 2


async def test_a_push_consumer_says_how_it_is_and_consumes_out_of_turn(
    admin: AdminClient, instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    topic, seen = queues[0].topic, list[bytes]()
    async with Producer(instance=instance, group="admin-tests") as producer:
        receipt = await producer.send(Message(topic, b"x"), queue=queues[0])

    async def handle(message: StoredMessage) -> None:
        seen.append(message.body)
        if len(seen) > 2:
            raise LookupError("no such order")

    async with PushConsumer(
        instance=instance, handler=handle, **from_the_first(group, topic)
    ) as consumer:

        async def consumed() -> bool:
            return len(seen) == 1 and set(consumer.queues()) >= set(queues)

        await until(consumed)
        info = await admin.running_info(group, instance.client_id)
        message = await admin.message_at(receipt.offset_message_id)
        good = await admin.consume_directly(group, instance.client_id, message)
        bad = await admin.consume_directly(group, instance.client_id, message)

    assert set(info.mq_table) >= set(queues)
    assert seen == [b"x"] * 3
    assert good.consume_result is ConsumeResult.CR_SUCCESS
    assert bad.consume_result is ConsumeResult.CR_THROW_EXCEPTION
    assert "no such order" in (bad.remark or "")


async def test_a_client_that_is_not_there_cannot_be_asked(
    admin: AdminClient, instance: ClientInstance, topic: str, group: str
) -> None:
    async with PullConsumer(instance=instance, group=group, subscriptions={topic: "*"}):
        with pytest.raises(ResponseError):
            await admin.running_info(group, "nobody")
