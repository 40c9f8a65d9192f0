"""Closing a consumer that starts: the start ends with an error, and everything is released."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from cometmq.client import (
    ClientClosedError,
    ClientInstance,
    ConfigError,
    Filter,
    MessageQueue,
    PopConsumer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    StoredMessage,
)
from cometmq.client._connection.instance import core_of
from cometmq.client.hooks import OutgoingCall
from cometmq.model.offsets import QueueOffset
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.remoting import Request, Response
from support.brokers.group_broker import GroupBroker, pulled
from support.brokers.pop_broker import PopBroker
from support.brokers.scripted import ScriptedCluster, route
from support.clients.consumer_inputs import MemoryOffsets

ENDS_S = 60
REQUESTS_MAX = 30

Consumer = PushConsumer | PullConsumer | PopConsumer | SimpleConsumer
Make = Callable[..., Consumer]


async def handle(message: StoredMessage) -> None:
    """Nothing is to be done."""


def push(*where: str, wanted: str | Filter = "*", **options: Any) -> Consumer:
    return PushConsumer(
        *where, group="g", handler=handle, subscriptions={"t": wanted}, trace=True, **options
    )


def pull(*where: str, wanted: str | Filter = "*", **options: Any) -> Consumer:
    return PullConsumer(*where, group="g", subscriptions={"t": wanted}, trace=True, **options)


def pop(*where: str, wanted: str | Filter = "*", **options: Any) -> Consumer:
    return PopConsumer(
        *where, group="g", handler=handle, subscriptions={"t": wanted}, trace=True, **options
    )


def simple(*where: str, wanted: str | Filter = "*", **options: Any) -> Consumer:
    return SimpleConsumer(*where, group="g", subscriptions={"t": wanted}, **options)


KINDS = pytest.mark.parametrize("make", [push, pull, pop, simple])


class ClosingHook:
    """Calls a function before the request of a number is sent."""

    def __init__(self) -> None:
        self.left = 0
        self.call: Callable[[], object] = lambda: None

    def before_request(self, address: str, call: OutgoingCall) -> None:
        self.left -= 1
        if self.left == 0:
            self.call()

    def after_response(self, address: str, call: OutgoingCall, response: Command) -> None:
        """Nothing is looked at."""


@KINDS
async def test_closing_at_any_request_of_a_start_ends_the_start(make: Make) -> None:
    broker, hook, interrupted = PopBroker(), ClosingHook(), 0
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientInstance(cluster.address, hooks=[hook]) as instance,
        asyncio.timeout(ENDS_S),
    ):
        for number in range(1, REQUESTS_MAX):
            consumer, closing = make(instance=instance), []
            hook.left = number
            hook.call = lambda consumer=consumer, closing=closing: closing.append(
                asyncio.create_task(consumer.close())
            )
            try:
                await consumer.start()
            except ClientClosedError:
                interrupted += 1
                assert closing
            else:
                hook.left = 0
                await consumer.close()
                assert not closing, "a closed consumer does not start"
                break
            assert not consumer.running
            await asyncio.gather(*closing)
            assert not consumer.running
            with pytest.raises(ClientClosedError):
                await consumer.start()
            core_of(instance).routes.forget("t")
        else:
            raise AssertionError(f"still starting after {REQUESTS_MAX} requests")

    assert interrupted
    assert {goodbye.consumer_group for goodbye in broker.goodbyes} == {"g"}


@KINDS
async def test_closing_ends_a_start_that_waits_for_a_name_server(make: Make) -> None:
    async with ScriptedCluster([PopBroker()]) as cluster, asyncio.timeout(ENDS_S):
        cluster.name_server.silent = True
        consumer = make(cluster.address)
        starting = asyncio.create_task(consumer.start())
        await cluster.name_server.until(lambda: bool(cluster.name_server.asked))

        await consumer.close()

        with pytest.raises(ClientClosedError, match="closed"):
            await starting
        assert not consumer.running


@KINDS
async def test_cancelling_a_start_releases_everything(make: Make) -> None:
    """The next consumer of the group starts in the same client."""
    async with (
        ScriptedCluster([PopBroker()]) as cluster,
        ClientInstance(cluster.address) as instance,
        asyncio.timeout(ENDS_S),
    ):
        cluster.name_server.silent = True
        starting = asyncio.create_task(make(instance=instance).start())
        await cluster.name_server.until(lambda: bool(cluster.name_server.asked))
        starting.cancel()
        await asyncio.wait([starting])
        assert starting.cancelled()

        cluster.name_server.silent = False
        async with make(instance=instance) as consumer:
            assert consumer.running


@KINDS
async def test_two_starts_at_once_fail_with_the_same_error(make: Make) -> None:
    def refuse(request: Request) -> Response:
        return Response(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "as scripted")

    broker = PopBroker()
    broker.handlers[RequestCode.CHECK_CLIENT_CONFIG] = refuse
    async with ScriptedCluster([broker]) as cluster, asyncio.timeout(ENDS_S):
        consumer = make(cluster.address, wanted=Filter.sql("a > 5"))
        failures = await asyncio.gather(consumer.start(), consumer.start(), return_exceptions=True)
        with pytest.raises(ClientClosedError, match="create a new one"):
            await consumer.start()
        await consumer.close()

    assert [type(failure) for failure in failures] == [ConfigError, ConfigError]


@KINDS
async def test_two_starts_at_once_are_one(make: Make) -> None:
    async with ScriptedCluster([PopBroker()]) as cluster, asyncio.timeout(ENDS_S):
        consumer = make(cluster.address)
        await asyncio.gather(consumer.start(), consumer.start())
        assert consumer.running
        await consumer.close()


@pytest.mark.parametrize("make", [push, pop])
async def test_closing_one_that_was_refused_leaves_the_other_of_its_group_alone(
    make: Make,
) -> None:
    async with (
        ScriptedCluster([PopBroker()]) as cluster,
        ClientInstance(cluster.address) as instance,
        make(instance=instance) as first,
    ):
        answered = dict(core_of(instance).requests._members)
        await make(instance=instance).close()
        assert first.running
        assert answered
        assert core_of(instance).requests._members == answered


@KINDS
async def test_a_start_beside_one_that_is_cancelled_goes_on(make: Make) -> None:
    async with (
        ScriptedCluster([PopBroker()]) as cluster,
        ClientInstance(cluster.address) as instance,
        asyncio.timeout(ENDS_S),
    ):
        cluster.name_server.silent = True
        consumer = make(instance=instance)
        first, second = (asyncio.create_task(consumer.start()) for _ in range(2))
        await cluster.name_server.until(lambda: bool(cluster.name_server.asked))

        first.cancel()
        await asyncio.wait([first])
        cluster.name_server.silent = False
        await second

        assert first.cancelled()
        assert consumer.running
        await consumer.close()


async def test_a_queue_listener_that_never_ends_does_not_hold_up_a_pop_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cometmq.client._callbacks.LISTENER_S_MAX", 0.05)
    called = asyncio.Event()

    async def listen(topic: str, queues: object, assigned: object) -> None:
        called.set()
        await asyncio.Event().wait()

    async with ScriptedCluster([PopBroker()]) as cluster, asyncio.timeout(ENDS_S):
        async with pop(cluster.address, on_queues=listen) as consumer:
            assert consumer.running
        assert called.is_set()


async def test_a_failure_while_a_pop_consumer_stops_does_not_keep_it_in_its_group() -> None:
    async with (
        ScriptedCluster([PopBroker()]) as cluster,
        ClientInstance(cluster.address) as instance,
        asyncio.timeout(ENDS_S),
    ):
        consumer = pop(instance=instance)
        await consumer.start()

        assert isinstance(consumer, PopConsumer)
        assert consumer._traces is not None
        release = consumer._traces.release

        async def fail() -> None:
            await release()
            raise ValueError("the traces cannot be written")

        consumer._traces.release = fail  # type: ignore[method-assign]

        with pytest.raises(ValueError, match="traces"):
            await consumer.close()

        consumer._traces.release = release  # type: ignore[method-assign]
        async with pop(instance=instance) as again:
            assert again.running


class SlowStore(MemoryOffsets):
    """Stores offsets once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.persisted: dict[MessageQueue, QueueOffset] = {}

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        self.begun.set()
        await self.may_end.wait()
        self.persisted |= {queue: self.offsets[queue] for queue in queues}


