"""CPU time of a pull consumer for each message that waits in memory, without servers.

``python benchmarks/pull_consumer.py``
"""

from __future__ import annotations

import asyncio
import time

from cometmq.client import PullConsumer
from cometmq.client._consuming.pulls import PullResult, PullStatus
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import LogOffset, QueueOffset
from cometmq.model.queue import MessageQueue

QUEUE = MessageQueue("t", "a", 0)
ROUNDS = 5
WARM_UP = 2_000


def messages(count: int) -> list[StoredMessage]:
    """Make the messages of one pull."""
    return [
        StoredMessage(
            topic="t", body=b"x", properties={}, queue_id=0, queue_offset=QueueOffset(offset),
            log_offset=LogOffset(0), flag=0, sys_flag=0, born_time_ms=0, born_host="",
            store_time_ms=0, store_host="", reconsume_times=0, prepared_offset=0, body_crc=0,
            size_bytes=100, offset_message_id="", broker_name="a",
        )
        for offset in range(count)
    ]  # fmt: skip


async def microseconds(batch: int, readers: int, count: int) -> float:
    """Measure one consumer whose pulls give batches of this size."""
    consumer = PullConsumer("127.0.0.1:1", group="g")
    found = messages(batch)

    async def pull(queue: MessageQueue, offset: QueueOffset) -> PullResult:
        ends = QueueOffset(batch)
        return PullResult(PullStatus.FOUND, found.copy(), ends, QueueOffset(0), ends)

    consumer._fetcher._pull = pull
    consumer._fetcher._span_max = 2**60
    consumer._open = True
    consumer._fetcher.begin(QUEUE, QueueOffset(0))

    async def hold() -> None:
        await anext(consumer)
        await asyncio.Event().wait()

    holding = [asyncio.create_task(hold()) for _ in range(readers - 1)]
    for _ in range(WARM_UP):
        await anext(consumer)
        await asyncio.sleep(0)
    begun = time.process_time()
    for _ in range(count):
        await anext(consumer)
    spent = time.process_time() - begun
    for task in holding:
        task.cancel()
    await asyncio.gather(*holding, return_exceptions=True)
    await consumer._fetcher.stop()
    return spent / count * 1e6


def main() -> None:
    """Measure the batches of brokers with messages in memory, large ones, and many readers."""
    for batch, readers, count in ((32, 1, 50_000), (1024, 1, 50_000), (32, 1000, 2_000)):
        best = min(asyncio.run(microseconds(batch, readers, count)) for _ in range(ROUNDS))
        print(f"batches of {batch}, {readers} readers: {best:.1f} µs per message")


if __name__ == "__main__":
    main()
