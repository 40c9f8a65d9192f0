"""List the dead letters of a group, and send them again when the cause is fixed.

The handler gives up at once while the stock is empty. Only its group receives the message again.
"""

import asyncio
import sys

from cometmq.client import (
    AdminClient,
    ConsumeLater,
    Message,
    Producer,
    PushConsumer,
    StartFrom,
    StoredMessage,
)

TOPIC, GROUP = "picking-lists", "picking-desk"
stock: list[str] = []
packed: asyncio.Queue[str] = asyncio.Queue()


async def pack(message: StoredMessage) -> None:
    if not stock:
        raise ConsumeLater(delay_level=-1) from LookupError("no hats")
    packed.put_nowait(f"packed {stock.pop()} for {message.body.decode()}")


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=1)
        await admin.create_topic(f"%DLQ%{GROUP}", queues=1)
        async with (
            Producer(name_server, group="shop") as producer,
            PushConsumer(
                name_server,
                group=GROUP,
                handler=pack,
                subscriptions={TOPIC: "*"},
                start_from=StartFrom.FIRST,
            ),
        ):
            await producer.send(Message(topic=TOPIC, body=b"order-1", keys=["order-1"]))
            for _ in range(600):
                page = await admin.dead_letters(GROUP, limit=100)
                if page.letters:
                    break
                await asyncio.sleep(0.1)
            for letter in page.letters:
                print(f"{letter.message.keys} after {letter.retries} retries: {letter.error}")

            stock.append("a hat")
            while page.letters:
                for result in await admin.resend_dead_letters(page.letters):
                    print(f"{result.status.value} to {result.topic}")
                page = await admin.dead_letters(GROUP, limit=100, ranges=page.rest)
            print(await packed.get())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
