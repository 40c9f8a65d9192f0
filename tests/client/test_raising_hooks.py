"""An RPC hook that raises: background work logs it once and continues."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cometmq.client import (
    ClientInstance,
    Filter,
    Message,
    MessageQueue,
    PopConsumer,
    PullConsumer,
    PushConsumer,
    StartFrom,
    TransactionProducer,
)
from cometmq.client._connection.instance import core_of
from cometmq.client._consuming import rebalancer as queue_listener
from cometmq.client.hooks import OutgoingCall
from cometmq.client.settings import ClientSettings
from cometmq.client.subscription_check import SubscriptionCheck
from cometmq.client.trace import Publish, TraceDispatcher
from cometmq.model.topic import TRACE_TOPIC
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.remoting import Request, Response, Supervisor
from support.brokers.group_broker import GroupBroker, pulled
from support.brokers.pop_broker import QUEUE, PopBroker, Shop
from support.brokers.queue_broker import QueueBroker
from support.brokers.scripted import ScriptedBroker, ScriptedCluster, SentBroker, route
from support.brokers.transaction_broker import Commits, TransactionBroker
from support.checks.waiting import until
from support.clients.consumer_inputs import MemoryOffsets
from support.clients.members import SilentProducer

ENDS_S = 60
PUBLISHED = Publish(5, "r", "g", "t", "ID", None, "k1 k2", "h:1", 1, 1)

Raise = Callable[[], BaseException]
Make = Callable[..., PushConsumer | PullConsumer]


@pytest.fixture(
    params=[lambda: ValueError("from a hook"), asyncio.CancelledError], ids=["error", "cancelled"]
)
def error(request: pytest.FixtureRequest) -> Raise:
    """What is raised."""
    made: Raise = request.param
    return made


class RaisingHook:
    """Raises before some requests of one code are sent."""

    def __init__(self, code: int, error: Raise, *, passes: int = 0, raises: int = 2) -> None:
        self._code, self._error = code, error
        self._passes, self._raises = passes, raises
        self.raised = 0
        self.passed_after = 0
        """Requests that it let pass after it had raised for the last time."""

    def before_request(self, address: str, call: OutgoingCall) -> None:
        if call.code != self._code:
            return
        if self._passes:
            self._passes -= 1
        elif self.raised < self._raises:
            self.raised += 1
            raise self._error()
        else:
            self.passed_after += 1

    def after_response(self, address: str, call: OutgoingCall, response: Command) -> None:
        """Nothing is looked at."""


async def nothing(message: object) -> None:
    """Handle no message."""


def warnings(caplog: pytest.LogCaptureFixture, text: str) -> int:
    """How often a warning with this text was logged."""
    return sum(
        record.levelno >= logging.WARNING and text in record.getMessage()
        for record in caplog.records
    )


@asynccontextmanager
async def client(
    hook: RaisingHook,
    *brokers: ScriptedBroker,
    queues: int = 2,
    ends_s: int = ENDS_S,
    **settings: int,
) -> AsyncIterator[ClientInstance]:
    """A client with a hook, in a group whose topic has queues at these brokers."""
    async with (
        ScriptedCluster([*brokers]) as cluster,
        ClientInstance(
            cluster.address, settings=ClientSettings(**settings), hooks=[hook]
        ) as instance,
        asyncio.timeout(ends_s),
    ):
        found = route({broker.name: broker.address for broker in brokers}, queues=queues)
        cluster.name_server.routes |= dict.fromkeys(("t", TRACE_TOPIC), found)
        for broker in brokers:
            if pulls := broker.handlers.get(RequestCode.PULL_MESSAGE):
                broker.handlers[RequestCode.LITE_PULL_MESSAGE] = pulls
            if isinstance(broker, GroupBroker):
                broker.members = [instance.client_id]
        yield instance


def pop(instance: ClientInstance, **options: Any) -> PopConsumer:
    return PopConsumer(
        instance=instance, group="g", handler=nothing, subscriptions={"t": "*"}, **options
    )


def push(instance: ClientInstance, **options: Any) -> PushConsumer:
    return PushConsumer(
        instance=instance, group="g", handler=nothing, subscriptions={"t": "*"}, **options
    )


def pull(instance: ClientInstance, **options: Any) -> PullConsumer:
    return PullConsumer(instance=instance, group="g", subscriptions={"t": "*"}, **options)


KINDS = pytest.mark.parametrize("make", [push, pull])


async def test_pulls_go_on(error: Raise, caplog: pytest.LogCaptureFixture) -> None:
    broker = QueueBroker()
    broker.put(0, 3)
    hook = RaisingHook(RequestCode.LITE_PULL_MESSAGE, error)
    options = {"start_from": StartFrom.FIRST, "retry_ms": 1, "auto_commit_ms": 0}
    async with (
        client(hook, broker) as instance,
        PullConsumer(instance=instance, group="g", **options) as consumer,
    ):
        await consumer.assign([QUEUE])
        assert len(await consumer.poll(ENDS_S)) == 3

    assert (hook.raised, warnings(caplog, "pull failed, retrying")) == (2, 1)


async def test_pops_go_on(error: Raise, caplog: pytest.LogCaptureFixture) -> None:
    broker, hook = PopBroker(), RaisingHook(RequestCode.POP_MESSAGE, error)
    async with client(hook, broker) as instance, pop(instance, retry_ms=1):
        await broker.until(lambda: broker.pops[0] == 1)

    assert (hook.raised, warnings(caplog, "pop failed")) == (2, 1)


async def test_messages_are_acknowledged_again(
    error: Raise, caplog: pytest.LogCaptureFixture
) -> None:
    shop, hook = Shop(), RaisingHook(RequestCode.ACK_MESSAGE, error)
    shop.handlers[RequestCode.QUERY_ASSIGNMENT] = PopBroker().handlers[RequestCode.QUERY_ASSIGNMENT]
    await shop.put(b"1", b"2", b"3")
    async with client(hook, shop) as instance, pop(instance):
        await shop.until(lambda: len(shop.acks) == 1)

    assert (hook.raised, warnings(caplog, "cannot acknowledge a message")) == (2, 1)
    assert warnings(caplog, "worker failed") == 0


async def test_queues_are_assigned_again(error: Raise, caplog: pytest.LogCaptureFixture) -> None:
    broker = PopBroker()
    hook = RaisingHook(RequestCode.QUERY_ASSIGNMENT, error, passes=1, raises=1)
    async with client(hook, broker) as instance, pop(instance, assignment_ms=100) as consumer:
        assert consumer.queues() == [QUEUE]
        broker.assigned.append(MessageQueue("t", "a", 1))
        await broker.until(lambda: broker.pops[1] == 1)
        assert len(consumer.queues()) == 2

    assert (hook.raised, warnings(caplog, "rebalance failed, retrying")) == (1, 1)


async def test_traces_go_on(error: Raise, caplog: pytest.LogCaptureFixture) -> None:
    broker, hook = SentBroker(), RaisingHook(RequestCode.SEND_MESSAGE_V2, error, raises=1)
    async with client(hook, broker) as instance:
        dispatcher = TraceDispatcher(core_of(instance))
        dispatcher.retain()
        for _ in range(2):
            dispatcher.add(PUBLISHED, topic="", region="r", keys=["k"])
            assert await dispatcher.flush(ENDS_S)
        await dispatcher.release()

    assert (hook.raised, dispatcher.dropped, len(broker.sends)) == (1, 1, 1)
    assert warnings(caplog, "traces not sent") == 1


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize(
    ("make", "code", "options"),
    [
        (push, RequestCode.PULL_MESSAGE, {}),
        (push, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {}),
        (push, RequestCode.UPDATE_CONSUMER_OFFSET, {}),
        (push, RequestCode.LOCK_BATCH_MQ, {"ordered": True}),
        (pop, RequestCode.POP_MESSAGE, {}),
    ],
)
async def test_a_consumer_that_cannot_go_on_says_so(
    make: Callable[..., PushConsumer | PopConsumer], code: int, options: dict[str, Any]
) -> None:
    """A hook that raises each time ends no loop; after two minutes `run` raises what it raised."""
    broker = PopBroker() if make is pop else GroupBroker()
    hook = RaisingHook(code, lambda: LookupError("from a hook"), raises=10**9)
    async with client(hook, broker, ends_s=300) as instance:
        if isinstance(broker, GroupBroker):
            # Held requests have many timers, each of which takes real time.
            broker.pull_answers.extend([pulled(ResponseCode.PULL_NOT_FOUND, 50)] * 1_000)
        consumer = make(instance, **options)
        await consumer.start()
        running = asyncio.create_task(consumer.run())
        await asyncio.sleep(100)
        assert (consumer.healthy, consumer.failure) == (True, None)
        with pytest.raises(LookupError, match="from a hook"):
            await asyncio.wait_for(running, 100)

    assert not consumer.healthy
    assert isinstance(consumer.failure, LookupError)


@pytest.mark.usefixtures("virtual_time")
async def test_reading_from_a_pull_consumer_that_cannot_go_on_raises() -> None:
    hook = RaisingHook(
        RequestCode.LITE_PULL_MESSAGE, lambda: LookupError("from a hook"), raises=10**9
    )
    async with (
        client(hook, GroupBroker(), ends_s=300) as instance,
        PullConsumer(instance=instance, group="g") as consumer,
    ):
        await consumer.assign([QUEUE])
        assert await consumer.poll(100) == []
        with pytest.raises(LookupError, match="from a hook"):
            async with asyncio.timeout(100):
                await anext(consumer)
        assert not consumer.healthy
        with pytest.raises(LookupError, match="from a hook"):
            await consumer.poll(10)


@pytest.mark.usefixtures("virtual_time")
async def test_a_broker_that_is_away_leaves_a_consumer_healthy() -> None:
    broker = PopBroker()
    async with ScriptedCluster([broker]) as cluster:
        consumer = PopConsumer(
            cluster.address, group="g", handler=nothing, subscriptions={"t": "*"}
        )
        async with consumer:
            await broker.until(lambda: broker.pops[0] == 1)
            await broker.stop()
            await asyncio.sleep(200)
            assert consumer.healthy


# --- what the client does from time to time -----------------------------------------------------


async def test_heartbeats_go_on(error: Raise, caplog: pytest.LogCaptureFixture) -> None:
    broker, hook = ScriptedBroker(), RaisingHook(RequestCode.HEART_BEAT, error)
    async with client(hook, broker, heartbeat_ms=10) as instance:
        core_of(instance).join(SilentProducer("g"))
        await core_of(instance).routes.find("t")
        await broker.until(lambda: bool(broker.heartbeats))

    assert (hook.raised, warnings(caplog, "heartbeat failed")) == (2, 1)


async def test_routes_are_refreshed_again(error: Raise, caplog: pytest.LogCaptureFixture) -> None:
    hook = RaisingHook(RequestCode.GET_ROUTEINFO_BY_TOPIC, error, passes=1)
    async with client(hook, ScriptedBroker(), route_refresh_ms=10) as instance:
        await core_of(instance).routes.find("t")
        await until(lambda: hook.passed_after == 1)

    assert (hook.raised, warnings(caplog, "cannot refresh a route")) == (2, 1)


@KINDS
async def test_queues_are_allocated_after_a_failed_rebalance(
    error: Raise, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    broker = GroupBroker()
    hook = RaisingHook(RequestCode.GET_CONSUMER_LIST_BY_GROUP, error, raises=1)
    async with client(hook, broker, queues=1) as instance, make(instance):
        await broker.until(lambda: bool(broker.pulls))

    assert (hook.raised, warnings(caplog, "rebalance failed, retrying topic=t")) == (1, 1)


@pytest.mark.usefixtures("virtual_time")
@KINDS
async def test_a_listener_that_raises_is_called_again(
    error: Raise, make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_listener, "RETRY_S", 0.5)
    broker, calls, handled = GroupBroker(), list[int](), asyncio.Event()

    async def on_queues(topic: str, queues: object, assigned: list[MessageQueue]) -> None:
        calls.append(len(assigned))
        if len(calls) <= 2:
            assigned.clear()
            raise error()
        handled.set()

    unused = RaisingHook(-1, error)
    async with client(unused, broker, queues=1) as instance, make(instance, on_queues=on_queues):
        await handled.wait()
        await asyncio.sleep(1.2)

    assert calls == [1, 1, 1]
    assert warnings(caplog, "on_queues callback failed, retrying topic=t") == 1


async def test_pulls_of_a_push_consumer_go_on(
    error: Raise, caplog: pytest.LogCaptureFixture
) -> None:
    broker, hook = GroupBroker(), RaisingHook(RequestCode.PULL_MESSAGE, error)
    async with client(hook, broker, queues=1) as instance, push(instance, retry_ms=1):
        await broker.until(lambda: bool(broker.pulls))

    assert (hook.raised, warnings(caplog, "pull failed, retrying")) == (2, 1)


@pytest.mark.parametrize("passes", [0, 1], ids=["first", "renewed"])
async def test_queues_are_locked_again(
    error: Raise, passes: int, caplog: pytest.LogCaptureFixture
) -> None:
    broker, hook = GroupBroker(), RaisingHook(RequestCode.LOCK_BATCH_MQ, error, passes=passes)
    async with (
        client(hook, broker, queues=1) as instance,
        push(instance, ordered=True, lock_ms=100),
    ):
        await broker.until(lambda: bool(broker.pulls) and hook.passed_after > 0)

    assert (hook.raised, warnings(caplog, "cannot lock queues")) == (2, 1)


async def test_a_push_consumer_commits_again(
    error: Raise, caplog: pytest.LogCaptureFixture
) -> None:
    broker, hook = GroupBroker(), RaisingHook(RequestCode.UPDATE_CONSUMER_OFFSET, error)
    broker.pull_answers.append(pulled(ResponseCode.PULL_RETRY_IMMEDIATELY, 50))
    async with client(hook, broker, queues=1) as instance, push(instance, persist_ms=100):
        await broker.until(lambda: bool(broker.commits))

    assert hook.raised == 2
    assert broker.commits[0].commit_offset == 50
    assert warnings(caplog, "cannot commit an offset") == 1


async def test_a_pull_consumer_commits_again(
    error: Raise, caplog: pytest.LogCaptureFixture
) -> None:
    broker, hook = GroupBroker(), RaisingHook(RequestCode.UPDATE_CONSUMER_OFFSET, error)
    broker.pull_answers.append(pulled(ResponseCode.PULL_RETRY_IMMEDIATELY, 50))
    options = {"auto_commit_ms": 10}
    async with client(hook, broker, queues=1) as instance, pull(instance, **options) as consumer:
        polling = asyncio.create_task(consumer.poll(ENDS_S))
        await broker.until(lambda: bool(broker.commits))
        polling.cancel()
        await asyncio.wait([polling])

    assert hook.raised == 2
    assert broker.commits[0].commit_offset == 50
    assert warnings(caplog, "cannot commit an offset") == 1


async def test_subscriptions_are_compared_again(
    error: Raise, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(request: Request) -> Response:
        broker.moved.set()
        return Response(ResponseCode.CONSUMER_NOT_ONLINE, "as scripted")

    broker, code = ScriptedBroker(), RequestCode.GET_CONSUMER_CONNECTION_LIST
    broker.handlers[code] = refuse
    hook, tasks = RaisingHook(code, error, raises=1), Supervisor("test")
    async with client(hook, broker) as instance:
        await core_of(instance).routes.find("t")
        mine = {"t": Filter.tags("*")}
        SubscriptionCheck(core_of(instance), "g", lambda: mine, interval_s=0.01).start(tasks)
        await broker.until(lambda: hook.passed_after == 1)
        await tasks.cancel()

    assert (hook.raised, warnings(caplog, "subscriptions not compared")) == (1, 1)


async def test_transaction_checks_go_on(error: Raise, caplog: pytest.LogCaptureFixture) -> None:
    broker = TransactionBroker()
    hook = RaisingHook(RequestCode.END_TRANSACTION, error, passes=1, raises=1)
    async with (
        client(hook, broker) as instance,
        TransactionProducer(
            instance=instance, group="g", listener=Commits(), check_concurrency=1
        ) as producer,
    ):
        await producer.send_in_transaction(Message("t", b"x"))
        broker.ask()
        broker.ask()
        await broker.until_ended(2)

    assert hook.raised == 1
    assert warnings(caplog, "cannot send the result of a transaction check") == 1


class RaisingStore(MemoryOffsets):
    """Raises when offsets are persisted for the first and the second time."""

    def __init__(self, error: Raise) -> None:
        super().__init__()
        self._error = error
        self.persisted = 0
        self.third = asyncio.Event()

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        self.persisted += 1
        if self.persisted <= 2:
            raise self._error()
        self.third.set()


@pytest.mark.parametrize(
    ("make", "interval"), [(push, "persist_ms"), (pull, "auto_commit_ms")], ids=["push", "pull"]
)
async def test_a_custom_offset_store_is_called_again(
    error: Raise, make: Make, interval: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = RaisingStore(error)
    options = {"offset_store": store, interval: 100}
    unused = RaisingHook(-1, error)
    async with client(unused, GroupBroker(), queues=1) as instance, make(instance, **options):
        await store.third.wait()

    assert warnings(caplog, "periodic task failed, retrying") == 1


@KINDS
async def test_a_consumer_leaves_the_other_brokers(
    error: Raise, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    brokers = [GroupBroker("a"), GroupBroker("b")]
    hook = RaisingHook(RequestCode.UNREGISTER_CLIENT, error, raises=1)
    async with client(hook, *brokers) as instance:
        consumer = make(instance)
        await consumer.start()

        await consumer.close()
        await consumer.close()

        left = [goodbye.consumer_group for broker in brokers for goodbye in broker.goodbyes]
        assert left == ["g"], "one broker is told, and the hook refused the other request"
    assert (hook.raised, warnings(caplog, "cannot unregister")) == (1, 1)
