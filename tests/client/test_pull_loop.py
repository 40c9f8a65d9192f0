"""Prefetching a queue: in order, within limits, over gaps in offsets, and after failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from servers import Cluster

from cometmq.client import (
    AdminClient,
    ClientInstance,
    Filter,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    StartFrom,
)
from cometmq.client._connection.broker_calls import QueueOffsets
from cometmq.client._connection.instance import core_of
from cometmq.client._consuming.continuation import Cause
from cometmq.client._consuming.pulls import PullResult, ReplicaChoice
from cometmq.client._push.process_queue import FetchedBatch, Limits, ProcessQueue
from cometmq.client._push.pull_loop import PullConditions, PullConsumption, PullLoop, PullRequests
from cometmq.client._supervision import SupervisedFailureLog
from cometmq.client.offsets import RemoteOffsetStore
from cometmq.client.settings import PushSettings
from cometmq.model import property_names as names
from cometmq.model.errors import CometError
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.protocol.hashing import java_hash
from cometmq.remoting import ConnectError, Supervisor
from support.checks.waiting import Changes, until
from support.clients.stored_messages import until_queued

WAIT_S = 120.0


class Collecting(Changes):
    """A consume service that keeps what it is given, and is done with it when it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[FetchedBatch] = []
        self.messages: list[StoredMessage] = []

    def submit(self, queue: ProcessQueue, batch: FetchedBatch) -> None:
        self.batches.append(batch)
        self.messages += batch.messages
        self.moved.set()

    async def stop(self, *, grace_s: float) -> None:
        """There is nothing to stop."""


class Puller:
    """Everything a pull loop needs, around one queue."""

    def __init__(self, instance: ClientInstance, group: str, queue: MessageQueue) -> None:
        self.instance = core_of(instance)
        self.group = group
        self.queue = queue
        self.fetched = ProcessQueue(queue)
        self.service = Collecting()
        self.store = RemoteOffsetStore(instance, group)
        self.suspended = False
        self.moved: asyncio.Future[Cause] = asyncio.get_running_loop().create_future()
        self.tasks = Supervisor("test")
        self.broken = asyncio.Event()
        self.failures = SupervisedFailureLog(
            logging.getLogger("test"),
            fails="pull failed, retrying",
            works="pull succeeds again",
            name="queue",
        )
        self.loop: PullLoop | None = None

    def begin(
        self,
        offset: QueueOffset | Callable[[], Awaitable[QueueOffset]],
        *,
        wanted: str = "*",
        ordered: bool = False,
        **settings: Any,
    ) -> PullLoop:
        """Begin to pull."""
        used = PushSettings(send_filter=True, hold_ms=2_000, retry_ms=50, **settings)
        wish = Filter.of(wanted)
        self.limits = Limits(used, spans=True)
        self.loop = PullLoop(
            self.fetched,
            offset,
            requests=PullRequests(
                self.instance,
                self.group,
                filter_of=lambda topic: wish,
                settings=used,
                replica=ReplicaChoice(),
                commit_offsets=True,
            ),
            conditions=PullConditions(
                self.limits, suspended=lambda: self.suspended, need_lock=ordered
            ),
            consumption=PullConsumption(
                keep=lambda queue, messages: messages,
                service=self.service,
                store=self.store,
                stats=None,
            ),
            failures=self.failures,
            on_moved=self._is_moved,
            on_broken=self.broken.set,
        )
        self.loop.start(self.tasks)
        return self.loop

    async def _is_moved(self, cause: Cause, response: PullResult) -> None:
        self.fetched.drop()
        self.moved.set_result(cause)

    @property
    def offsets(self) -> list[int]:
        """Of what was submitted."""
        return [message.queue_offset for message in self.service.messages]

    async def submitted(self, count: int) -> None:
        """Wait until so many messages were submitted."""
        await self.service.until(lambda: len(self.service.messages) >= count)

    async def close(self) -> None:
        if self.loop is not None:
            await self.loop.stop()
        await self.tasks.cancel()


@pytest.fixture
async def puller(
    instance: ClientInstance, group: str, queues: list[MessageQueue]
) -> AsyncIterator[Puller]:
    """A puller of the first queue of a new topic."""
    made = Puller(instance, group, queues[0])
    yield made
    await made.close()


@pytest.fixture
async def producer(instance: ClientInstance) -> AsyncIterator[Producer]:
    """A producer of the same instance."""
    async with Producer(group="p", instance=instance) as running:
        yield running


