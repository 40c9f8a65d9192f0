"""Follow a topic: read the messages that are sent from now on."""

import asyncio
import sys

from cometmq.client import AdminClient, Message, Producer, PullConsumer

TOPIC = "prices"


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        queues = await admin.create_topic(TOPIC, queues=1)
    async with (
        PullConsumer(name_server, group="dealer") as consumer,
        Producer(name_server, group="exchange") as producer,
    ):
        await consumer.assign(queues)
        await consumer.seek_to_end()
        for price in range(100, 105):
            await producer.send(Message(topic=TOPIC, body=str(price).encode()))
            message = await anext(consumer)
            took_ms = message.store_time_ms - message.born_time_ms
            print(f"price {message.body.decode()}, stored {took_ms} ms after it was sent")
        await consumer.commit()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
