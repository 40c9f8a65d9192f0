"""Send a message now that arrives later.

A delay level is a number: 1 is one second, 2 five seconds, 3 ten, and so on to 18, two hours.
"""

import asyncio
import os
import time

from cometmq.client import Message, Producer, PullConsumer

NAME_SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-reminders"
ONE_SECOND = 1


async def main() -> None:
    async with (
        Producer(NAME_SERVERS, group="example-producer") as producer,
        PullConsumer(NAME_SERVERS, group="example-reminded") as consumer,
    ):
        await producer.send(Message(topic=TOPIC, body=b"at once"))
        await producer.send(Message(topic=TOPIC, body=b"later", delay_level=ONE_SECOND))
        await consumer.assign(await consumer.fetch_queues(TOPIC))
        begun = time.monotonic()
        async for message in consumer:
            print(f"after {time.monotonic() - begun:.1f} s: {message.body.decode()}")
            if message.body == b"later":
                await consumer.commit()
                break


asyncio.run(main())
