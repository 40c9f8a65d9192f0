"""Send a request as a message and wait for the reply.

The consumer of the request calls ``reply``. The broker forwards the reply to the requesting client.
A new group starts at the end of its queues; after ``ready`` it misses no request.
"""

import asyncio
import sys

from cometmq.client import AdminClient, Message, Producer, PushConsumer, StoredMessage

TOPIC = "price-requests"


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=2)

    async with Producer(name_server, group="shop") as producer:

        async def reply_with_price(request: StoredMessage) -> None:
            name = request.body.decode()
            await producer.reply(request, f"{name} costs 12".encode())

        async with PushConsumer(
            name_server,
            group="price-desk",
            handler=reply_with_price,
            subscriptions={TOPIC: "*"},
        ) as consumer:
            await consumer.ready()
            reply = await producer.request(Message(topic=TOPIC, body=b"a hat"), timeout=20.0)
            print(reply.body.decode())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
