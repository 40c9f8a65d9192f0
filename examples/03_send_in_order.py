"""Send messages that belong together in order.

Messages with the same ``order_key`` go to the same queue, and a queue keeps its order. The program
creates the topic first, because a key may select another queue when the number of queues changes.
"""

import asyncio
import sys

from cometmq.client import AdminClient, Message, Producer

STEPS = ("placed", "paid", "shipped")


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic("order-steps", queues=8)
    async with Producer(name_server, group="shop") as producer:
        for step in STEPS:
            for order in ("order-1", "order-2", "order-3"):
                message = Message(topic="order-steps", body=step.encode(), keys=[order])
                receipt = await producer.send(message, order_key=order)
                print(f"{order} {step}: queue {receipt.queue.queue_id}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
