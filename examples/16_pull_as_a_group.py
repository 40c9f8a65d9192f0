"""Share a topic's queues among pull consumers, and poll messages at your own pace.

A message counts as consumed when the next ``poll`` begins; consumed messages are committed
automatically.
"""

import asyncio
import sys
from collections.abc import Collection

from cometmq.client import AdminClient, Message, MessageQueue, Producer, PullConsumer, StartFrom

TOPIC = "letters"


async def take(name: str, consumer: PullConsumer, left: set[bytes]) -> None:
    while left:
        for message in await consumer.poll(timeout=0.5):
            print(f"{name} took {message.body.decode()}")
            left.discard(message.body)
    await consumer.commit()


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=4)
    has_half = asyncio.Semaphore(0)

    def on_queues(
        topic: str, all_queues: Collection[MessageQueue], assigned: Collection[MessageQueue]
    ) -> None:
        if len(assigned) == 2:
            has_half.release()

    def clerk() -> PullConsumer:
        first = StartFrom.FIRST
        return PullConsumer(name_server, group="clerks", start_from=first, on_queues=on_queues)

    async with clerk() as ann, clerk() as bob, Producer(name_server, group="post") as producer:
        await ann.subscribe(TOPIC)
        await bob.subscribe(TOPIC)
        await has_half.acquire()
        await has_half.acquire()
        letters = [b"letter %d" % number for number in range(8)]
        for letter in letters:
            await producer.send(Message(topic=TOPIC, body=letter))
        left = set(letters)
        await asyncio.gather(take("Ann", ann, left), take("Bob", bob, left))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
