"""Measures what it costs that queues change their owner without redelivery.

A group of push consumers shares topics of 4 queues each while messages are sent at a fixed rate. A
member starts alone, a second one joins, and then it leaves in order and another one joins at once,
as in a rolling restart. Broker, members and sender share the processors.

    .venv/bin/python benchmarks/handover.py --topics 20 --rate 600 --rounds 5

`PYTHONPATH` of another checkout's ``src`` measures that one: only public calls are used.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

from cometmq import embedded
from cometmq.client import AdminClient, Message, Producer, PushConsumer, StartFrom, StoredMessage
from cometmq.client.handlers import MessageHandler

QUEUES = 4
SETTLE_S = 2.0
"""The time after each change of members in which everything is counted to it."""


class Group:
    """The handler calls of all members."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, int, int]] = Counter()
        self.first: dict[str, asyncio.Future[float]] = {}
        """When each member got its first message."""
        self.delays: list[float] = []
        """From the birth of each message to its first call."""

    def handler(self, name: str) -> MessageHandler:
        """Return the handler of a member."""
        first = self.first[name] = asyncio.get_running_loop().create_future()

        async def handle(message: StoredMessage) -> None:
            if not first.done():
                first.set_result(time.perf_counter())
            place = message.topic, message.queue_id, message.queue_offset
            if not self.calls[place]:
                self.delays.append(time.time() - message.born_time_ms / 1000)
            self.calls[place] += 1
            await asyncio.sleep(0.001)

        return handle

    def repeated(self) -> int:
        """Return how many calls were for messages that a member had handled before."""
        return sum(count - 1 for count in self.calls.values())


async def measure(topics: int, rate: int) -> dict[str, float]:
    group, stack, results = Group(), AsyncExitStack(), {}
    names = [f"topic-{number}" for number in range(topics)]
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, embedded.open(folder) as broker:

        async def load(producer: Producer) -> None:
            started, sent = time.perf_counter(), 0
            while True:
                due = int((time.perf_counter() - started) * rate)
                await asyncio.gather(
                    *(producer.send(Message(names[n % topics], b"x")) for n in range(sent, due))
                )
                sent = max(sent, due)
                await asyncio.sleep(0.02)

        async def join(name: str, on: AsyncExitStack) -> None:
            """Start a member, and note how long it takes to be ready and to get a message."""
            began = time.perf_counter()
            group.delays.clear()
            member = PushConsumer(
                broker,
                group="g",
                handler=group.handler(name),
                subscriptions=dict.fromkeys(names, "*"),
                start_from=StartFrom.FIRST,
                instance_name=name,
            )
            await on.enter_async_context(member)
            await member.ready()
            results[f"{name}: ready, s"] = time.perf_counter() - began
            results[f"{name}: first message, s"] = await group.first[name] - began
            await asyncio.sleep(SETTLE_S)
            results[f"{name}: slowest message, s"] = max(group.delays)

        async with AdminClient(broker) as admin, Producer(broker) as producer, stack:
            for name in names:
                await admin.create_topic(name, queues=QUEUES)
            sending = asyncio.create_task(load(producer))
            leaving = AsyncExitStack()
            await join("alone", stack)
            await join("second", leaving)
            before = group.repeated()
            results["join: handled twice"] = before
            await leaving.aclose()
            await join("successor", stack)
            results["rolling restart: handled twice"] = group.repeated() - before
            sending.cancel()
            await asyncio.wait([sending])
    return results


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--topics", type=int, default=20)
    options.add_argument("--rate", type=int, default=600)
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    rounds = [asyncio.run(measure(chosen.topics, chosen.rate)) for _ in range(chosen.rounds)]
    print("| what | median | least | most |\n|---|--:|--:|--:|")
    for name in rounds[0]:
        values = [each[name] for each in rounds]
        median, least, most = statistics.median(values), min(values), max(values)
        print(f"| {name} | {median:.2f} | {least:.2f} | {most:.2f} |")


if __name__ == "__main__":
    main()
