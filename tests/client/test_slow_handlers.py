"""Handlers that are slow or never end: the backlog in memory and the stop are bounded."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter

import pytest

from cometmq.client import (
    ClientInstance,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    StoredMessage,
)
from support.checks.waiting import until
from support.clients.consumer_inputs import from_the_first
from support.clients.stream import QUICK_CLIENT, QUICK_PUSH
from support.runner.tiers import rounds

pytestmark = pytest.mark.long_elsewhere

HELD_MAX = 40
PULL_BATCH = 16
STOP_S = QUICK_PUSH.stop_ms / 1000
HANGS_S = 60.0
"""What takes so long hangs."""
CALLS_PER_TURN_MAX = 100
"""Calls of 0.2 ms in one turn of the loop: four times as many as a turn of 5 ms has room for."""


async def send(instance: ClientInstance, group: str, queues: list[MessageQueue], each: int) -> None:
    """Put so many messages into each queue."""
    async with Producer(instance=instance, group=f"{group}-p") as producer:
        for queue in queues:
            for first in range(0, each, 20):
                batch = [
                    Message(topic=queue.topic, body=f"{queue.queue_id}-{number}".encode())
                    for number in range(first, first + 20)
                ]
                await producer.send_batch(batch, queue=queue)


def consumer(name_servers: str, topic: str, group: str, **more: object) -> PushConsumer:
    return PushConsumer(
        name_servers,
        **from_the_first(group, topic),
        settings=QUICK_PUSH,
        client=QUICK_CLIENT,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("ordered", [False, True], ids=["concurrent", "ordered"])
async def test_what_waits_for_a_slow_handler_is_bounded_and_all_of_it_is_consumed(
    instance: ClientInstance,
    name_servers: str,
    queues: list[MessageQueue],
    group: str,
    ordered: bool,
) -> None:
    each = rounds(test=10, long=100) * HELD_MAX
    await send(instance, group, queues, each)
    may_go_on = asyncio.Event()
    seen: Counter[bytes] = Counter()

    async def slow(message: StoredMessage) -> None:
        await may_go_on.wait()
        seen[message.body] += 1

    async with consumer(
        name_servers,
        queues[0].topic,
        group,
        handler=slow,
        ordered=ordered,
        queue_messages_max=HELD_MAX,
        pull_batch=PULL_BATCH,
    ) as slowly:
        held = await most_held(slowly, len(queues))
        may_go_on.set()
        await until(lambda: len(seen) >= each * len(queues), timeout=120)

    # A pull goes out while the queue is just at its limit, and brings one batch more.
    assert held <= HELD_MAX + PULL_BATCH
    assert max(seen.values()) == 1


async def most_held(running: PushConsumer, queues: int) -> int:
    """Wait until every queue has stopped pulling, and give what the fullest one holds."""
    before: list[int] = []
    async with asyncio.timeout(120):
        while True:
            await asyncio.sleep(0.3)
            table = running.running_info().mq_table
            held = sorted(
                info.cached_msg_count + info.transaction_msg_count
                for queue, info in table.items()
                if not queue.topic.startswith("%RETRY%")
            )
            if held == before and len(held) == queues and held[0] >= HELD_MAX:
                return held[-1]
            before = held


async def test_a_handler_that_never_ends_holds_up_nobody_else_and_its_message_is_not_lost(
    instance: ClientInstance, name_servers: str, queues: list[MessageQueue], group: str
) -> None:
    await send(instance, group, queues, 20)
    seen: set[bytes] = set()
    stuck: set[bytes] = set()

    async def hangs_once(message: StoredMessage) -> None:
        if message.body.endswith(b"-7"):
            stuck.add(message.body)
            await asyncio.Event().wait()
        seen.add(message.body)

    async with consumer(name_servers, queues[0].topic, group, handler=hangs_once):
        await until(lambda: len(seen) >= 19 * len(queues), timeout=120)
        began = time.monotonic()
    assert time.monotonic() - began < STOP_S + HANGS_S
    again: set[bytes] = set()

    async def takes(message: StoredMessage) -> None:
        again.add(message.body)

    async with consumer(name_servers, queues[0].topic, group, handler=takes):
        await until(lambda: stuck <= again, timeout=120)

    assert len(stuck) == len(queues)


async def test_a_plain_handler_that_never_ends_is_abandoned_and_the_log_says_so(
    instance: ClientInstance,
    name_servers: str,
    queues: list[MessageQueue],
    group: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await send(instance, group, queues[:1], 20)
    begun, release = threading.Event(), threading.Event()

    def hangs(message: StoredMessage) -> None:
        begun.set()
        release.wait(60)

    try:
        with caplog.at_level(logging.WARNING):
            async with consumer(name_servers, queues[0].topic, group, handler=hangs):
                await asyncio.to_thread(begun.wait, 120)
                began = time.monotonic()
        took = time.monotonic() - began
    finally:
        release.set()

    assert took < STOP_S + HANGS_S
    said = [line.getMessage() for line in caplog.records if "still run" in line.getMessage()]
    assert len(said) == 1
    assert f"group={group}" in said[0]


async def test_a_handler_that_keeps_the_loop_busy_does_not_starve_heartbeats_and_pulls(
    instance: ClientInstance, name_servers: str, queues: list[MessageQueue], group: str
) -> None:
    """The loop gets its turn after some handlers, though none of them waits."""
    await send(instance, group, queues, 1000)
    seen = turns = 0

    async def busy(message: StoredMessage) -> None:
        nonlocal seen
        seen += 1
        end = time.perf_counter() + 0.0002
        while time.perf_counter() < end:
            pass

    async with consumer(name_servers, queues[0].topic, group, handler=busy):
        async with asyncio.timeout(120):
            while seen < 4000:
                before = seen
                await asyncio.sleep(0)
                turns += seen > before

    assert turns >= 4000 / CALLS_PER_TURN_MAX
