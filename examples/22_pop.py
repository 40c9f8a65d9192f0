"""Consume with pop: the broker delivers single messages, and members have no assigned queues.

Ctrl-C ends the program. RocketMQ's brokers need version 5.0 and ``timerWheelEnable=true``.
"""

import asyncio
import sys

from cometmq.client import AdminClient, Message, PopConsumer, Producer, StartFrom, StoredMessage

TOPIC = "tickets"


async def serve(message: StoredMessage) -> None:
    print(f"served {message.body.decode()}")


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=2)
    async with Producer(name_server, group="door") as producer:
        for number in range(4):
            await producer.send(Message(topic=TOPIC, body=b"ticket %d" % number))

    consumer = PopConsumer(
        name_server,
        group="counter",
        handler=serve,
        subscriptions={TOPIC: "*"},
        start_from=StartFrom.FIRST,
        invisible_ms=30_000,
    )
    await consumer.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
