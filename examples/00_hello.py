"""Send a message and handle it. Start a server first: ``cometmq standalone``. Ctrl-C ends it."""

import asyncio
import sys

from cometmq.client import Producer, PushConsumer, StoredMessage


async def greet(message: StoredMessage) -> None:
    print(f"handled {message.body.decode()}")


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with Producer(name_server) as producer:
        await producer.send("greetings", b"hello")
    await PushConsumer(name_server, group="greeters", topic="greetings", handler=greet).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
