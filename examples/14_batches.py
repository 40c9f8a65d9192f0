"""Send a long list in few requests, and consume several messages with one call.

A batch handler gets messages of one queue. By default it consumes all of them; if it sets
``context.done``, it consumes the first ``done`` messages and the others are redelivered. Ctrl-C
ends the program.
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


class Meter:
    total = 0

    async def add(self, messages: Sequence[StoredMessage], context: ConsumeContext) -> None:
        self.total += sum(int(message.body) for message in messages)
        print(f"added {len(messages)} readings: {self.total}")


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=2)
    async with Producer(name_server, group="meters") as producer:
        readings = (Message(topic=TOPIC, body=b"%d" % n) for n in range(500))
        receipts = await producer.send_all(readings)
        print(f"500 messages in {len(receipts)} request")

    consumer = PushConsumer(
        name_server,
        group="statistics",
        batch_handler=Meter().add,
        batch_max=32,
        subscriptions={TOPIC: "*"},
        start_from=StartFrom.FIRST,
    )
    await consumer.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
