"""Send messages that are delivered at a time, and recall one of them.

The broker needs recallMessageEnable=true for the recall.
"""

import asyncio
import sys
import time

from cometmq.client import AdminClient, Message, Producer, PullConsumer, ResponseError, StartFrom

TOPIC = "alarms"


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        queues = await admin.create_topic(TOPIC, queues=1)
    async with (
        Producer(name_server, group="clock") as producer,
        PullConsumer(name_server, group="sleepers", start_from=StartFrom.FIRST) as consumer,
    ):
        await consumer.assign(queues)
        begun = time.time()
        await producer.send(Message(topic=TOPIC, body=b"after 1.5 s", delay=1.5))
        at = round((begun + 2.5) * 1000)
        await producer.send(Message(topic=TOPIC, body=b"at a time", deliver_at=at))
        receipt = await producer.send(Message(topic=TOPIC, body=b"never", delay=60))
        try:
            if receipt.recall_handle is not None:  # RocketMQ 4 has no timers
                await producer.recall(TOPIC, receipt.recall_handle)
                print("recalled")
        except ResponseError as refused:
            print(f"not recalled: {refused.remark}")
        async for message in consumer:
            print(f"after {time.time() - begun:.1f} s: {message.body.decode()}")
            if message.body == b"at a time":
                break
        await consumer.commit()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
