"""Topics with queue.type=BatchCQ: a broker stores a batch as one record, consumers get messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.client import (
    AdminClient,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    StartFrom,
    StoredMessage,
)
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.base import Header
from cometmq.protocol.headers.pop import PopMessageRequest
from cometmq.protocol.properties import encode_properties
from cometmq.remoting import RemotingClient
from support.clients.stored_messages import read_all
from support.processes.server import Standalone, standalone
from support.wire.request_headers import send_header

TOPIC = "in-batches"
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    settings = {"messageDelayLevel": "1s 1s 1s 1s"}
    with standalone(tmp_path_factory.mktemp("server"), **settings) as running:
        yield running


async def send(server: Standalone, *bodies: str, topic: str = TOPIC) -> Command:
    """Send a batch as the Java client 5 does, with an id of its own."""
    items = [
        BatchItem(3, body.encode(), encode_properties({"UNIQ_KEY": f"K{body}", "TAGS": body[0]}))
        for body in bodies
    ]
    properties = encode_properties({"UNIQ_KEY": "BATCH", "WAIT": "true"}).decode()
    header = send_header(topic=topic, properties=properties, batch=True)
    return await call(server, RequestCode.SEND_BATCH_MESSAGE, header, encode_batch(items))


async def call(server: Standalone, code: int, header: Header, body: bytes = b"") -> Command:
    client = RemotingClient(name="test")
    try:
        address = f"127.0.0.1:{server.ports.broker}"
        return await client.call(address, code, header, body, timeout=LIMIT_S)
    finally:
        await client.close()


async def test_consumers_get_the_messages_of_batches_also_after_a_kill(
    server: Standalone, name_servers: str
) -> None:
    async with AdminClient(name_servers) as admin:
        queues = await admin.create_topic(TOPIC, queues=1, attributes={"queue.type": "BatchCQ"})
        response = await send(server, "a0", "b1", "a2")
        assert response.code == 0
        fields = response.fields
        assert (fields["batchUniqId"], fields["transactionId"]) == ("BATCH", "BATCH")
        assert (fields["queueOffset"], len(fields["msgId"])) == ("0", 32)
        async with Producer(name_servers, group="p") as producer:
            receipt = await producer.send(TOPIC, b"alone", tags="a")
            assert receipt.queue_offset == 3
            many = await producer.send_batch(TOPIC, [b"x", b"y"])
            assert (many.queue_offset, len(many.message_ids)) == (4, 2)

        server.kill()
        server.start()

        assert (await send(server, "b6", "a7")).fields["queueOffset"] == "6"
        got = await read_all(name_servers, queues, 8)
        assert [each.body for each in got] == [
            b"a0", b"b1", b"a2", b"alone", b"x", b"y", b"b6", b"a7",
        ]  # fmt: skip
        assert [each.queue_offset for each in got] == list(range(8))
        assert [each.message_id for each in got[:3]] == ["Ka0", "Kb1", "Ka2"]
        assert (got[1].tags, got[1].flag, got[1].sys_flag) == ("b", 3, 0)
        assert (await admin.queue_bounds(TOPIC))[queues[0]].max_offset == 8
        units = (Path(server.folder) / "store").glob(f"batchconsumequeue/{TOPIC}/0/*")
        assert len(list(units)) == 1

    await from_inside(name_servers, queues[0])
    pop = PopMessageRequest(
        **{"consumer_group": "popper", "topic": TOPIC, "queue_id": -1, "max_msg_nums": 8},
        **{"invisible_time": 10_000, "poll_time": 0, "init_mode": 0},
    )
    refused = await call(server, RequestCode.POP_MESSAGE, pop)
    assert (refused.code != 0, "queue.type=BatchCQ" in str(refused.remark)) == (True, True)
    await by_tags(name_servers)


async def from_inside(name_servers: str, queue: MessageQueue) -> None:
    """A pull from inside a batch returns the rest of it."""
    async with PullConsumer(name_servers, group="puller") as consumer:
        result = await consumer.pull(queue, 1, max_messages=2)
        assert [each.body for each in result.messages] == [b"b1", b"a2"]
        assert result.next_offset == 3


async def by_tags(name_servers: str) -> None:
    """Tags are those of each message; a message that fails is redelivered alone."""
    seen: list[bytes] = []
    done = asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        seen.append(message.body)
        if len(seen) == 5:
            done.set()
        if message.body == b"a2" and not message.reconsume_times:
            raise ValueError("once")

    async with PushConsumer(
        name_servers,
        group="tagged",
        handler=handle,
        subscriptions={TOPIC: "a"},
        start_from=StartFrom.FIRST,
    ):
        await asyncio.wait_for(done.wait(), LIMIT_S)
    assert sorted(seen) == [b"a0", b"a2", b"a2", b"a7", b"alone"]


async def test_a_batch_of_another_topic_is_stored_as_messages(
    server: Standalone, name_servers: str
) -> None:
    async with AdminClient(name_servers) as admin:
        queues = await admin.create_topic("single", queues=1)
    response = await send(server, "a0", "a1", topic="single")
    assert "batchUniqId" not in response.fields
    assert response.fields["msgId"].count(",") == 1
    got = await read_all(name_servers, queues, 2)
    assert [each.body for each in got] == [b"a0", b"a1"]
