"""Read the messages with certain tags, and find a message by its key."""

import asyncio
import sys

from cometmq.client import AdminClient, Message, Producer, PullConsumer, StartFrom

TOPIC = "order-states"


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with Producer(name_server, group="shop") as producer:
        for number, state in enumerate(["new", "paid", "new", "shipped"]):
            order = Message(topic=TOPIC, body=b"an order", tags=state, keys=[f"order-{number}"])
            await producer.send(order)

    async with PullConsumer(name_server, group="billing", start_from=StartFrom.FIRST) as consumer:
        await consumer.assign(await consumer.fetch_queues(TOPIC), filter="paid || shipped")
        while messages := await consumer.poll(timeout=1.0):
            for message in messages:
                print(f"{message.keys[0]} is {message.tags}")
        await consumer.commit()

    async with AdminClient(name_server) as admin:
        for message in await admin.messages_by_key(TOPIC, "order-2"):
            print(f"order-2 was found in {message.queue}: it is {message.tags}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
