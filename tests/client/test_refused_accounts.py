"""A client whose account is refused, at the start and later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from cometmq.client import (
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ResponseError,
    StoredMessage,
)
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.remoting import Response
from support.brokers.group_broker import GroupBroker
from support.brokers.scripted import ScriptedCluster

REFUSAL = Response(ResponseCode.NO_PERMISSION, "check signature failed.")
PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


class GuardedBroker(GroupBroker):
    """A broker that serves a group, or refuses its account."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers[RequestCode.LITE_PULL_MESSAGE] = self.handlers[RequestCode.PULL_MESSAGE]
        self.handlers[RequestCode.HEART_BEAT] = self._unless_refused(
            RequestCode.HEART_BEAT, self._counted
        )

    def _counted(self, request: object) -> Response:
        response = self._heartbeat(request)  # type: ignore[arg-type]
        self.members = [self.heartbeats[-1].client_id]
        return response


async def ignore(message: StoredMessage) -> None:
    raise AssertionError


def push(names: str) -> PushConsumer:
    return PushConsumer(names, group="g", topic="t", handler=ignore, pull_timeout_ms=100)


def pull(names: str) -> PullConsumer:
    return PullConsumer(names, group="g", topic="t", hold_ms=0, response_margin_ms=100)


MakeConsumer = Callable[[str], PushConsumer | PullConsumer]


@pytest.mark.parametrize("make", [push, pull])
async def test_a_consumer_whose_account_is_refused_does_not_start(make: MakeConsumer) -> None:
    broker = GuardedBroker()
    broker.refuse[RequestCode.HEART_BEAT] = REFUSAL
    async with ScriptedCluster([broker]) as cluster:
        with pytest.raises(ResponseError, match="check signature failed"):
            await make(cluster.address).start()


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("make", [push, pull])
async def test_a_consumer_whose_account_is_refused_later_is_not_healthy_any_more(
    make: MakeConsumer,
) -> None:
    broker = GuardedBroker()
    async with ScriptedCluster([broker]) as cluster, make(cluster.address) as consumer:
        await consumer.ready(60)
        assert consumer.healthy

        for code in (*PULLS, RequestCode.HEART_BEAT, RequestCode.GET_CONSUMER_LIST_BY_GROUP):
            broker.refuse[code] = REFUSAL
        async with asyncio.timeout(300):
            await consumer._tasks.wait_failed()

        assert not consumer.healthy
        assert "check signature failed" in str(consumer.failure)


@pytest.mark.usefixtures("virtual_time")
async def test_a_consumer_that_is_not_ready_repeats_the_words_of_the_broker() -> None:
    broker = GuardedBroker()
    broker.refuse[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = Response(
        ResponseCode.SYSTEM_ERROR, "the disk is full of cats"
    )
    async with ScriptedCluster([broker]) as cluster, push(cluster.address) as consumer:
        with pytest.raises(TimeoutError, match=r"t: .*the disk is full of cats"):
            await consumer.ready(3)


async def test_a_topic_that_the_account_may_not_read_does_not_cost_the_others() -> None:
    broker = GuardedBroker()
    async with ScriptedCluster([broker]) as cluster, push(cluster.address) as consumer:
        cluster.name_server.routes["secret"] = cluster.name_server.routes["t"]
        answer = broker.handlers[RequestCode.HEART_BEAT]
        broker.handlers[RequestCode.HEART_BEAT] = lambda request: (
            REFUSAL if b'"secret"' in request.body else answer(request)
        )
        with pytest.raises(ResponseError, match="check signature failed"):
            await consumer.subscribe("secret")

        known = broker.heartbeats[-1].consumer_data_set[0].subscription_data_set
        assert {each.topic for each in known} == {"t", "%RETRY%g"}


async def test_a_producer_whose_account_is_refused_is_told_before_its_first_send() -> None:
    broker = GuardedBroker()
    broker.refuse[RequestCode.HEART_BEAT] = REFUSAL
    async with ScriptedCluster([broker]) as cluster:
        with pytest.raises(ResponseError, match="check signature failed"):
            await Producer(cluster.address, topics=("t",)).start()
        async with Producer(cluster.address) as producer:
            with pytest.raises(ResponseError, match="check signature failed"):
                await producer.ready("t")


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("latency", [False, True])  # the latter without the fast path
async def test_a_producer_whose_sends_are_refused_for_good_is_not_healthy_until_one_succeeds(
    latency: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    broker = GuardedBroker()
    async with (
        ScriptedCluster([broker]) as cluster,
        Producer(cluster.address, latency_avoidance=latency) as producer,
    ):
        await producer.send("t", b"x")
        for refused in range(7):
            assert producer.healthy, refused
            broker.script.append(ResponseCode.NO_PERMISSION)
            with pytest.raises(ResponseError) as raised:
                await producer.send("t", b"x")
            await asyncio.sleep(5)
        assert not producer.healthy
        assert producer.failure is raised.value
        await producer.send("t", b"x")
        assert (producer.healthy, producer.failure) == (True, None)
    assert not producer.healthy, "it is closed"
    lines = [each.getMessage() for each in caplog.records if "sends are" in each.getMessage()]
    assert len(lines) == 2


@pytest.mark.parametrize("queue", [None, MessageQueue("t", "a", 0)])
async def test_a_send_that_the_broker_refuses_for_the_account_is_not_repeated(
    queue: MessageQueue | None,
) -> None:
    broker = GuardedBroker()
    broker.script.extend([ResponseCode.NO_PERMISSION] * 3)
    async with ScriptedCluster([broker]) as cluster, Producer(cluster.address) as producer:
        with pytest.raises(ResponseError):
            await producer.send(Message("t", b"x"), queue=queue)

    assert len(cluster.sends) == 1
