"""Topics whose queues keep their numbers while they move among brokers."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from cometmq.client import ClientInstance, Message, MessageQueue, Producer, PullConsumer, StartFrom
from cometmq.client._connection.instance import ClientCore, core_of
from cometmq.protocol.bodies.route import LogicQueueMappingItem, TopicQueueMappingDetail
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.topic import UpdateAndCreateTopicRequest
from support.runner.versions import VERSIONS_5

LOGICAL = "__syslo__global__"
QUEUES = 3
IN_TIME_S = 120.0


async def static_topic(client: ClientCore) -> str:
    """A topic of three queues, all of which the only broker has, in the opposite order."""
    name = f"s-{uuid.uuid4().hex}"
    template = await client.routes.find("TBW102")
    (broker,) = template.brokers
    hosted = {
        number: [LogicQueueMappingItem(queue_id=QUEUES - 1 - number, bname=broker)]
        for number in range(QUEUES)
    }
    detail = TopicQueueMappingDetail(
        topic=name, total_queues=QUEUES, bname=broker, epoch=1, hosted_queues=hosted
    )
    header = UpdateAndCreateTopicRequest(
        topic=name,
        default_topic="TBW102",
        read_queue_nums=QUEUES,
        write_queue_nums=QUEUES,
        perm=6,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        force=False,
    )
    code = RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC
    await client.brokers.call(template.masters()[0], code, header, detail.encode())
    async with asyncio.timeout(IN_TIME_S):
        while (found := await client.routes.refresh(name)) is None or not found.hosts:
            await asyncio.sleep(0.1)
    return name


@pytest.mark.only_on(*VERSIONS_5)
async def test_a_static_topic_is_sent_to_and_read_by_its_own_queue_numbers(
    instance: ClientInstance, group: str
) -> None:
    topic = await static_topic(core_of(instance))
    queues = [MessageQueue(topic, LOGICAL, number) for number in range(QUEUES)]
    async with Producer(instance=instance, group=group) as producer:
        receipts = [
            await producer.send(
                Message(topic=topic, body=str(queue.queue_id).encode()), queue=queue
            )
            for queue in queues
            for _ in range(2)
        ]
    got: dict[MessageQueue, list[tuple[bytes, int]]] = {queue: [] for queue in queues}
    async with PullConsumer(instance=instance, group=group, start_from=StartFrom.FIRST) as reader:
        await reader.assign(queues)
        for _ in receipts:
            async with asyncio.timeout(IN_TIME_S):
                message = await anext(reader)
            queue = MessageQueue(topic, message.broker_name, message.queue_id)
            got[queue].append((message.body, message.queue_offset))

    assert [(receipt.queue, receipt.queue_offset) for receipt in receipts] == [
        (queue, offset) for queue in queues for offset in range(2)
    ]
    for queue in queues:
        body = str(queue.queue_id).encode()
        assert got[queue] == [(body, 0), (body, 1)]
