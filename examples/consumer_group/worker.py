"""Packs orders. All running workers share the orders.

Run: ``python worker.py [name server] [seconds per hat]``. Ctrl-C stops it in good order.
"""

import asyncio
import sys

from cometmq.client import PushConsumer, StartFrom, StoredMessage


async def main(name_server: str = "127.0.0.1:9876", seconds: str = "1") -> None:
    async def pack(message: StoredMessage) -> None:
        await asyncio.sleep(float(seconds))
        print(f"packed {message.body.decode()} of queue {message.queue_id}")

    consumer = PushConsumer(
        name_server,
        group="hat-packers",
        handler=pack,
        subscriptions={"hats": "*"},
        start_from=StartFrom.FIRST,
        concurrency=2,
    )
    await consumer.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
