"""SQL92 filters: the messages that a broker delivers, and its errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.client import (
    AdminClient,
    ClientInstance,
    ConfigError,
    Filter,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    StartFrom,
)
from support.clients.recording_handlers import Seen


async def test_only_messages_whose_properties_match_are_delivered(
    make_cluster: Callable[..., Any],
) -> None:
    name_servers = make_cluster({"enablePropertyFilter": True}).namesrv
    seen = Seen()
    async with (
        ClientInstance(name_servers) as instance,
        AdminClient(instance=instance) as admin,
        Producer(instance=instance, group="producers") as producer,
    ):
        await admin.create_topic("orders", queues=2)
        for number in range(10):
            properties = {"price": str(number), "kind": "book" if number % 2 else "pen"}
            await producer.send(Message(topic="orders", body=b"%d" % number, properties=properties))
        consumer = PushConsumer(
            name_servers,
            group="g",
            handler=seen,
            subscriptions={"orders": Filter.sql("price > 4 AND kind = 'book'")},
            start_from=StartFrom.FIRST,
        )
        async with consumer:
            await seen.count(3)
            await producer.send(
                Message(topic="orders", body=b"11", properties={"price": "11", "kind": "book"})
            )
            await seen.count(4)

    assert sorted(seen.bodies) == [b"11", b"5", b"7", b"9"]


async def test_a_filter_that_was_made_earlier_replaces_the_one_of_now(
    make_cluster: Callable[..., Any],
) -> None:
    name_servers = make_cluster({"enablePropertyFilter": True}).namesrv
    cheap, dear = Filter.sql("price < 5"), Filter.sql("price >= 5")
    seen = Seen()
    async with AdminClient(name_servers) as admin:
        await admin.create_topic("orders", queues=1)
    push = PushConsumer(
        name_servers,
        group="push",
        handler=seen,
        subscriptions={"orders": dear},
        start_from=StartFrom.FIRST,
    )
    pull = PullConsumer(
        name_servers, group="pull", subscriptions={"orders": dear}, start_from=StartFrom.FIRST
    )
    async with Producer(name_servers, group="producers") as producer, push, pull:
        await push.ready()
        await pull.ready()
        await push.subscribe("orders", cheap)
        await pull.subscribe("orders", cheap)
        for price in (7, 1, 8, 2):
            properties = {"price": str(price)}
            await producer.send(Message(topic="orders", body=b"%d" % price, properties=properties))
        async with asyncio.timeout(30):
            await seen.count(2)
            pulled = [await anext(pull) for _ in range(2)]

    assert sorted(seen.bodies) == [b"1", b"2"]
    assert [message.body for message in pulled] == [b"1", b"2"]


async def test_filtering_by_properties_has_to_be_switched_on(
    make_cluster: Callable[..., Any],
) -> None:
    name_servers = make_cluster({"enablePropertyFilter": False}).namesrv
    async with (
        ClientInstance(name_servers) as instance,
        AdminClient(instance=instance) as admin,
    ):
        await admin.create_topic("orders", queues=1)
    consumer = PushConsumer(
        name_servers,
        group="g",
        handler=Seen(),
        subscriptions={"orders": Filter.sql("price > 4")},
    )
    with pytest.raises(ConfigError, match="SQL92; set enablePropertyFilter=true"):
        await consumer.start()
