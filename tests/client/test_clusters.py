"""The clusters of this folder: what a test finds on them."""

from __future__ import annotations

import asyncio

from cometmq.client import ClientInstance, Message, MessageQueue, Producer, PullConsumer, StartFrom

FOUND_S = 120.0
"""A real broker fills its queues a moment after it has answered a send."""


async def test_a_message_that_was_sent_is_found(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    async with Producer(instance=instance, group=group) as producer:
        receipt = await producer.send(Message(topic=queues[0].topic, body=b"here"))
    async with PullConsumer(instance=instance, group=group, start_from=StartFrom.FIRST) as reader:
        await reader.assign(queues)
        async with asyncio.timeout(FOUND_S):
            message = await anext(reader)

    assert (message.body, message.unique_id) == (b"here", receipt.message_id)
