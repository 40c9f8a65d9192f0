"""Deliver every message to every member of a group, for example to clear caches.

Broadcast messages are not retried. Each member commits its offsets to a local file. Without one it
starts at the end of each queue, and ``ready`` waits until it knows where that is. Here two members
run in one program, until Ctrl-C or SIGTERM.
"""

import asyncio
import sys

from cometmq.client import AdminClient, Message, Producer, PushConsumer, StoredMessage

TOPIC = "cache-news"


def cache(name_server: str, name: str) -> PushConsumer:
    async def clear(message: StoredMessage) -> None:
        print(f"{name} cleared {message.body.decode()}")

    return PushConsumer(
        name_server,
        group="caches",
        handler=clear,
        broadcast=True,
        subscriptions={TOPIC: "*"},
        instance_name=name,
    )


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=2)

    async with cache(name_server, "cache-1") as one, cache(name_server, "cache-2") as two:
        await one.ready()
        await two.ready()
        members = asyncio.gather(one.run(), two.run())
        async with Producer(name_server, group="shop") as producer:
            await producer.send(Message(topic=TOPIC, body=b"price of hats"))
        await members


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