async def fill(
    producer: Producer, queue: MessageQueue, count: int, tags: str | None = None
) -> None:
    """Send so many messages to a queue."""
    for number in range(count):
        await producer.send(Message(queue.topic, str(number).encode(), tags=tags), queue=queue)


async def test_a_queue_is_pulled_in_order_and_goes_on_with_what_comes_later(
    puller: Puller, producer: Producer
) -> None:
    await fill(producer, puller.queue, 40)
    loop = puller.begin(QueueOffset(0))
    await puller.submitted(40)

    await fill(producer, puller.queue, 3)
    await puller.submitted(43)

    assert puller.offsets == list(range(43))
    assert loop.next_offset == 43
    last = puller.service.messages[-1]
    assert last.broker_name == puller.queue.broker_name
    assert int(last.properties[names.MAX_OFFSET]) >= 43
    assert last.properties[names.MIN_OFFSET] == "0"


async def test_the_first_offset_is_asked_for_until_it_can_be_told(
    puller: Puller, producer: Producer
) -> None:
    await fill(producer, puller.queue, 3)
    asked = 0

    async def first() -> QueueOffset:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise ConnectError("the broker is away")
        return QueueOffset(1)

    puller.begin(first)
    await puller.submitted(2)

    assert puller.offsets == [1, 2]
    assert asked == 3


async def test_nothing_more_is_pulled_while_a_limit_is_reached(
    puller: Puller, producer: Producer
) -> None:
    await fill(producer, puller.queue, 40)
    puller.begin(QueueOffset(0), queue_messages_max=9, pull_batch=5)
    await until(lambda: puller.limits.waiting)
    assert puller.fetched.count == 10

    puller.service.batches[0].finish(0, 1)
    await puller.submitted(15)
    await until(lambda: puller.limits.waiting)
    assert puller.fetched.count == 14


async def test_a_raised_limit_lets_a_waiting_queue_go_on(
    puller: Puller, producer: Producer
) -> None:
    await fill(producer, puller.queue, 20)
    puller.begin(QueueOffset(0), queue_messages_max=1, topic_messages_max=30, pull_batch=5)
    puller.limits.share(puller.queue.topic, 10)
    await until(lambda: puller.limits.waiting)
    assert puller.fetched.count == 5

    puller.limits.share(puller.queue.topic, 1)
    await puller.submitted(20)


async def test_nothing_is_pulled_while_the_consumer_is_suspended(
    puller: Puller, producer: Producer
) -> None:
    await fill(producer, puller.queue, 3)
    puller.suspended = True
    loop = puller.begin(QueueOffset(0))
    await until(lambda: puller.limits.waiting)
    assert loop.next_offset is None

    puller.suspended = False
    loop.wake()
    await puller.submitted(3)


async def test_a_queue_in_order_is_not_pulled_before_it_is_locked(
    puller: Puller, producer: Producer
) -> None:
    await fill(producer, puller.queue, 3)
    loop = puller.begin(QueueOffset(0), ordered=True)
    await until(lambda: puller.limits.waiting)
    assert puller.offsets == []

    puller.fetched.locked = True
    loop.wake()
    await puller.submitted(3)


async def test_a_tag_with_the_hash_of_a_wanted_one_is_removed_by_the_client(
    puller: Puller, producer: Producer, instance: ClientInstance
) -> None:
    assert java_hash("Aa") == java_hash("BB")
    await fill(producer, puller.queue, 2, tags="BB")
    await fill(producer, puller.queue, 1, tags="Aa")
    await fill(producer, puller.queue, 1, tags="C")

    puller.begin(QueueOffset(0), wanted="Aa")
    await puller.submitted(1)

    assert [message.tags for message in puller.service.messages] == ["Aa"]


async def test_an_empty_queue_moves_its_offset_past_what_does_not_match(
    puller: Puller, producer: Producer
) -> None:
    await fill(producer, puller.queue, 5, tags="other")

    puller.begin(QueueOffset(0), wanted="mine")

    await until(lambda: puller.store.position(puller.queue) == 5)


