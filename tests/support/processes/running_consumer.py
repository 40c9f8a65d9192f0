"""Consumers that run until a signal, as a process that a test may stop.

``python running_consumer.py NAME_SERVERS TIMEOUT SECONDS TOPIC GROUP [GROUP]``. The handler of each
group prints ``begun GROUP BODY``, takes so many seconds, and prints ``done GROUP BODY``. When
``run()`` returns, it prints ``ended GROUP``.
"""

from __future__ import annotations

import asyncio
import sys

from cometmq.client import PushConsumer, StartFrom, StoredMessage


async def consume(
    name_servers: str, timeout: float, seconds: float, topic: str, group: str
) -> None:
    async def handle(message: StoredMessage) -> None:
        print("begun", group, message.body.decode(), flush=True)
        await asyncio.sleep(seconds)
        print("done", group, message.body.decode(), flush=True)

    consumer = PushConsumer(
        name_servers,
        group=group,
        handler=handle,
        subscriptions={topic: "*"},
        start_from=StartFrom.FIRST,
        persist_ms=60_000,
    )
    await consumer.run(timeout)
    print("ended", group, flush=True)


async def main(name_servers: str, timeout: str, seconds: str, topic: str, *groups: str) -> None:
    await asyncio.gather(
        *(consume(name_servers, float(timeout), float(seconds), topic, each) for each in groups)
    )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
