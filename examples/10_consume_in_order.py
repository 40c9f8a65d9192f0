"""Consume in order: the handler gets one message of a queue at a time.

After a failure the queue waits until the same message is consumed. Ctrl-C ends the program.
"""

import asyncio
import sys

from cometmq.client import AdminClient, Message, Producer, PushConsumer, StartFrom, StoredMessage

TOPIC = "order-log"
STEPS = ("placed", "paid", "shipped")


class Ledger:
    """A ledger that is down at its first payment."""

    def __init__(self) -> None:
        self.is_down = True

    async def record(self, message: StoredMessage) -> None:
        if self.is_down and message.body == b"paid":
            self.is_down = False
            raise ConnectionError("the ledger does not respond")
        print(f"{message.keys[0]} {message.body.decode()}")


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=4)

    async with Producer(name_server, group="shop") as producer:
        for step in STEPS:
            for order in ("order-1", "order-2"):
                message = Message(topic=TOPIC, body=step.encode(), keys=[order])
                await producer.send(message, order_key=order)

    consumer = PushConsumer(
        name_server,
        group="ledger",
        handler=Ledger().record,
        ordered=True,
        subscriptions={TOPIC: "*"},
        start_from=StartFrom.FIRST,
    )
    await consumer.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