async def test_pulls_tell_the_master_how_far_the_queue_is_consumed(
    puller: Puller, producer: Producer, instance: ClientInstance
) -> None:
    await fill(producer, puller.queue, 3)
    offsets = QueueOffsets(core_of(instance).routes, core_of(instance).brokers)
    puller.begin(QueueOffset(0))
    await puller.submitted(3)
    puller.store.update(puller.queue, QueueOffset(2))
    await fill(producer, puller.queue, 1)
    await puller.submitted(4)

    async with asyncio.timeout(WAIT_S):
        while await offsets.committed(puller.group, puller.queue) != 2:
            await asyncio.sleep(0.01)


async def test_a_queue_whose_end_is_before_the_offset_is_left(
    puller: Puller, producer: Producer, instance: ClientInstance
) -> None:
    await fill(producer, puller.queue, 3)
    async with AdminClient(instance=instance) as admin:
        await until_queued(admin, puller.queue.topic, 3)

    puller.begin(QueueOffset(9_999))
    async with asyncio.timeout(WAIT_S):
        assert await puller.moved is Cause.BEYOND_END


async def test_a_dropped_queue_gets_nothing_of_a_held_pull(
    puller: Puller, producer: Producer
) -> None:
    await fill(producer, puller.queue, 1)
    puller.begin(QueueOffset(0))
    await puller.submitted(1)

    puller.fetched.drop()
    await fill(producer, puller.queue, 1)
    await until(lambda: not len(puller.tasks))

    assert puller.offsets == [0]


async def test_a_stopped_loop_gives_its_held_pull_up_at_once(
    puller: Puller, producer: Producer
) -> None:
    await fill(producer, puller.queue, 1)
    loop = puller.begin(QueueOffset(0))
    await puller.submitted(1)

    async with asyncio.timeout(10):  # the pull was to be held for 15 s
        await loop.stop()

    assert len(puller.tasks) == 0
    assert loop.next_offset == 1


@pytest.mark.long_on("5.3.3")
async def test_pulling_goes_on_after_the_broker_was_killed(
    own_cluster: Cluster, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with ClientInstance(own_cluster.namesrv) as instance:
        async with AdminClient(instance=instance) as admin:
            queue = (await admin.create_topic("t", queues=1))[0]
        puller = Puller(instance, group, queue)
        async with Producer(group="p", instance=instance) as producer:
            await fill(producer, queue, 2)
            puller.begin(QueueOffset(0))
            await puller.submitted(2)
            await asyncio.to_thread(own_cluster.kill_broker)
            await asyncio.to_thread(own_cluster.start_broker)
            await until_sent(producer, queue)
            await puller.submitted(3)
        await puller.close()

    assert puller.offsets == [0, 1, 2]
    complaints = [record for record in caplog.records if "a pull failed" in record.message]
    assert sum(record.levelname == "WARNING" for record in complaints) <= 2


async def until_sent(producer: Producer, queue: MessageQueue) -> None:
    """Send one message as soon as the broker takes it."""
    async with asyncio.timeout(60):
        while True:
            try:
                await producer.send(Message(queue.topic, b"after"), queue=queue)
                return
            except CometError:
                await asyncio.sleep(0.2)


@pytest.mark.parametrize("ordered", [False, True])
async def test_messages_that_cannot_be_handed_over_come_again_and_none_is_lost(
    instance: ClientInstance,
    group: str,
    queues: list[MessageQueue],
    producer: Producer,
    monkeypatch: pytest.MonkeyPatch,
    *,
    ordered: bool,
) -> None:
    """The queue is taken anew at its committed offset, so that an order stays an order."""
    seen: list[int] = []
    moved = asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        seen.append(int(message.body))
        moved.set()

    consumer = PushConsumer(
        instance=instance,
        group=group,
        handler=handle,
        ordered=ordered,
        subscriptions={queues[0].topic: "*"},
        pull_batch=4,
        start_from=StartFrom.FIRST,
    )
    service = consumer._engine.service
    submit, failures = service.submit, 2

    def faulty(queue: ProcessQueue, batch: FetchedBatch) -> None:
        nonlocal failures
        if failures and batch.messages[0].queue_offset >= 8:
            failures -= 1
            raise ZeroDivisionError
        submit(queue, batch)

    monkeypatch.setattr(service, "submit", faulty)
    await fill(producer, queues[0], 20)
    async with consumer, asyncio.timeout(WAIT_S):
        while set(seen) != set(range(20)):
            moved.clear()
            await moved.wait()

    assert failures == 0
    assert consumer.failure is None
    assert seen == list(range(20)) if ordered else len(seen) == 20
