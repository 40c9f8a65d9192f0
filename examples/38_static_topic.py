"""Create a static topic, send to it, and look which queues a move would take to other brokers.

The queues of a static topic have numbers of their own, and no broker in their name.
"""

import asyncio
import sys

from cometmq.client import AdminClient, Producer

TOPIC, QUEUES = "ledger", 4


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin, Producer(name_server, group="bank") as producer:
        if TOPIC not in await admin.topics():
            await admin.create_static_topic(TOPIC, QUEUES)
        for number in range(QUEUES):
            receipt = await producer.send(TOPIC, b"entry %d" % number)
            print(f"queue {receipt.queue.queue_id}, offset {receipt.queue_offset}")
        brokers = sorted((await admin.cluster_info()).broker_addr_table)
        plan = await admin.plan_queue_moves(TOPIC, brokers)
        print(f"{len(plan.moves)} queues would move to {', '.join(brokers)}")
        # await admin.move_static_queues(TOPIC, brokers)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
