"""Brokers that are avoided because they were slow or failed, and their return."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.client import Message, Producer, SendFailedError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.remoting import Request, Response
from support.brokers.scripted import Act, ScriptedBroker, ScriptedCluster
from support.checks.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time")

MESSAGE = Message(topic="t", body=b"x")


async def send_some(producer: Producer, cluster: ScriptedCluster, count: int = 8) -> set[str]:
    """Send some messages and give the brokers they went to."""
    before = {broker.name: len(broker.sends) for broker in cluster.brokers}
    for _ in range(count):
        await producer.send(MESSAGE)
    return {broker.name for broker in cluster.brokers if len(broker.sends) > before[broker.name]}


@pytest.mark.parametrize("line", [4, 5])
@pytest.mark.parametrize("act", [ResponseCode.SYSTEM_BUSY, Act.HANG_UP])
async def test_a_broker_that_failed_is_avoided(line: int, act: int | Act) -> None:
    bad, good = ScriptedBroker("bad", *[act] * 9), ScriptedBroker("good")
    async with (
        ScriptedCluster([bad, good]) as cluster,
        Producer(
            cluster.address, group="g", latency_avoidance=True, rocketmq_version=line
        ) as producer,
    ):
        await send_some(producer, cluster)
        assert len(bad.sends) == 1
        assert await send_some(producer, cluster) == {"good"}


@pytest.mark.parametrize("line", [4, 5])
async def test_a_begun_send_that_is_refused_does_not_count_against_the_broker(line: int) -> None:
    """A lost connection does."""
    refusing = ScriptedBroker("refusing", *[ResponseCode.SYSTEM_BUSY] * 20)
    failing = ScriptedBroker("failing", *[Act.HANG_UP] * 20)
    good = ScriptedBroker("good")
    async with (
        ScriptedCluster([refusing, failing, good]) as cluster,
        Producer(
            cluster.address, group="g", latency_avoidance=True, rocketmq_version=line
        ) as producer,
    ):
        for _ in range(12):
            await asyncio.gather(producer.send_nowait(MESSAGE), return_exceptions=True)

    assert len(failing.sends) == 1
    assert len(refusing.sends) > 1
    assert len(good.sends) > 1


async def test_a_broker_that_failed_is_not_avoided_unless_that_is_set() -> None:
    brokers = [ScriptedBroker("bad", ResponseCode.SYSTEM_BUSY), ScriptedBroker("good")]
    async with (
        ScriptedCluster(brokers) as cluster,
        Producer(cluster.address, group="g") as producer,
    ):
        assert await send_some(producer, cluster) == {"bad", "good"}
        assert await send_some(producer, cluster) == {"bad", "good"}


async def test_when_all_are_avoided_one_is_used_all_the_same() -> None:
    brokers = [ScriptedBroker(name, ResponseCode.SYSTEM_BUSY) for name in "ab"]
    async with (
        ScriptedCluster(brokers) as cluster,
        Producer(cluster.address, group="g", latency_avoidance=True) as producer,
    ):
        await producer.send(MESSAGE)
        assert await send_some(producer, cluster)


async def test_a_broker_that_answers_a_probe_is_taken_back_at_once() -> None:
    probed = asyncio.Event()

    def answer(request: Request) -> Response:
        probed.set()
        return Response(ResponseCode.SYSTEM_ERROR, "whatever it says, it answers")

    bad, good = ScriptedBroker("bad", ResponseCode.SYSTEM_BUSY), ScriptedBroker("good")
    bad.handlers[RequestCode.GET_MAX_OFFSET] = answer
    settings = {"latency_avoidance": True, "detector": True, "detect_interval_ms": 20}
    async with (
        ScriptedCluster([bad, good]) as cluster,
        Producer(cluster.address, group="g", **settings) as producer,
    ):
        await send_some(producer, cluster)
        async with asyncio.timeout(60):
            await probed.wait()
            while await send_some(producer, cluster) != {"bad", "good"}:
                await asyncio.sleep(0.01)


async def test_a_broker_that_is_silent_stays_avoided() -> None:
    probes: list[Request] = []
    bad, good = ScriptedBroker("bad", ResponseCode.SYSTEM_BUSY), ScriptedBroker("good")
    bad.handlers[RequestCode.GET_MAX_OFFSET] = probes.append  # type: ignore[assignment]
    settings = {
        "latency_avoidance": True,
        "detector": True,
        "detect_interval_ms": 10,
        "detect_timeout_ms": 10,
    }
    async with (
        ScriptedCluster([bad, good]) as cluster,
        Producer(cluster.address, group="g", **settings) as producer,
    ):
        await send_some(producer, cluster)
        await until(lambda: len(probes) >= 2, timeout=60)
        assert await send_some(producer, cluster) == {"good"}


async def test_a_send_that_fails_everywhere_tells_so_with_slow_brokers_too() -> None:
    brokers = [ScriptedBroker(name, *[Act.HANG_UP] * 3) for name in "ab"]
    async with (
        ScriptedCluster(brokers) as cluster,
        Producer(cluster.address, group="g", latency_avoidance=True) as producer,
    ):
        with pytest.raises(SendFailedError):
            await producer.send(MESSAGE)
