"""Send one message and see where it is stored.

Start a server first: ``cometmq standalone``. Run: ``python examples/01_send.py [name server]``.
"""

import asyncio
import sys

from cometmq.client import Message, Producer


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with Producer(name_server, group="shop") as producer:
        message = Message(topic="orders", body=b"a green hat", tags="new", keys=["order-1"])
        receipt = await producer.send(message)
        print(f"{receipt.status.name}: {receipt.queue} at offset {receipt.queue_offset}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
