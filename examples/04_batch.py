"""Send many small messages as one request.

A batch goes to one queue and is stored all or none. Together its messages may be 4 MiB.
"""

import asyncio
import os

from cometmq.client import Message, Producer, PullConsumer

NAME_SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-batch"


async def main() -> None:
    messages = [Message(topic=TOPIC, body=f"reading {n}".encode()) for n in range(100)]
    async with Producer(NAME_SERVERS, group="example-producer") as producer:
        receipt = await producer.send_batch(messages)
    first, last = receipt.queue_offset, receipt.queue_offset + len(messages) - 1
    print(f"{len(messages)} messages in {receipt.queue}, offsets {first} to {last}")

    async with PullConsumer(NAME_SERVERS, group="example-batch-reader") as consumer:
        result = await consumer.pull(receipt.queue, receipt.queue_offset)
        print(f"read {len(result.messages)} of them, the next one is at {result.next_offset}")


asyncio.run(main())
