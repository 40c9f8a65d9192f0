"""Receive single messages in the application's own loop, and settle each: ack, nack, extend.

RocketMQ's brokers need version 5.0 and ``timerWheelEnable=true``.
"""

import asyncio
import sys
from datetime import timedelta

from cometmq.client import AdminClient, Message, Producer, SimpleConsumer, StartFrom

TOPIC = "scans"


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=2)
    async with Producer(name_server, group="scanner") as producer:
        for page in (b"page 1", b"page 2", b"smudged page"):
            await producer.send(Message(topic=TOPIC, body=page))

    async with SimpleConsumer(
        name_server,
        group="archive",
        subscriptions={TOPIC: "*"},
        start_from=StartFrom.FIRST,
        invisible=30.0,
    ) as consumer:
        filed = 0
        while filed < 3:
            for message in await consumer.receive(max_messages=16, wait=10.0):
                page = message.body.decode()
                if page.startswith("smudged") and message.reconsume_times == 0:
                    await consumer.nack(message, delay=1.0)
                    continue
                await consumer.extend(message, timedelta(minutes=1))  # filing may take long
                print(f"filed {page}, delivery {message.reconsume_times + 1}")
                await consumer.ack(message)
                filed += 1


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
