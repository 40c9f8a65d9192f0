"""Send a thousand messages at once, and see what failed."""

import asyncio
import os
import time

from cometmq.client import Message, Producer, SendReceipt

NAME_SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-throughput"


async def main() -> None:
    messages = [Message(topic=TOPIC, body=f"event {n}".encode()) for n in range(1000)]
    async with Producer(NAME_SERVERS, group="example-producer") as producer:
        begun = time.perf_counter()
        results = await asyncio.gather(
            *(producer.send(message) for message in messages), return_exceptions=True
        )
        seconds = time.perf_counter() - begun
    stored = [result for result in results if isinstance(result, SendReceipt)]
    print(f"{len(stored)} of {len(messages)} stored in {seconds:.2f} s")


asyncio.run(main())
