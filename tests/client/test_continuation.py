"""Where consumers continue: after a change of members, a pause, a new queue, a topic made again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cometmq.client import Message, Producer, PushConsumer
from support.consuming import from_the_first
from support.seen import Seen, until

SOON: dict[str, Any] = {"rebalance_ms": 1_000, "route_refresh_ms": 200}


async def send(producer: Producer, topic: str, count: int, start: int = 0) -> list[bytes]:
    bodies = [b"%d" % number for number in range(start, start + count)]
    await asyncio.gather(*(producer.send(Message(topic, body)) for body in bodies))
    return bodies


@pytest.mark.long_elsewhere
async def test_members_with_short_heartbeats_consume_after_each_rebalance(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    """Each rebalance announces new versions, and a broker refuses pulls of those it lacks."""
    seen, settings = Seen(), {"heartbeat_v2": True, **SOON, **from_the_first(group, topic)}
    async with PushConsumer(name_servers, handler=seen, **settings) as one:
        await one.ready()
        bodies = await send(producer, topic, 20)
        await seen.count(20)
        async with PushConsumer(name_servers, handler=seen, instance_name="two", **settings) as two:
            await until(lambda: len(one.queues()) == len(two.queues()) == 2)
            bodies += await send(producer, topic, 20, 20)
            await seen.until(lambda: set(seen.bodies) == set(bodies))
        bodies += await send(producer, topic, 20, 40)
        await seen.until(lambda: set(seen.bodies) == set(bodies))
