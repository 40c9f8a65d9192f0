"""Retry a message, read the dead letter it becomes, and send its body to another topic.

A failed message is redelivered after 10 s, 30 s, 1 min and so on, at most 16 times by default. This
example allows one retry, so it takes 10 s. Dead letters are in the topic ``%DLQ%<group>``. A broker
creates it with the first dead letter, and consumers notice it after up to 20 s; so the example
creates it first.
"""

import asyncio
import sys

from cometmq.client import (
    AdminClient,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    StartFrom,
    StoredMessage,
)

TOPIC, GROUP = "invoices", "billing-desk"
DEAD_LETTERS = f"%DLQ%{GROUP}"


async def bill(message: StoredMessage) -> None:
    print(f"delivery {message.reconsume_times + 1} of {message.body.decode()}")
    raise ValueError("no such customer")


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=4)
        await admin.create_topic(DEAD_LETTERS, queues=1)

    first = StartFrom.FIRST
    billing = PushConsumer(
        name_server,
        group=GROUP,
        handler=bill,
        subscriptions={TOPIC: "*"},
        start_from=first,
        retries_max=1,
    )
    async with (
        Producer(name_server, group="shop") as producer,
        PullConsumer(name_server, group="repair", start_from=first) as dead_letters,
        billing,
    ):
        await producer.send(Message(topic=TOPIC, body=b"invoice 7", keys=["invoice-7"]))

        await dead_letters.subscribe(DEAD_LETTERS)
        letter = await anext(dead_letters)
        print(f"{letter.body.decode()} failed with {letter.properties['CONSUME_ERROR']}")
        await producer.send(Message(topic="invoices-checked", body=letter.body))
        await dead_letters.commit()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
