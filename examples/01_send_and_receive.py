"""Send ten messages and read them back.

Start a server first, in another terminal: cometmq standalone
"""

import asyncio
import os

from cometmq.client import Message, Producer, PullConsumer

NAME_SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-quickstart"


async def send() -> None:
    async with Producer(NAME_SERVERS, group="example-producer") as producer:
        for number in range(10):
            receipt = await producer.send(Message(topic=TOPIC, body=f"hello {number}".encode()))
            print(f"sent to {receipt.queue} offset {receipt.queue_offset}")


async def receive() -> None:
    async with PullConsumer(NAME_SERVERS, group="example-consumer") as consumer:
        await consumer.assign(await consumer.fetch_queues(TOPIC))
        received = 0
        async for message in consumer:
            print(f"received {message.body.decode()!r} from {message.queue}")
            received += 1
            if received == 10:
                await consumer.commit()
                break


async def main() -> None:
    await send()
    await receive()


asyncio.run(main())
