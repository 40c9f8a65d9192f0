"""Inspect a group's members and lag, find one message, and reset the group to a time."""

import asyncio
import sys
from datetime import UTC, datetime

from cometmq.client import AdminClient, Message, Producer, PullConsumer, StartFrom

TOPIC, GROUP = "watched", "watchmen"


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=1)
        start = datetime.now(UTC)
        async with Producer(name_server, group="town") as producer:
            receipts = [
                await producer.send(Message(topic=TOPIC, body=b"hour %d" % n)) for n in range(4)
            ]

        first = StartFrom.FIRST
        async with PullConsumer(name_server, group=GROUP, start_from=first) as consumer:
            await consumer.assign(await consumer.fetch_queues(TOPIC))
            for _ in range(2):
                await anext(consumer)
            await consumer.commit()
            members = await admin.consumer_connections(GROUP)
            print(f"{len(members.connection_set)} member is online")

        for queue in (await admin.lag(GROUP, TOPIC)).values():
            print(f"committed {queue.committed} of {queue.end}, lag {queue.lag}")
        found = await admin.message_by_unique_id(TOPIC, receipts[3].message_id)
        if found is not None:
            print(f"{receipts[3].queue_offset}: {found.body.decode()}")
        await admin.reset_to_time(GROUP, TOPIC, start)
        for queue in (await admin.lag(GROUP, TOPIC)).values():
            print(f"after the reset: lag {queue.lag}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
