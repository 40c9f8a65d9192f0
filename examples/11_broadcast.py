"""Deliver every message to every member of a group, for example to clear caches.

Broadcast messages are not retried. Each member commits its offsets to a local file. Without one it
starts with the messages that are stored from a given time on, here since the program began.
"""

import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack
from datetime import UTC, datetime

from cometmq.client import AdminClient, Message, Producer, PushConsumer, StoredMessage

TOPIC = "cache-news"


async def main(name_server: str = "127.0.0.1:9876") -> None:
    began = datetime.now(UTC)
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=2)
    received = asyncio.Semaphore(0)

    async def clear(message: StoredMessage) -> None:
        print(f"cleared {message.body.decode()}")
        received.release()

    async with AsyncExitStack() as members:
        folder = members.enter_context(tempfile.TemporaryDirectory())
        for number in range(2):
            member = PushConsumer(
                name_server,
                group="caches",
                handler=clear,
                broadcast=True,
                subscriptions={TOPIC: "*"},
                start_from=began,
                instance_name=f"cache-{number}",
                offset_folder=folder,
            )
            await members.enter_async_context(member)
        producer = await members.enter_async_context(Producer(name_server, group="shop"))
        await producer.send(Message(topic=TOPIC, body=b"price of hats"))
        for _ in range(2):
            await received.acquire()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
