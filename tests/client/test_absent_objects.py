"""Calls about topics and groups that do not exist are answered, or refused clearly."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from cometmq.client import AdminClient, MessageQueue
from support.clients.public_calls import (
    World,
    called,
    calls_of,
    links,
    session_cluster,
    world,
)

__all__ = ["links", "session_cluster", "world"]
"""Fixtures that stand elsewhere."""

CALL_S = 30.0


@pytest.mark.long_elsewhere
async def test_calls_about_absent_topics_and_groups_raise_errors_of_the_client(
    world: World,
) -> None:
    wrong = []
    for number, name in enumerate(calls_of(AdminClient)):
        topic = f"absent-{number}"  # some calls create what they name
        broker_name = world.queues[0].broker_name
        queues = [MessageQueue(topic, broker_name, queue_id) for queue_id in range(4)]
        own = dataclasses.replace(world, queues=queues, group=topic)
        try:
            async with asyncio.timeout(CALL_S):
                await called(own, AdminClient, name)
        except Exception as error:
            wrong.append(f"{name}: {error!r}")

    assert not wrong
