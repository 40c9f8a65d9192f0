"""The end of a consumer: clean, at once, or because it could not start."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from datetime import datetime
from functools import partial

import pytest

from cometmq.client import (
    AdminClient,
    ClientClosedError,
    ClientError,
    ClientInstance,
    ConfigError,
    Filter,
    Message,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    StoredMessage,
)
from cometmq.model.errors import RemotingError, ResponseError
from support.brokers.clusters import COMET
from support.checks.waiting import WAIT_S, until
from support.clients.consumer_inputs import MemoryOffsets, from_the_first
from support.clients.recording_handlers import Seen, Waits

HANGS_S = 60.0
"""What takes so long hangs."""
LONG_MS = 600_000


async def send(producer: Producer, topic: str, count: int) -> None:
    await asyncio.gather(
        *(producer.send(Message(topic=topic, body=b"%d" % number)) for number in range(count))
    )


async def start_with_a_message(
    consumer: PushConsumer, stuck: Waits, producer: Producer, topic: str
) -> None:
    """Send a message, start a consumer, and wait until its handler has begun with it."""
    await producer.send(Message(topic=topic, body=b"x"))
    await consumer.start()
    await stuck.count(1)


def has_seen(seen: Seen, count: int) -> bool:
    return len(set(seen.bodies)) >= count


@pytest.mark.parametrize("ordered", [False, True])
async def test_nothing_is_lost_and_nothing_repeated_when_a_consumer_stops_in_good_order(
    target: str, name_servers: str, producer: Producer, topic: str, group: str, ordered: bool
) -> None:
    """Messages that no handler had begun with go to the next member; the others are done with.

    Each pull carries the offset of its time. RocketMQ may handle the last pull after the commit of
    the stop, and then gives messages again: on its clusters only losses are counted.
    """
    seen = Seen()

    async def handle(message: StoredMessage) -> None:
        await asyncio.sleep(0.002)
        seen.add(message)

    await send(producer, topic, 200)
    for enough in (50, 100, 150, 200):
        async with PushConsumer(
            name_servers,
            handler=handle,
            ordered=ordered,
            concurrency=4,
            **from_the_first(group, topic),
        ):
            await seen.until(partial(has_seen, seen, enough))

    counted = Counter(seen.bodies)
    assert len(counted) == 200
    if target == COMET:
        # A handler that ends behind a slower one before it is not covered by what is committed.
        assert sum(counted.values()) - 200 <= (0 if ordered else 3 * 4)


async def test_a_stop_waits_for_the_handler_and_keeps_its_offset(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    stuck = Waits()
    consumer = PushConsumer(name_servers, handler=stuck, **from_the_first(group, topic))
    await start_with_a_message(consumer, stuck, producer, topic)
    asyncio.get_running_loop().call_later(0.2, stuck.may_end.set)
    await consumer.close()

    assert stuck.ended
    async with AdminClient(name_servers) as admin:
        told = await admin.committed(group, topic)
    assert sum(offset or 0 for offset in told.values()) == 1


async def test_a_handler_that_never_ends_is_cancelled_after_the_time_for_a_stop(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    stuck, again = Waits(), Seen()
    options = from_the_first(group, topic)
    consumer = PushConsumer(name_servers, handler=stuck, stop_ms=200, **options)
    await start_with_a_message(consumer, stuck, producer, topic)
    started = time.monotonic()
    await consumer.close()

    assert stuck.cancelled
    assert 0.2 <= time.monotonic() - started < HANGS_S
    async with PushConsumer(name_servers, handler=again, **options):
        await again.count(1)
    assert again.bodies == [b"x"]


async def test_a_plain_handler_that_never_ends_is_abandoned_with_one_line_in_the_log(
    name_servers: str,
    producer: Producer,
    topic: str,
    group: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def handle(message: StoredMessage) -> None:
        begun.set()
        may_end.wait()

    await producer.send(Message(topic=topic, body=b"x"))
    consumer = PushConsumer(
        name_servers, handler=handle, stop_ms=100, **from_the_first(group, topic)
    )
    try:
        await consumer.start()
        await until(begun.is_set)
        started = time.monotonic()
        await consumer.close()
        assert time.monotonic() - started < HANGS_S
    finally:
        may_end.set()

    lines = [each for each in caplog.messages if "abandoned" in each]
    assert lines == [f"handlers still run and are abandoned group={group} calls=1"]


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_handler_may_close_its_consumer_and_its_message_is_consumed(
    name_servers: str, producer: Producer, topic: str, group: str, ordered: bool
) -> None:
    closed = asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        await consumer.close()
        assert not consumer.running
        closed.set()

    await producer.send(Message(topic=topic, body=b"x"))
    consumer = PushConsumer(
        name_servers,
        handler=handle,
        ordered=ordered,
        stop_ms=LONG_MS,
        **from_the_first(group, topic),
    )
    async with asyncio.timeout(HANGS_S):
        await consumer.run(timeout=LONG_MS / 1000)

    assert closed.is_set()
    async with AdminClient(name_servers) as admin:
        told = await admin.committed(group, topic)
    assert sum(offset or 0 for offset in told.values()) == 1


async def test_a_close_in_a_handler_leaves_other_handlers_their_time(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    stuck, closed = Waits(), asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        if message.body == b"close":
            await stuck.count(1)
            await consumer.close()
            closed.set()
        else:
            await stuck(message)

    for body in (b"stay", b"close"):
        await producer.send(Message(topic=topic, body=body))
    async with PushConsumer(
        name_servers, handler=handle, stop_ms=LONG_MS, **from_the_first(group, topic)
    ) as consumer:
        await asyncio.wait_for(closed.wait(), HANGS_S)
        assert not stuck.ended
        stuck.may_end.set()
    assert stuck.ended


async def test_a_hard_stop_cancels_handlers_at_once_and_their_messages_come_again(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    stuck, again = Waits(), Seen()
    options = from_the_first(group, topic)
    consumer = PushConsumer(name_servers, handler=stuck, stop_ms=LONG_MS, **options)
    await start_with_a_message(consumer, stuck, producer, topic)
    async with asyncio.timeout(HANGS_S):
        await consumer.abort()

    async with PushConsumer(name_servers, handler=again, **options):
        await again.count(1)
    assert again.bodies == [b"x"]


async def test_a_hard_stop_cuts_a_stop_in_good_order_short(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    stuck = Waits()
    consumer = PushConsumer(
        name_servers, handler=stuck, stop_ms=LONG_MS, **from_the_first(group, topic)
    )
    await start_with_a_message(consumer, stuck, producer, topic)
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0.05)
    async with asyncio.timeout(HANGS_S):
        await consumer.abort()
        await closing


async def test_cancelling_a_stop_stops_the_waiting_and_not_the_stopping(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    stuck = Waits()
    consumer = PushConsumer(name_servers, handler=stuck, **from_the_first(group, topic))
    await start_with_a_message(consumer, stuck, producer, topic)
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0.05)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    stuck.may_end.set()
    await consumer.close()

    assert stuck.ended


async def test_a_closed_consumer_is_unknown_to_the_brokers_and_leaves_no_task(
    name_servers: str, topic: str, group: str
) -> None:
    before = asyncio.all_tasks()
    async with AdminClient(name_servers) as admin:
        consumer = PushConsumer(
            name_servers, group=group, handler=Seen(), subscriptions={topic: "*"}
        )
        async with consumer:
            await until(lambda: len(consumer.queues()) == 4)
            online = await admin.consumer_connections(group)
            assert [each.client_id for each in online.connection_set] == [consumer.client_id]
        with pytest.raises(ResponseError, match="not online"):
            await admin.consumer_connections(group)
    await until(lambda: asyncio.all_tasks() <= before)


FAILURES = pytest.mark.parametrize(
    "failure",
    [
        ValueError("the database is gone"),
        TimeoutError("the database is gone"),
        RemotingError("the database is gone"),
    ],
    ids=lambda failure: type(failure).__name__,
)
"""What an application's store may raise; the classes that the client uses itself, too."""


