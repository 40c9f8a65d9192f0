"""Find a message by its key, and read only the messages with certain tags."""

import asyncio
import os

from cometmq.client import AdminClient, Message, Producer, PullConsumer

NAME_SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-orders"


async def send() -> None:
    async with Producer(NAME_SERVERS, group="example-producer") as producer:
        for number, state in enumerate(["new", "paid", "new", "shipped"]):
            order = Message(topic=TOPIC, body=b"an order", tags=state, keys=[f"order-{number}"])
            await producer.send(order)


async def receive_paid_and_shipped() -> None:
    async with PullConsumer(NAME_SERVERS, group="example-paid") as consumer:
        await consumer.assign(await consumer.fetch_queues(TOPIC), wanted="paid || shipped")
        received = 0
        async for message in consumer:
            print(f"order {message.keys[0]} is {message.tags}")
            received += 1
            if received == 2:
                await consumer.commit()
                break


async def look_up() -> None:
    async with AdminClient(NAME_SERVERS) as admin:
        for message in await admin.messages_by_key(TOPIC, "order-2"):
            print(f"found order-2 in {message.queue}, it is {message.tags}")


async def main() -> None:
    await send()
    await receive_paid_and_shipped()
    await look_up()


asyncio.run(main())
