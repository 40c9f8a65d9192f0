"""A push consumer in a process of its own, which a test stops with SIGSTOP.

``python stopped_member.py NAME_SERVERS TOPIC GROUP ORDERED IDLE_S PAUSE_S``. The times replace
those after which a member that stood still releases its queues, and after which it doubts them, so
that a test need not wait for minutes. Prints ``QUEUE OFFSET SECONDS`` after each handler call.
"""

from __future__ import annotations

import asyncio
import sys
import time

from cometmq.client import PushConsumer, StartFrom, StoredMessage
from cometmq.client._consuming import pause_detector
from cometmq.client._push import assigned_queues

HANDLER_S = 0.02


async def handle(message: StoredMessage) -> None:
    await asyncio.sleep(HANDLER_S)
    print(message.queue_id, message.queue_offset, time.monotonic(), flush=True)


async def main(
    name_servers: str, topic: str, group: str, ordered: str, idle_s: str, pause_s: str
) -> None:
    assigned_queues.IDLE_S = float(idle_s)
    pause_detector.PAUSE_S = float(pause_s)
    consumer = PushConsumer(
        name_servers,
        group=group,
        handler=handle,
        ordered=ordered == "ordered",
        subscriptions={topic: "*"},
        start_from=StartFrom.FIRST,
        concurrency=1,
        heartbeat_ms=500,
        hold_ms=500,
        rebalance_ms=1_000,
        persist_ms=200,
    )
    await consumer.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
