"""Read every message of a topic, oldest first, and commit the offsets.

Run ``01_send.py`` first. Run: ``python examples/02_receive.py [name server]``.
"""

import asyncio
import sys

from cometmq.client import PullConsumer, StartFrom


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with PullConsumer(name_server, group="audit", start_from=StartFrom.FIRST) as consumer:
        await consumer.assign(await consumer.fetch_queues("orders"))
        while messages := await consumer.poll(timeout=1.0):
            for message in messages:
                print(f"{message.tags}: {message.body.decode()}")
        await consumer.commit()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
