"""Send a long list in few requests, and consume several messages with one call.

A batch handler gets messages of one queue. By default it consumes all of them; if it sets
``context.done``, it consumes the first ``done`` messages and the others are redelivered.
"""

import asyncio
import sys
from collections.abc import Sequence

from cometmq.client import (
    AdminClient,
    ConsumeContext,
    Message,
    Producer,
    PushConsumer,
    StartFrom,
    StoredMessage,
)

TOPIC = "meter-readings"
COUNT = 500


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=2)
    async with Producer(name_server, group="meters") as producer:
        readings = (Message(topic=TOPIC, body=b"%d" % n) for n in range(COUNT))
        receipts = await producer.send_all(readings)
        print(f"{COUNT} messages in {len(receipts)} request")

    numbers: set[int] = set()
    complete = asyncio.Event()

    async def add_up(messages: Sequence[StoredMessage], context: ConsumeContext) -> None:
        numbers.update(int(message.body) for message in messages)
        if len(numbers) == COUNT:
            complete.set()

    async with PushConsumer(
        name_server,
        group="statistics",
        batch_handler=add_up,
        batch_max=100,
        subscriptions={TOPIC: "*"},
        start_from=StartFrom.FIRST,
    ):
        await complete.wait()
    print(f"the sum is {sum(numbers)}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
