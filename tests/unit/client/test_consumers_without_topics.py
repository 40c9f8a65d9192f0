"""Consumers that are not started, or have nothing to read, say so instead of waiting for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from cometmq.client import (
    ClientClosedError,
    ClientError,
    PopConsumer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    StoredMessage,
)
from support.group_broker import GroupBroker
from support.scripted import ScriptedCluster
from support.seen import until

NOWHERE = "127.0.0.1:1"
NOTHING_TO_READ = "consumer g has no topics and no queues: call subscribe or assign first"
NO_SUBSCRIPTIONS = "consumer g runs without subscriptions: give topic= or call subscribe"


async def handle(message: StoredMessage) -> None:
    """A handler."""


READS: list[Callable[[PullConsumer], Any]] = [lambda each: each.poll(timeout=0.0), anext]


@pytest.mark.parametrize("read", READS, ids=["poll", "anext"])
async def test_reading_without_topics_and_queues_is_refused(
    read: Callable[[PullConsumer], Any],
) -> None:
    async with PullConsumer(NOWHERE, group="g") as consumer, asyncio.timeout(10):
        with pytest.raises(ClientError, match=NOTHING_TO_READ):
            await read(consumer)


@pytest.mark.parametrize("read", READS, ids=["poll", "anext"])
async def test_reading_after_the_last_topic_is_unsubscribed_is_refused(
    read: Callable[[PullConsumer], Any],
) -> None:
    async with (
        ScriptedCluster([GroupBroker()]) as cluster,
        PullConsumer(cluster.address, group="g", subscriptions={"t": "*"}) as consumer,
        asyncio.timeout(10),
    ):
        assert await consumer.poll(timeout=0.0) == []
        await consumer.unsubscribe("t")
        with pytest.raises(ClientError, match=NOTHING_TO_READ):
            await read(consumer)


async def test_a_consumer_that_is_assigned_no_queues_waits_for_some() -> None:
    async with PullConsumer(NOWHERE, group="g") as consumer:
        await consumer.assign([])
        assert await consumer.poll(timeout=0.0) == []


@pytest.mark.parametrize("kind", [PushConsumer, PopConsumer])
@pytest.mark.parametrize("subscribes", [False, True])
async def test_a_run_without_subscriptions_is_warned_of_once(
    kind: type[PushConsumer | PopConsumer], subscribes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def lines() -> list[str]:
        return [line for line in caplog.messages if line.startswith(NO_SUBSCRIPTIONS)]

    async with ScriptedCluster([GroupBroker()]) as cluster:
        consumer = kind(
            cluster.address,
            group="g",
            handler=handle,
            subscriptions={"unknown": "*"} if subscribes else None,
        )
        running = asyncio.create_task(consumer.run())
        await until(lambda: consumer.running and (subscribes or lines()))
        await consumer.close()
        await running

    assert len(lines()) == (0 if subscribes else 1)


def consumers(address: str, **options: Any) -> list[Any]:
    return [
        PushConsumer(address, group="push", handler=handle, **options),
        PopConsumer(address, group="pop", handler=handle, **options),
        PullConsumer(address, group="pull", **options),
        SimpleConsumer(address, group="simple", **options),
    ]


@pytest.mark.parametrize("number", range(4), ids=["push", "pop", "pull", "simple"])
async def test_a_consumer_that_is_not_started_or_closed_is_never_ready(number: int) -> None:
    consumer = consumers(NOWHERE)[number]
    with pytest.raises(ClientClosedError, match="is not running: start it first"):
        await consumer.ready()
    await consumer.close()
    with pytest.raises(ClientClosedError, match="is closed: create a new one"):
        await consumer.ready()


@pytest.mark.parametrize("number", range(4), ids=["push", "pop", "pull", "simple"])
async def test_a_consumer_is_ready_once_its_start_is_complete(number: int) -> None:
    async with ScriptedCluster([GroupBroker()]) as cluster, asyncio.timeout(10):
        consumer = consumers(cluster.address)[number]
        starting = asyncio.create_task(consumer.start())
        await consumer.ready()
        assert consumer.running
        await starting
        await consumer.close()


@pytest.mark.parametrize("number", range(4), ids=["push", "pop", "pull", "simple"])
async def test_a_start_that_hangs_is_why_a_consumer_is_not_ready(number: int) -> None:
    cluster = ScriptedCluster([GroupBroker()])
    cluster.name_server.silent = True
    async with cluster:
        consumer = consumers(cluster.address, subscriptions={"t": "*"})[number]
        starting = asyncio.create_task(consumer.start())
        with pytest.raises(TimeoutError, match=r"is not ready after 0.1 s: it is still starting"):
            await consumer.ready(timeout=0.1)

        waiting = asyncio.create_task(consumer.ready())
        await asyncio.sleep(0)
        await consumer.close()
        for call in (starting, waiting):
            with pytest.raises(ClientClosedError):
                await call


@pytest.mark.parametrize(
    "make", [partial(PushConsumer, handler=handle), PullConsumer], ids=["push", "pull"]
)
async def test_a_consumer_that_is_not_ready_says_that_no_name_server_responds(
    make: Callable[..., PushConsumer | PullConsumer],
) -> None:
    async with make(NOWHERE, group="g", subscriptions={"t": "*"}) as consumer:
        with pytest.raises(TimeoutError, match=r"no route of t: no name server .* 127\.0\.0\.1:1"):
            await consumer.ready(timeout=0.2)
