"""Ask a question by message and wait for the answer.

Whoever gets the request answers it with ``reply``; the answer goes straight to the one that asked.
"""

import asyncio
import sys

from cometmq.client import AdminClient, Message, Producer, PushConsumer, StartFrom, StoredMessage

TOPIC = "questions"


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=2)

    async with Producer(name_server, group="shop") as producer:

        async def answer(question: StoredMessage) -> None:
            name = question.body.decode()
            await producer.reply(question, f"{name} costs 12".encode())

        async with PushConsumer(
            name_server,
            group="price-desk",
            handler=answer,
            subscriptions={TOPIC: "*"},
            start_from=StartFrom.FIRST,
        ):
            reply = await producer.request(Message(topic=TOPIC, body=b"a hat"), timeout=20.0)
            print(reply.body.decode())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