async def test_closing_during_a_revocation_commits_what_was_consumed() -> None:
    """The rebalance that revokes the queue is cancelled; its commit is not."""
    broker, store = GroupBroker(), SlowStore()
    broker.handlers[RequestCode.LITE_PULL_MESSAGE] = broker.handlers[RequestCode.PULL_MESSAGE]
    broker.pull_answers.append(pulled(ResponseCode.PULL_RETRY_IMMEDIATELY, 50))
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientInstance(cluster.address) as instance,
        asyncio.timeout(ENDS_S),
    ):
        cluster.name_server.routes["t"] = route({"a": broker.address}, queues=1)
        broker.members = [instance.client_id]
        consumer = PullConsumer(
            instance=instance,
            group="g",
            subscriptions={"t": "*"},
            offset_store=store,
            auto_commit_ms=60_000,
            rebalance_ms=1000,
        )
        await consumer.start()
        polling = asyncio.create_task(consumer.poll(ENDS_S))
        await broker.until(lambda: len(broker.pulls) == 2)
        broker.members = [f"0{instance.client_id}", instance.client_id]
        await store.begun.wait()

        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0.1)
        store.may_end.set()
        await asyncio.wait([polling, closing])

    assert store.persisted == {MessageQueue("t", "a", 0): 50}
