"""Run tasks of Taskiq, now and after a delay, and recall a scheduled task before it is due.

Here the worker is in the same program. In production it is the command ``taskiq worker``. The
broker needs recallMessageEnable=true for the recall.
"""

import asyncio
import sys
from datetime import UTC, datetime, timedelta

from taskiq.receiver import Receiver

from cometmq.client import ResponseError
from cometmq.taskiq import CometBroker, TimerScheduleSource


async def main(name_server: str = "127.0.0.1:9876") -> None:
    broker = CometBroker(name_server, topic="priced", group="pricing")
    source = TimerScheduleSource(broker)
    priced, finish = asyncio.Event(), asyncio.Event()

    @broker.task(task_name="price")
    async def price(article: str, euros: int) -> None:
        print(f"{article} costs {euros}")
        priced.set()

    await broker.startup()
    worker = asyncio.create_task(Receiver(broker, run_startup=False).listen(finish))
    await price.kicker().with_labels(delay=1.0).kiq("a hat", 12)
    await priced.wait()

    tomorrow = datetime.now(UTC) + timedelta(days=1)
    schedule = await price.schedule_by_time(source, tomorrow, "a coat", 80)
    try:
        await schedule.unschedule()
        print("recalled")
    except ResponseError as refused:
        print(f"not recalled: {refused.remark}")
    finish.set()
    await worker
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
