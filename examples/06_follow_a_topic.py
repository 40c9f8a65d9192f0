"""Follow a topic: read only what is sent from now on, while it is being sent."""

import asyncio
import os

from cometmq.client import AdminClient, Message, Producer, PullConsumer

NAME_SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-ticker"


async def send_prices() -> None:
    async with Producer(NAME_SERVERS, group="example-producer") as producer:
        for price in range(100, 105):
            await producer.send(Message(topic=TOPIC, body=str(price).encode()))
            await asyncio.sleep(0.2)


async def main() -> None:
    async with AdminClient(NAME_SERVERS) as admin:
        await admin.create_topic(TOPIC, queues=1)
    async with PullConsumer(NAME_SERVERS, group="example-follower") as consumer:
        await consumer.assign(await consumer.fetch_queues(TOPIC))
        await consumer.seek_to_end()
        sending = asyncio.create_task(send_prices())
        async for message in consumer:
            delay_ms = message.store_time_ms - message.born_time_ms
            print(f"price {message.body.decode()}, stored {delay_ms} ms after it was sent")
            if message.body == b"104":
                break
        await sending


asyncio.run(main())
