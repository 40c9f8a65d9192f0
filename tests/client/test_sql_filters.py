"""Filtering by properties: what a broker that does it delivers, and what one that does not says."""

from __future__ import annotations

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
    PushConsumer,
    StartFrom,
)
from support.seen import Seen


async def test_only_messages_whose_properties_match_are_delivered(
    make_cluster: Callable[..., Any], target: str
) -> None:
    """Ours refuses for now, even where filtering by properties is switched on."""
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
        if target == "comet":
            with pytest.raises(ConfigError, match="price > 4"):
                await consumer.start()
            return
        async with consumer:
            await seen.count(3)
            with pytest.raises(ConfigError, match="price >"):
                await consumer.subscribe("orders", Filter.sql("price >"))
            await producer.send(
                Message(topic="orders", body=b"11", properties={"price": "11", "kind": "book"})
            )
            await seen.count(4)

    assert sorted(seen.bodies) == [b"11", b"5", b"7", b"9"]
