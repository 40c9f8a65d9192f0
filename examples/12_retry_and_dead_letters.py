"""See a message come again, die, tell why it died, and send it anew.

A message that fails comes again after 10 s, 30 s, 1 min and so on, 16 times by default. Here one
retry is allowed. A dead letter lies in the topic ``%DLQ%`` and the group's name.
"""

import asyncio
import sys

from cometmq.client import Message, Producer, PullConsumer, PushConsumer, StartFrom, StoredMessage

TOPIC, GROUP = "invoices", "billing-desk"


async def main(name_server: str = "127.0.0.1:9876") -> None:
    tries = asyncio.Semaphore(0)

    async def bill(message: StoredMessage) -> None:
        print(f"delivery {message.reconsume_times + 1} of {message.body.decode()}")
        tries.release()
        raise ValueError("no such customer")

    async with Producer(name_server, group="shop") as producer:
        await producer.send(Message(topic=TOPIC, body=b"invoice 7", keys=["invoice-7"]))
        async with PushConsumer(
            name_server,
            group=GROUP,
            handler=bill,
            subscriptions={TOPIC: "*"},
            start_from=StartFrom.FIRST,
            deliveries_max=1,
        ):
            for _ in range(2):
                await tries.acquire()

        first = StartFrom.FIRST
        async with PullConsumer(name_server, group="undertaker", start_from=first) as dead:
            await dead.assign(await dead.fetch_queues(f"%DLQ%{GROUP}"))
            async for letter in dead:
                print(f"{letter.body.decode()} died of {letter.properties['CONSUME_ERROR']}")
                await producer.send(Message(topic="invoices-checked", body=letter.body))
                break
            await dead.commit()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
