"""Starts its own broker, sends a message and handles it, until Ctrl-C."""

import asyncio

from cometmq import Producer, PushConsumer, StoredMessage, embedded


async def handle(message: StoredMessage) -> None:
    print("handled", message.body.decode())


async def main() -> None:
    async with embedded.open("data") as broker, Producer(broker) as producer:
        await producer.send("orders", b"hello")
        await PushConsumer(broker, topic="orders", group="billing", handler=handle).run()


asyncio.run(main())
