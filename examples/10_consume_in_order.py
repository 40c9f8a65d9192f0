"""Consume in order: the handler gets one message of a queue at a time.

After a failure the queue waits until the same message is consumed.
"""

import asyncio
import sys

from cometmq.client import AdminClient, Message, Producer, PushConsumer, StartFrom, StoredMessage

TOPIC = "order-log"
STEPS = ("placed", "paid", "shipped")


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=4)
    done = asyncio.Semaphore(0)
    failed: set[str] = set()

    async def record(message: StoredMessage) -> None:
        step = f"{message.keys[0]} {message.body.decode()}"
        if step == "order-1 paid" and step not in failed:
            failed.add(step)
            raise ConnectionError("the ledger does not respond")
        print(step)
        done.release()

    async with Producer(name_server, group="shop") as producer:
        for step in STEPS:
            for order in ("order-1", "order-2"):
                message = Message(topic=TOPIC, body=step.encode(), keys=[order])
                await producer.send(message, order_key=order)

    async with PushConsumer(
        name_server,
        group="ledger",
        handler=record,
        ordered=True,
        subscriptions={TOPIC: "*"},
        start_from=StartFrom.FIRST,
    ):
        for _ in range(6):
            await done.acquire()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
