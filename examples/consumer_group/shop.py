"""Sends orders for twenty hats. Run: ``python shop.py [name server]``."""

import asyncio
import sys

from cometmq.client import AdminClient, Message, Producer


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic("hats", queues=4)
    async with Producer(name_server, group="shop") as producer:
        for number in range(20):
            await producer.send(Message(topic="hats", body=b"hat %d" % number))
    print("ordered 20 hats")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
