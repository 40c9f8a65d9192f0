"""An RPC hook may raise anything: what runs in the background says so once, and goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from cometmq.client import (
    ClientInstance,
    MessageQueue,
    OutgoingCall,
    PopConsumer,
    PullConsumer,
    PullSettings,
    StartFrom,
)
from cometmq.client.trace import Publish, TraceDispatcher
from cometmq.model.topic import TRACE_TOPIC
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from support.pop_broker import QUEUE, PopBroker
from support.queue_broker import QueueBroker
from support.scripted import ScriptedCluster
from support.sent import SentBroker

ENDS_S = 60
PUBLISHED = Publish(5, "r", "g", "t", "ID", None, "k1 k2", "h:1", 1, 1)

Raise = Callable[[], BaseException]
ERRORS = [
    pytest.param(lambda: ValueError("from a hook"), id="error"),
    pytest.param(asyncio.CancelledError, id="cancelled"),
]


class RaisingHook:
    """Raises before some requests of one code are sent."""

    def __init__(self, code: int, error: Raise, *, passes: int = 0, raises: int = 2) -> None:
        self._code, self._error = code, error
        self._passes, self._raises = passes, raises
        self.raised = 0

    def before_request(self, address: str, call: OutgoingCall) -> None:
        if call.code != self._code:
            return
        if self._passes:
            self._passes -= 1
        elif self.raised < self._raises:
            self.raised += 1
            raise self._error()

    def after_answer(self, address: str, call: OutgoingCall, answer: Command) -> None:
        """Nothing is looked at."""


async def nothing(message: object) -> None:
    """Handle no message."""


def warnings(caplog: pytest.LogCaptureFixture, text: str) -> int:
    """How often a warning with this text was logged."""
    return sum(
        record.levelno >= logging.WARNING and text in record.getMessage()
        for record in caplog.records
    )


@pytest.mark.parametrize("error", ERRORS)
async def test_pulls_go_on(error: Raise, caplog: pytest.LogCaptureFixture) -> None:
    broker = QueueBroker()
    broker.put(0, 3)
    broker.processors[RequestCode.LITE_PULL_MESSAGE] = broker.processors[RequestCode.PULL_MESSAGE]
    hook = RaisingHook(RequestCode.LITE_PULL_MESSAGE, error)
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientInstance(cluster.address, hooks=[hook]) as instance,
        PullConsumer(
            instance=instance,
            group="g",
            start_from=StartFrom.FIRST,
            settings=PullSettings(retry_ms=1, auto_commit_ms=0),
        ) as consumer,
        asyncio.timeout(ENDS_S),
    ):
        await consumer.assign([QUEUE])
        assert len(await consumer.poll(ENDS_S)) == 3

    assert hook.raised == 2
    assert warnings(caplog, "pull failed, retrying") == 1


@pytest.mark.parametrize("error", ERRORS)
async def test_pops_go_on(error: Raise, caplog: pytest.LogCaptureFixture) -> None:
    broker, hook = PopBroker(), RaisingHook(RequestCode.POP_MESSAGE, error)
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientInstance(cluster.address, hooks=[hook]) as instance,
        PopConsumer(
            instance=instance, group="g", handler=nothing, subscriptions={"t": "*"}, retry_ms=1
        ),
        asyncio.timeout(ENDS_S),
    ):
        await broker.wait_until(lambda: broker.pops[0] == 1)

    assert hook.raised == 2
    assert warnings(caplog, "pop failed") == 1


@pytest.mark.parametrize("error", ERRORS)
async def test_queues_are_assigned_again(error: Raise, caplog: pytest.LogCaptureFixture) -> None:
    broker = PopBroker()
    hook = RaisingHook(RequestCode.QUERY_ASSIGNMENT, error, passes=1, raises=1)
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientInstance(cluster.address, hooks=[hook]) as instance,
        PopConsumer(
            instance=instance,
            group="g",
            handler=nothing,
            subscriptions={"t": "*"},
            assignment_ms=100,
        ) as consumer,
        asyncio.timeout(ENDS_S),
    ):
        assert consumer.queues() == [QUEUE]
        broker.assigned.append(MessageQueue("t", "a", 1))
        await broker.wait_until(lambda: broker.pops[1] == 1)
        assert len(consumer.queues()) == 2

    assert hook.raised == 1
    assert warnings(caplog, "rebalance failed, assignment unchanged") == 1


@pytest.mark.parametrize("error", ERRORS)
async def test_traces_go_on(error: Raise, caplog: pytest.LogCaptureFixture) -> None:
    broker, hook = SentBroker(), RaisingHook(RequestCode.SEND_MESSAGE_V2, error, raises=1)
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientInstance(cluster.address, hooks=[hook]) as instance,
    ):
        cluster.name_server.routes[TRACE_TOPIC] = cluster.name_server.routes["t"]
        dispatcher = TraceDispatcher(instance)
        dispatcher.retain()
        for _ in range(2):
            dispatcher.add(PUBLISHED, topic="", region="r", keys=["k"])
            assert await dispatcher.flush(ENDS_S)
        await dispatcher.release()

    assert (hook.raised, dispatcher.dropped, len(broker.sends)) == (1, 1, 1)
    assert warnings(caplog, "traces not sent") == 1


async def test_a_queue_that_is_not_popped_any_more_is_popped_anew() -> None:
    """As with pulls, a loop that has not moved for 120 s is taken for dead."""
    broker = PopBroker()
    async with (
        ScriptedCluster([broker]) as cluster,
        PopConsumer(
            cluster.address, group="g", handler=nothing, subscriptions={"t": "*"}
        ) as consumer,
        asyncio.timeout(ENDS_S),
    ):
        assignment = consumer._engine.assignment
        await broker.wait_until(lambda: broker.pops[0] == 1)
        (before,) = assignment.sources()
        await assignment.refresh()
        assert assignment.sources() == [before]

        before.active_at -= 121.0
        await assignment.refresh()
        await broker.wait_until(lambda: broker.pops[0] == 2)
        (after,) = assignment.sources()
        assert before.dropped
        assert not after.dropped
