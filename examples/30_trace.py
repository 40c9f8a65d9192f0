"""Trace a message: who sent it, who received it, and how long each took."""

import asyncio
import sys

from cometmq.client import AdminClient, Message, Producer, PushConsumer, StartFrom, StoredMessage
from cometmq.client.trace import ConsumeAfter, ConsumeBefore, Publish

TOPIC = "traced-parcels"


async def main(name_server: str = "127.0.0.1:9876") -> None:
    packed = asyncio.Event()

    async def pack(_: StoredMessage) -> None:
        packed.set()

    consumer = PushConsumer(
        name_server,
        group="traced-packers",
        handler=pack,
        subscriptions={TOPIC: "*"},
        start_from=StartFrom.FIRST,
        trace=True,
    )
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=1)
        async with Producer(name_server, group="shop", trace=True) as producer:
            receipt = await producer.send(Message(topic=TOPIC, body=b"a hat", keys=["parcel-1"]))
        async with consumer:
            await packed.wait()

        records = await admin.trace(receipt.message_id)
        while len(records) < 3:  # RocketMQ's brokers index messages some time after storing them
            await asyncio.sleep(0.1)
            records = await admin.trace(receipt.message_id)
    for record in records:
        match record:
            case Publish():
                print(f"{record.group} sent {record.keys} in {record.cost_ms} ms")
            case ConsumeBefore():
                print(f"{record.group} received it, retry {record.retries}")
            case ConsumeAfter():
                print(f"{record.group} handled it in {record.cost_ms} ms: {record.end.name}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
