"""A broker logs sends whose disk or slaves are slow, and pulls that wait for the disk."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator

import pytest

from cometmq.broker.app import Broker
from cometmq.client import Message, Producer, PullConsumer
from cometmq.testing import Cluster

LIMIT_MS = 50
SLOW_S = 0.1


class SlowDisk:
    """A store whose syncs take long."""

    def __init__(self, broker: Broker) -> None:
        self._flush = broker.core.store.flush

    def flush(self, least_pages: int = 0) -> int:
        time.sleep(SLOW_S)
        return self._flush(least_pages)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(settings={"slowRequestMs": str(LIMIT_MS)}) as cluster:
        yield cluster


def spent(messages: list[str], code: str) -> dict[str, int]:
    """Return where the time of the last slow request with a code was spent."""
    [*_, line] = [each for each in messages if f"slow request code={code} " in each]
    assert re.search(r" opaque=\d+ peer=127\.0\.0\.1:\d+ ", line), line
    parts = line.partition("spent=")[2].split(",")
    return {what: int(ms) for what, ms in (part.split(":") for part in parts)}


@pytest.mark.parametrize("count", [1, 20])
async def test_sends_that_wait_for_the_disk_are_logged(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    async with Producer(cluster.name_servers, group="p") as producer:
        await producer.send(Message("orders", b"creates the topic"))
        cluster.brokers[0].features.durability.commit._store = SlowDisk(cluster.brokers[0])
        caplog.clear()
        for number in range(count):
            await producer.send(Message("orders", b"%d" % number))

    found = spent(caplog.messages, "SEND_MESSAGE_V2")
    assert found["flush"] >= LIMIT_MS
    assert found["append"] < found["flush"]
    assert any("topic=orders" in each for each in caplog.messages)
    assert sum("slow request code=SEND" in each for each in caplog.messages) <= 20


async def test_a_pull_that_waits_for_messages_is_not_slow(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        Producer(cluster.name_servers, group="p") as producer,
        PullConsumer(cluster.name_servers, group="g") as consumer,
    ):
        receipt = await producer.send(Message("orders", b"1"))
        caplog.clear()
        await consumer.pull(receipt.queue, 1, wait=4 * SLOW_S)

    assert [each for each in caplog.messages if "code=PULL" in each] == []
