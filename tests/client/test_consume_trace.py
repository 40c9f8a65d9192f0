"""The records of deliveries in the trace topic."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.client import Message, Producer, PullConsumer, PushConsumer, StoredMessage
from cometmq.client.hooks import ConsumeEnd
from cometmq.client.trace import ConsumeAfter, ConsumeBefore, decode_records
from cometmq.model.topic import TRACE_TOPIC
from support.checks.waiting import WAIT_S
from support.clients.consumer_inputs import from_the_first
from support.clients.recording_handlers import Seen


async def records(
    name_servers: str, topic: str, message_id: str, count: int
) -> list[ConsumeBefore | ConsumeAfter]:
    """Read the consumers' records of a message once there are so many."""
    async with PullConsumer(name_servers, group="readers") as reader, asyncio.timeout(WAIT_S):
        while True:
            found = []
            for queue in await reader.fetch_queues(topic):
                for message in (await reader.pull(queue, 0)).messages:
                    found += [
                        record
                        for record in decode_records(message.body.decode())
                        if isinstance(record, ConsumeBefore | ConsumeAfter)
                        and record.message_id == message_id
                    ]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("custom", [False, True])
async def test_each_call_is_traced_before_and_after_with_its_end(
    name_servers: str, producer: Producer, topic: str, group: str, custom: bool
) -> None:
    seen = Seen()
    trace_topic = f"traces-{group}" if custom else TRACE_TOPIC

    async def handle(message: StoredMessage) -> None:
        seen.add(message)
        if len(seen.messages) == 1:
            raise ValueError

    receipt = await producer.send(Message(topic=topic, body=b"x", keys=["k1"]))
    async with PushConsumer(
        name_servers,
        handler=handle,
        **from_the_first(group, topic),
        trace=True,
        trace_topic=trace_topic if custom else "",
    ):
        await seen.count(2)
    found = await records(name_servers, trace_topic, receipt.message_id, 4)

    before = [record for record in found if isinstance(record, ConsumeBefore)]
    after = [record for record in found if isinstance(record, ConsumeAfter)]
    assert [record.retries for record in before] == [0, 1]
    assert [(record.end, record.success) for record in after] == [
        (ConsumeEnd.EXCEPTION, False),
        (ConsumeEnd.SUCCESS, True),
    ]
    assert [record.request_id for record in before] == [record.request_id for record in after]
    assert {record.group for record in found} == {group}
    assert {record.keys for record in found} == {"k1"}
