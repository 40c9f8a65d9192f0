"""Packs orders. All running workers share the orders.

Run: ``python worker.py [name server]``. Ctrl-C stops it in good order.
"""

import asyncio
import contextlib
import sys

from cometmq.client import PushConsumer, StartFrom, StoredMessage


async def pack(message: StoredMessage) -> None:
    await asyncio.sleep(0.1)
    print(f"packed {message.body.decode()} of queue {message.queue_id}", flush=True)


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with PushConsumer(
        name_server,
        group="packers",
        handler=pack,
        subscriptions={"hats": "*"},
        start_from=StartFrom.FIRST,
    ) as consumer:
        print("ready", flush=True)
        await consumer.until_failed()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))
