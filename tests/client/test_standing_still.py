"""A member that stands still for longer than its pulls last loses its queues, and notices it."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager

import pytest
from servers import Cluster, Settings

from cometmq.client import AdminClient, Message, MessageQueue, Producer, PushConsumer
from support.brokers.clusters import MakeCluster
from support.checks.waiting import until
from support.clients.consumer_inputs import from_the_first
from support.clients.recording_handlers import Seen
from support.processes import stopped_member

IDLE_S, PAUSE_S = 3.0, 2.0
"""Instead of 120 s and 5 s."""
SETTINGS: Settings = {
    "serverChannelMaxIdleTimeSeconds": 2,  # instead of 120
    "enableSlaveActingMaster": True,  # so that the broker sends heartbeats to the name server
    "brokerHeartbeatInterval": 300,
}
LOCK_S = 60.0
"""How long a broker keeps the locks of a member that stands still."""
TIMEOUT_S = 120.0

Handled = list[tuple[int, int, float]]
"""Queue id, offset, and when the handler call ended, by the clock of all processes."""


@asynccontextmanager
async def running_member(
    *arguments: str,
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Handled]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, stopped_member.__file__), *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    lines, handled = process.stdout, Handled()

    async def read() -> None:
        async for line in lines:
            queue_id, offset, ended_s = line.split()
            handled.append((int(queue_id), int(offset), float(ended_s)))

    reading = asyncio.create_task(read())
    try:
        yield process, handled
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        await process.wait()
        await reading


@pytest.mark.only_on("comet")
@pytest.mark.parametrize("order", ["concurrent", pytest.param("ordered", marks=pytest.mark.long)])
async def test_a_member_that_stood_still_handles_nothing_that_another_one_has_committed(
    make_cluster: MakeCluster, starter: Executor, order: str
) -> None:
    loop = asyncio.get_running_loop()
    cluster: Cluster = await loop.run_in_executor(starter, make_cluster, SETTINGS)
    seen, group, topic = Seen(), "g", "standing-still"
    async with (
        AdminClient(cluster.namesrv) as admin,
        Producer(cluster.namesrv, group="p") as producer,
    ):
        queues = await admin.create_topic(topic, queues=2)

        async def send(count: int) -> None:
            for queue in queues:
                await asyncio.gather(
                    *(producer.send(Message(topic, b"x"), queue=queue) for _ in range(count))
                )

        async def committed() -> dict[MessageQueue, int]:
            return {
                queue: offset or 0
                for queue, offset in (await admin.committed(group, topic)).items()
            }

        arguments = (cluster.namesrv, topic, group, order, str(IDLE_S), str(PAUSE_S))
        async with running_member(*arguments) as (process, handled):
            await send(100)
            await until(lambda: len(handled) > 10)
            async with PushConsumer(
                cluster.namesrv,
                handler=seen,
                ordered=order == "ordered",
                **from_the_first(group, topic),
                heartbeat_ms=300,
                hold_ms=500,
                rebalance_ms=1_000,
                persist_ms=200,
            ) as other:
                await until(lambda: len(other.queues()) == 1)
                process.send_signal(signal.SIGSTOP)
                await until(lambda: len(other.queues()) == 2, timeout=LOCK_S + TIMEOUT_S)
                async with asyncio.timeout(TIMEOUT_S):
                    while set((await committed()).values()) != {100}:
                        await asyncio.sleep(0.05)
                await asyncio.sleep(IDLE_S)  # it has to stand still for longer than its pulls live
                continued_s = time.monotonic()
                process.send_signal(signal.SIGCONT)
                await until(lambda: len(other.queues()) == 1)
                await send(20)
                lowest: dict[MessageQueue, int] = dict.fromkeys(queues, 100)
                async with asyncio.timeout(TIMEOUT_S):
                    while set((now := await committed()).values()) != {120}:
                        assert all(now[queue] >= lowest[queue] for queue in queues), "lower commit"
                        lowest = now
                        await asyncio.sleep(0.05)
            later = [offset for _, offset, ended_s in handled if ended_s > continued_s]
            repeated = [offset for offset in later if offset < 100]
            assert len(repeated) <= 1, "at most the message of the handler call that stood still"
            assert any(offset >= 100 for offset in later), "it consumes again"
