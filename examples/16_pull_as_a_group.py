"""Share a topic's queues among pull consumers, and poll messages at your own pace.

A message counts as consumed when the next ``poll`` begins; consumed messages are committed
automatically. Here two members run in one program.
"""

import asyncio
import sys

from cometmq.client import AdminClient, Message, Producer, PullConsumer, StartFrom

TOPIC = "letters"


async def take(name: str, consumer: PullConsumer) -> None:
    while messages := await consumer.poll(timeout=5.0):
        for message in messages:
            print(f"{name} took {message.body.decode()}")


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=4)

    def clerk() -> PullConsumer:
        return PullConsumer(name_server, group="clerks", start_from=StartFrom.FIRST)

    async with clerk() as ann, clerk() as bob:
        for consumer in (ann, bob):
            await consumer.subscribe(TOPIC)
            await consumer.ready()

        async with Producer(name_server, group="post") as producer:
            for number in range(8):
                await producer.send(Message(topic=TOPIC, body=b"letter %d" % number))
        await asyncio.gather(take("Ann", ann), take("Bob", bob))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
