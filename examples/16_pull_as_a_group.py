"""Share a topic's queues among pull consumers, and poll messages at your own pace.

A message counts as consumed when the next ``poll`` begins; consumed messages are committed
automatically. Here two members run in one program.

``ready`` returns when a member has queues of its own. After a member has joined, the others keep
their queues until their next rebalance, so the program waits until all queues are shared.
"""

import asyncio
import sys
from collections.abc import Collection

from cometmq.client import (
    AdminClient,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    StartFrom,
)

TOPIC = "letters"


async def take(name: str, consumer: PullConsumer) -> None:
    while messages := await consumer.poll(timeout=5.0):
        for message in messages:
            print(f"{name} took {message.body.decode()}")


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=4)

    shares: dict[str, int] = {}
    all_shared = asyncio.Event()

    def clerk(name: str) -> PullConsumer:
        def on_queues(
            topic: str, queues: Collection[MessageQueue], assigned: Collection[MessageQueue]
        ) -> None:
            shares[name] = len(assigned)
            if len(shares) == 2 and sum(shares.values()) == len(queues):
                all_shared.set()

        return PullConsumer(
            name_server,
            group="clerks",
            subscriptions={TOPIC: "*"},
            start_from=StartFrom.FIRST,
            on_queues=on_queues,
        )

    async with clerk("Ann") as ann, clerk("Bob") as bob:
        await all_shared.wait()

        async with Producer(name_server, group="post") as producer:
            for number in range(8):
                await producer.send(Message(topic=TOPIC, body=b"letter %d" % number))
        await asyncio.gather(take("Ann", ann), take("Bob", bob))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
