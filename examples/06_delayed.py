"""Send a message now that arrives later.

A delay level is a number: 1 is one second, 2 five seconds, 3 ten, and so on to 18, two hours.
"""

import asyncio
import sys
import time

from cometmq.client import AdminClient, Message, Producer, PullConsumer, StartFrom

TOPIC = "reminders"
ONE_SECOND = 1


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        queues = await admin.create_topic(TOPIC, queues=2)
    async with (
        Producer(name_server, group="calendar") as producer,
        PullConsumer(name_server, group="reminded", start_from=StartFrom.FIRST) as consumer,
    ):
        await consumer.assign(queues)
        begun = time.monotonic()
        await producer.send(Message(topic=TOPIC, body=b"later", delay_level=ONE_SECOND))
        await producer.send(Message(topic=TOPIC, body=b"at once"))
        async for message in consumer:
            print(f"after {time.monotonic() - begun:.1f} s: {message.body.decode()}")
            if message.body == b"later":
                break
        await consumer.commit()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
