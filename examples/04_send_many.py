"""Keep many sends in flight, and send batches.

With synchronous flush every send waits for the disk. All sends that wait share one sync, so a
thousand sends in flight take hardly longer than one. ``send_soon`` starts a send and returns its
future; it waits only while too many sends are in flight.
"""

import asyncio
import sys
import time

from cometmq.client import Message, Producer


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with Producer(name_server, group="shop") as producer:
        messages = [Message(topic="clicks", body=b"%d" % n) for n in range(1000)]
        began = time.perf_counter()
        sends = [await producer.send_soon(message) for message in messages]
        receipts = await asyncio.gather(*sends)
        seconds = time.perf_counter() - began
        print(f"{len(receipts)} sends in flight: {len(receipts) / seconds:.0f} per second")

        batch = await producer.send_batch(messages[:100])
        print(f"a batch of 100 begins at offset {batch.queue_offset} of {batch.queue}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