@FAILURES
@pytest.mark.parametrize("ordered", [False, True])
async def test_a_store_that_fails_is_reported_once_and_everything_else_ends(
    name_servers: str, topic: str, group: str, ordered: bool, failure: Exception
) -> None:
    before, store = asyncio.all_tasks(), MemoryOffsets()
    async with AdminClient(name_servers) as admin:
        consumer = PushConsumer(
            name_servers,
            handler=Seen(),
            ordered=ordered,
            offset_store=store,
            trace=True,
            **from_the_first(group, topic),
        )
        await consumer.start()
        await until(lambda: len(consumer.queues()) == 4)
        store.failure = failure

        with pytest.raises(type(failure), match="the database is gone"):
            await consumer.close()
        await consumer.close()
        await consumer.abort()

        assert consumer.queues() == []
        with pytest.raises(ResponseError, match="not online"):
            await admin.consumer_connections(group)
    await until(lambda: asyncio.all_tasks() <= before)


async def test_a_hard_stop_reports_no_store_that_fails(
    name_servers: str, topic: str, group: str
) -> None:
    before, store = asyncio.all_tasks(), MemoryOffsets()
    consumer = PushConsumer(
        name_servers, handler=Seen(), offset_store=store, **from_the_first(group, topic)
    )
    await consumer.start()
    store.failure = ValueError("the database is gone")
    await consumer.abort()
    await consumer.close()
    await until(lambda: asyncio.all_tasks() <= before)


