"""Consume with a handler, as a member of a group, until Ctrl-C or SIGTERM.

When the handler returns, the message is consumed. When it raises, the message is redelivered later.
"""

import asyncio
import sys

from cometmq.client import Message, Producer, PushConsumer, StartFrom, StoredMessage

TOPIC = "parcels"


async def pack(message: StoredMessage) -> None:
    print(f"packed {message.body.decode()}")


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with Producer(name_server, group="shop") as producer:
        for number in range(5):
            await producer.send(Message(topic=TOPIC, body=b"parcel %d" % number))

    consumer = PushConsumer(
        name_server,
        group="packers",
        handler=pack,
        subscriptions={TOPIC: "*"},
        start_from=StartFrom.FIRST,
    )
    await consumer.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
