"""Send a message that is delivered after a delay.

Delay level 1 is 1 s, 2 is 5 s, 3 is 10 s, and so on up to 18, which is 2 h.
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