@FAILURES
async def test_a_pull_consumer_reports_a_store_that_fails_once_and_ends(
    name_servers: str, producer: Producer, topic: str, group: str, failure: Exception
) -> None:
    before, store = asyncio.all_tasks(), MemoryOffsets()
    await send(producer, topic, 3)
    async with AdminClient(name_servers) as admin:
        consumer = PullConsumer(name_servers, **from_the_first(group, topic), offset_store=store)
        await consumer.start()
        assert await consumer.poll(WAIT_S)
        assert await consumer.poll(WAIT_S)
        store.failure = failure

        with pytest.raises(type(failure), match="the database is gone"):
            await consumer.close()
        with pytest.raises(ResponseError, match="not online"):
            await admin.consumer_connections(group)
        await consumer.close()
    await until(lambda: asyncio.all_tasks() <= before)


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_hard_stop_leaves_no_task(
    name_servers: str, producer: Producer, topic: str, group: str, ordered: bool
) -> None:
    before, stuck = asyncio.all_tasks(), Waits()
    consumer = PushConsumer(
        name_servers, handler=stuck, ordered=ordered, trace=True, **from_the_first(group, topic)
    )
    await start_with_a_message(consumer, stuck, producer, topic)
    await consumer.abort()
    await until(lambda: asyncio.all_tasks() <= before)


async def test_a_consumer_is_used_once(name_servers: str, topic: str, group: str) -> None:
    consumer = PushConsumer(name_servers, group=group, handler=Seen(), subscriptions={topic: "*"})
    await consumer.start()
    await consumer.start()
    waiting = asyncio.create_task(consumer.run())
    await asyncio.sleep(0)
    await consumer.close()
    await consumer.close()
    await consumer.abort()

    await asyncio.wait_for(waiting, WAIT_S)
    for refused in (consumer.start(), consumer.subscribe("other"), consumer.skip_backlog()):
        with pytest.raises(ClientClosedError):
            await refused
    with pytest.raises(ClientClosedError):
        consumer.resume()


async def test_a_consumer_that_was_never_started_can_be_closed(
    name_servers: str, group: str
) -> None:
    await PushConsumer(name_servers, group=group, handler=Seen()).close()


async def test_two_consumers_of_one_group_in_one_client_are_refused(
    instance: ClientInstance, topic: str, group: str
) -> None:
    async with PushConsumer(
        instance=instance, group=group, handler=Seen(), subscriptions={topic: "*"}
    ) as first:
        with pytest.raises(ClientError, match="already"):
            await PushConsumer(instance=instance, group=group, handler=Seen()).start()
        await until(lambda: len(first.queues()) == 4)


@pytest.mark.parametrize("pulls", [True, False], ids=["pull", "push"])
async def test_two_kinds_of_consumers_of_one_group_in_one_client_are_refused(
    instance: ClientInstance, topic: str, group: str, pulls: bool
) -> None:
    def make(kind: type[PushConsumer] | type[PullConsumer]) -> PushConsumer | PullConsumer:
        if kind is PullConsumer:
            return PullConsumer(instance=instance, group=group, subscriptions={topic: "*"})
        return PushConsumer(
            instance=instance, group=group, handler=Seen(), subscriptions={topic: "*"}
        )

    kinds = (PullConsumer, PushConsumer) if pulls else (PushConsumer, PullConsumer)
    async with make(kinds[0]):
        with pytest.raises(ClientError, match=f"has a {kinds[0].__name__} of {group} already"):
            await make(kinds[1]).start()
        async with Producer(instance=instance, group=group):
            pass


async def test_a_consumer_whose_filter_no_broker_can_apply_does_not_start(
    name_servers: str, topic: str, group: str
) -> None:
    """Filtering by properties is off unless a broker is told to do it."""
    consumer = PushConsumer(
        name_servers, group=group, handler=Seen(), subscriptions={topic: Filter.sql("a > 5")}
    )
    with pytest.raises(ConfigError, match="a > 5"):
        await consumer.start()
    with pytest.raises(ClientClosedError):
        await consumer.start()


async def test_a_running_consumer_keeps_its_filter_when_no_broker_can_apply_the_new_one(
    name_servers: str, producer: Producer, topic: str, group: str
) -> None:
    seen = Seen()
    async with PushConsumer(
        name_servers, handler=seen, **from_the_first(group, topic, "a")
    ) as consumer:
        with pytest.raises(ConfigError):
            await consumer.subscribe(topic, Filter.sql("a > 5"))
        await producer.send(Message(topic=topic, body=b"x", tags="a"))
        await seen.count(1)


@pytest.mark.parametrize("kind", [PushConsumer, PullConsumer, PopConsumer])
@pytest.mark.parametrize("start", ["first", "FIRST", -1, None, datetime(2026, 1, 1)])
def test_a_start_that_is_none_is_refused(group: str, kind: type, start: object) -> None:
    """It would mean the end of the queue, and skip what is there."""
    handlers = {} if kind is PullConsumer else {"handler": print}
    with pytest.raises(ConfigError, match=r"start_from=.+: expected StartFrom\.FIRST"):
        kind("127.0.0.1:1", group=group, start_from=start, **handlers)


@pytest.mark.parametrize("handlers", [{}, {"handler": print, "batch_handler": print}])
def test_just_one_handler_is_expected(group: str, handlers: dict[str, object]) -> None:
    with pytest.raises(
        ConfigError, match=r"either a handler or a batch_handler|no handler, expected"
    ):
        PushConsumer("127.0.0.1:1", group=group, **handlers)  # type: ignore[arg-type]
