"""Consuming in order: failures, locks that are renewed, lost or released, and their queues."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cometmq.client import PushConsumer
from cometmq.client._consuming.handler_calls import CallLimits, HandlerCalls
from cometmq.client._consuming.retries import DeadLetterRule, DeadLetters
from cometmq.client._consuming.statistics import Statistics
from cometmq.client._push import ordered as locking
from cometmq.client._push.ordered import ConcurrencyLimit, Locks, OrderedService
from cometmq.client._push.process_queue import ProcessQueue
from cometmq.client._supervision import SupervisedTasks
from cometmq.client.errors import ConsumeLater
from cometmq.client.handlers import ConsumedInOrder, OrderedContext
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Request
from support.brokers.group_broker import GroupBroker
from support.brokers.scripted import ScriptedCluster
from support.checks.waiting import until
from support.clients.consumer_inputs import QUEUE, MemoryOffsets, stored
from support.clients.recording_handlers import Seen, Waits

WAIT_S = 60.0

pytestmark = pytest.mark.usefixtures("virtual_time")


class Broker:
    """The locks of a broker, as it answers about them."""

    def __init__(self) -> None:
        self.grants = True
        self.asked = 0
        self.unlocked: list[MessageQueue] = []

    async def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> set[MessageQueue]:
        await asyncio.sleep(0)
        self.asked += 1
        return set(queues) if self.grants else set()

    async def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        await asyncio.sleep(0)
        self.unlocked += queues


class Rig:
    def __init__(
        self,
        *,
        handler: Callable[..., Any] | None = None,
        batch_handler: Callable[..., Any] | None = None,
        batch_max: int = 1,
        concurrency: int = 4,
        suspend_ms: int = 10,
        retries_max: int | None = None,
        takes_dead: bool = True,
        locks: bool = True,
        continuous_s: float = 60.0,
        queues: int = 1,
    ) -> None:
        self.now = 100.0
        self.broker = Broker()
        self.queues = [
            ProcessQueue(MessageQueue(QUEUE.topic, "a", number), now=lambda: self.now)
            for number in range(queues)
        ]
        self.queue = self.queues[0]
        for queue in self.queues:
            queue.locked = True
        self.offsets = MemoryOffsets()
        self.dead: list[tuple[int, BaseException | None]] = []
        self._takes_dead = takes_dead
        self.failure: BaseException | None = None
        """What the next request to store a dead letter raises."""
        self.locks = Locks(
            self.broker,  # type: ignore[arg-type]
            "g",
            "c",
            queues=lambda: self.queues,
            now=lambda: self.now,
            on_locked=lambda queue: self.service.resume(queue),
        )
        self.service = OrderedService(
            HandlerCalls(
                handler,
                batch_handler,
                group="g",
                client_id="c",
                limits=CallLimits(concurrency, batch_max),
                ordered=True,
            ),
            store=self.offsets,
            locks=self.locks if locks else None,
            dead_letters=DeadLetters(DeadLetterRule(retries_max), self._give_up),
            restore_topics=lambda queue, messages: None,
            suspend_ms=suspend_ms,
            statistics=Statistics(lambda: self.now),
            continuous_s=continuous_s,
        )

    async def _give_up(self, message: StoredMessage, error: BaseException | None) -> bool:
        await asyncio.sleep(0)
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        self.dead.append((message.queue_offset, error))
        return self._takes_dead

    def fetch(self, *offsets: int, queue: ProcessQueue | None = None) -> None:
        target = queue or self.queue
        messages = [stored(offset) for offset in offsets]
        batch = target.put(messages)
        assert batch is not None
        self.service.submit(target, batch)

    async def empty(self) -> None:
        await until(lambda: all(queue.count == 0 for queue in self.queues))

    @property
    def committed(self) -> int | None:
        return self.offsets.position(QUEUE)

    async def close(self) -> None:
        await self.service.stop(grace_s=0)
        await self.locks.stop()


Rigs = Callable[..., Rig]


async def test_messages_are_handled_one_after_the_other_in_order(rigs: Rigs) -> None:
    seen: list[int] = []
    running = 0

    async def handle(message: StoredMessage) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        seen.append(message.queue_offset)
        running -= 1

    rig = rigs(handler=handle)
    rig.fetch(3, 4, 5)
    await until(lambda: len(seen) >= 1)
    rig.fetch(6, 7)
    await rig.empty()

    assert seen == [3, 4, 5, 6, 7]
    assert rig.committed == 8


async def test_a_queue_begins_again_when_messages_come_after_it_was_empty(rigs: Rigs) -> None:
    seen = Seen()
    rig = rigs(handler=seen)
    for offset in range(20):
        rig.fetch(offset)
        await until(lambda: len(seen.messages) == offset + 1)  # noqa: B023 - awaited at once

    assert rig.committed == 20


async def test_a_failed_message_comes_again_before_all_others(rigs: Rigs) -> None:
    seen: list[tuple[int, int]] = []

    async def handle(message: StoredMessage) -> ConsumedInOrder | None:
        seen.append((message.queue_offset, message.reconsume_times))
        if message.queue_offset == 1 and message.reconsume_times == 0:
            return ConsumedInOrder.SUSPEND
        if message.queue_offset == 1 and message.reconsume_times == 1:
            raise ValueError
        return None

    rig = rigs(handler=handle)
    rig.fetch(0, 1, 2)
    await rig.empty()

    assert seen == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert rig.committed == 3


async def test_a_queue_pauses_after_a_failure_for_as_long_as_the_handler_says(rigs: Rigs) -> None:
    loop = asyncio.get_running_loop()
    times: list[float] = []

    async def handle(
        messages: Sequence[StoredMessage], context: OrderedContext
    ) -> ConsumedInOrder | None:
        times.append(loop.time())
        context.delay = 0.12
        return ConsumedInOrder.SUSPEND if len(times) == 1 else None

    rig = rigs(batch_handler=handle, suspend_ms=30_000)
    rig.fetch(0)
    await rig.empty()

    assert times[1] - times[0] == pytest.approx(0.12)


async def test_nothing_is_committed_while_a_message_fails(rigs: Rigs) -> None:
    tries = 0

    async def handle(message: StoredMessage) -> None:
        nonlocal tries
        tries += message.queue_offset == 1
        if message.queue_offset == 1:
            raise ValueError

    rig = rigs(handler=handle)
    rig.fetch(0, 1, 2)
    await until(lambda: tries >= 5)

    assert rig.committed == 1
    assert rig.dead == []


async def test_a_message_that_failed_too_often_is_given_up_and_its_queue_goes_on(
    rigs: Rigs,
) -> None:
    seen: list[int] = []
    error = ValueError("never")

    async def handle(message: StoredMessage) -> None:
        seen.append(message.queue_offset)
        if message.queue_offset == 0:
            raise error

    rig = rigs(handler=handle, retries_max=2)
    rig.fetch(0, 1)
    await rig.empty()

    assert seen == [0, 0, 0, 1]
    assert rig.dead == [(0, error)]
    assert rig.committed == 2


async def test_a_message_that_cannot_be_given_up_blocks_its_queue(rigs: Rigs) -> None:
    async def handle(message: StoredMessage) -> None:
        raise ValueError

    rig = rigs(handler=handle, retries_max=0, takes_dead=False)
    rig.fetch(0, 1)
    await until(lambda: len(rig.dead) >= 3)

    assert {offset for offset, _ in rig.dead} == {0}
    assert rig.committed is None


@pytest.mark.parametrize("failure", [None, ValueError(), asyncio.CancelledError()], ids=repr)
async def test_a_message_is_given_up_when_the_handler_orders_it_and_its_queue_goes_on(
    rigs: Rigs, failure: BaseException | None
) -> None:
    """At once, even if giving it up raised."""

    async def handle(message: StoredMessage) -> None:
        if message.queue_offset == 0:
            raise ConsumeLater(delay_level=-1)

    rig = rigs(handler=handle)
    rig.failure = failure
    rig.fetch(0, 1)
    await rig.empty()

    assert rig.dead == [(0, None)]
    assert rig.committed == 2


async def test_a_queue_goes_on_after_a_handler_cancelled_its_own_task(rigs: Rigs) -> None:
    seen: list[int] = []

    async def handle(message: StoredMessage) -> None:
        seen.append(message.queue_offset)
        if len(seen) == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    rig = rigs(handler=handle)
    rig.fetch(0, 1)
    await rig.empty()

    assert seen == [0, 0, 1]
    assert rig.committed == 2


async def test_messages_stay_open_until_the_handler_commits_them(rigs: Rigs) -> None:
    commits: list[int | None] = []

    async def handle(messages: Sequence[StoredMessage], context: OrderedContext) -> ConsumedInOrder:
        context.auto_commit = False
        commits.append(rig.committed)
        last = messages[-1].queue_offset == 3
        return ConsumedInOrder.COMMIT if last else ConsumedInOrder.SUCCESS

    rig = rigs(batch_handler=handle)
    rig.fetch(0, 1, 2, 3)
    await rig.empty()

    assert commits == [None] * 4
    assert rig.committed == 4


async def test_all_open_messages_come_again_when_the_handler_rolls_back(rigs: Rigs) -> None:
    seen: list[int] = []

    async def handle(messages: Sequence[StoredMessage], context: OrderedContext) -> ConsumedInOrder:
        context.auto_commit = False
        seen.append(messages[0].queue_offset)
        if seen == [0, 1, 2]:
            return ConsumedInOrder.ROLLBACK
        return ConsumedInOrder.COMMIT if len(seen) == 6 else ConsumedInOrder.SUCCESS

    rig = rigs(batch_handler=handle)
    rig.fetch(0, 1, 2)
    await rig.empty()

    assert seen == [0, 1, 2, 0, 1, 2]
    assert rig.committed == 3


async def test_a_queue_is_not_consumed_without_its_lock_and_goes_on_with_it(rigs: Rigs) -> None:
    seen = Seen()
    rig = rigs(handler=seen)
    rig.broker.grants = False
    await rig.locks.renew()
    rig.fetch(0)
    await until(lambda: rig.broker.asked >= 2)
    await asyncio.sleep(60.0)
    assert seen.offsets == []
    assert rig.broker.asked == 2, "only the locks ask again for a lost lock"
    rig.broker.grants = True
    await rig.locks.renew()
    await rig.empty()

    assert seen.offsets == [0]


async def test_a_lock_is_asked_for_again_once_it_is_30_s_old(rigs: Rigs) -> None:
    asked: list[int] = []

    async def handle(message: StoredMessage) -> None:
        asked.append(rig.broker.asked)
        rig.now += 31 if message.queue_offset == 1 else 29

    rig = rigs(handler=handle)
    rig.fetch(0, 1, 2)
    await rig.empty()

    assert asked == [0, 0, 1]


async def test_no_lock_is_needed_when_every_member_reads_all_queues(rigs: Rigs) -> None:
    async def handle(message: StoredMessage) -> None:
        rig.now += 31

    rig = rigs(handler=handle, locks=False)
    rig.queue.locked = False
    rig.fetch(0, 1)
    await rig.empty()

    assert rig.broker.asked == 0


async def test_a_queue_lines_up_again_after_its_time_while_others_wait(rigs: Rigs) -> None:
    seen: list[int] = []

    async def handle(message: StoredMessage) -> None:
        seen.append(message.queue_id)
        await asyncio.sleep(0.01)

    rig = rigs(handler=handle, concurrency=1, queues=2, continuous_s=0.05)
    one, two = rig.queues
    rig.fetch(*range(30), queue=one)
    messages = [stored(0)]
    messages[0].queue_id = 1
    batch = two.put(messages)
    assert batch is not None
    rig.service.submit(two, batch)
    await until(lambda: 1 in seen)

    assert seen.index(1) < 15, "the second queue did not wait for the end of the first"


async def test_no_more_queues_are_consumed_at_a_time_than_are_allowed(rigs: Rigs) -> None:
    running = most = 0
    gate = asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    rig = rigs(handler=handle, concurrency=2, queues=6)
    for queue in rig.queues:
        rig.fetch(0, queue=queue)
    await until(lambda: running == 2)
    rig.service.set_concurrency(3)
    await until(lambda: running == 3)
    gate.set()
    await rig.empty()

    assert most == 3


@pytest.mark.parametrize(("seconds", "committed"), [(29, 1), (31, None)])
async def test_a_running_handler_counts_once_the_queue_was_dropped_if_its_lock_is_held(
    rigs: Rigs, *, seconds: int, committed: int | None
) -> None:
    handler = Waits()
    rig = rigs(handler=handler)
    rig.fetch(0, 1)
    await handler.count(1)
    rig.queue.drop()
    rig.now += seconds
    handler.may_end.set()
    await rig.service.stop(grace_s=WAIT_S)

    assert (handler.offsets, rig.committed) == ([0], committed)


async def test_a_stop_waits_for_the_running_handler_and_begins_no_other(rigs: Rigs) -> None:
    handler = Waits()
    rig = rigs(handler=handler)
    rig.fetch(0, 1)
    await handler.count(1)
    stopping = asyncio.create_task(rig.service.stop(grace_s=WAIT_S))
    await asyncio.sleep(0)
    handler.may_end.set()
    await stopping

    assert (handler.offsets, rig.committed) == ([0], 1)


async def test_a_queue_whose_plain_handler_was_abandoned_is_not_unlocked_for_others(
    rigs: Rigs,
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def handle(message: StoredMessage) -> None:
        begun.set()
        may_end.wait(WAIT_S)

    rig = rigs(handler=handle, queues=2)
    rig.fetch(0)
    await until(begun.is_set)
    await rig.service.stop(grace_s=0.01)
    await rig.locks.stop()
    may_end.set()

    assert rig.broker.unlocked == [rig.queues[1].queue]


async def test_waiting_tasks_enter_in_order_and_a_cancelled_one_is_skipped() -> None:
    limit, entered = ConcurrencyLimit(1), []
    gate = asyncio.Event()

    async def enter(name: str) -> None:
        async with limit:
            entered.append(name)
            await gate.wait()

    tasks = [asyncio.create_task(enter(name)) for name in "abcd"]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)
    assert entered == ["a"]
    gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert entered == ["a", "c", "d"]


@pytest.mark.parametrize("plain", [False, True])
async def test_messages_that_a_handler_takes_out_of_its_list_are_not_lost(
    rigs: Rigs, plain: bool
) -> None:
    calls: list[list[int]] = []

    def take(messages: list[StoredMessage], context: OrderedContext) -> None:
        calls.append([message.queue_offset for message in messages])
        while messages:
            if messages.pop(0).queue_offset == 1 and len(calls) == 1:
                raise LookupError

    async def take_in_loop(messages: list[StoredMessage], context: OrderedContext) -> None:
        take(messages, context)

    rig = rigs(batch_handler=take if plain else take_in_loop, batch_max=4)
    rig.fetch(0, 1, 2)
    await rig.empty()

    assert calls == [[0, 1, 2], [0, 1, 2]]
    assert rig.committed == 3


class LockingBroker:
    """The locks of a broker, as it answers about them."""

    def __init__(self) -> None:
        self.refuses: set[MessageQueue] = set()
        self.locked: list[set[MessageQueue]] = []
        self.unlocked: list[set[MessageQueue]] = []
        self.moved = asyncio.Event()

    async def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> set[MessageQueue]:
        self.locked.append(set(queues))
        return set(queues) - self.refuses

    async def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        self.unlocked.append(set(queues))
        self.moved.set()


class HeldLocks:
    def __init__(self, unlock_delay_s: float = 0.0) -> None:
        self.now = 100.0
        self.broker = LockingBroker()
        self.one, self.two = (
            ProcessQueue(MessageQueue(QUEUE.topic, "a", number), now=lambda: self.now)
            for number in range(2)
        )
        self.back: list[ProcessQueue] = []
        self.locks = Locks(
            self.broker,  # type: ignore[arg-type]
            "g",
            "c",
            queues=lambda: [self.one, self.two],
            now=lambda: self.now,
            on_locked=self.back.append,
            unlock_delay_s=unlock_delay_s,
        )


async def test_all_owned_queues_are_locked_again_in_one_round() -> None:
    rig = HeldLocks()

    await rig.locks.renew()

    assert rig.broker.locked == [{rig.one.queue, rig.two.queue}]
    assert (rig.one.locked, rig.two.locked) == (True, True)


async def test_a_queue_that_the_broker_does_not_confirm_is_not_locked_any_more() -> None:
    rig = HeldLocks()
    await rig.locks.renew()
    rig.broker.refuses.add(rig.one.queue)
    await rig.locks.renew()

    assert (rig.one.locked, rig.two.locked) == (False, True)


async def test_dropped_queues_are_not_locked_again() -> None:
    rig = HeldLocks()
    rig.one.drop()
    await rig.locks.renew()

    assert rig.broker.locked == [{rig.two.queue}]


async def test_its_owner_is_told_when_a_lost_lock_is_back() -> None:
    rig = HeldLocks()
    await rig.locks.renew()
    rig.back.clear()
    await rig.locks.renew()
    assert rig.back == []
    rig.now += 31
    await rig.locks.renew()

    assert rig.back == [rig.one, rig.two]


async def test_locks_are_renewed_on_and_on() -> None:
    rig = HeldLocks()
    rig.locks.start(0.01, SupervisedTasks("test"))
    await until(lambda: len(rig.broker.locked) >= 3, timeout=60)
    await rig.locks.stop()

    assert rig.one.locked


async def test_a_lost_lock_is_asked_for_again_long_before_the_next_renewal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(locking, "FIRST_RENEWAL_S", 0.0)
    monkeypatch.setattr(locking, "RELOCK_S", 0.01)
    rig = HeldLocks()
    rig.broker.refuses.add(rig.one.queue)
    rig.locks.start(1000.0, SupervisedTasks("test"))
    async with asyncio.timeout(60):
        while len(rig.broker.locked) < 3:
            await asyncio.sleep(0.005)
        rig.broker.refuses.clear()
        while not rig.one.locked:
            await asyncio.sleep(0.005)
    asked = len(rig.broker.locked)
    await asyncio.sleep(50.0)

    assert len(rig.broker.locked) == asked, "none is lost, and the time has not come"
    rig.now += 1000
    await until(lambda: len(rig.broker.locked) != asked, timeout=1000)
    await rig.locks.stop()


@asynccontextmanager
async def member(broker: GroupBroker, **options: int) -> AsyncIterator[PushConsumer]:
    """A running consumer, the only member of its group."""
    async with ScriptedCluster([broker]) as cluster:
        wanted = {"subscriptions": {"t": "*"}, "ordered": True, **options}
        consumer = PushConsumer(cluster.address, group="g", handler=print, **wanted)
        broker.members = [consumer.client_id]
        async with consumer:
            yield consumer


async def test_the_queues_of_a_consumer_are_locked_again_at_once_by_a_restarted_broker() -> None:
    broker = GroupBroker()
    async with member(broker) as consumer:
        await broker.until(lambda: len(broker.locked_by) == 2)
        await consumer.ready()
        await asyncio.sleep(5.0)  # the first renewal is over, the next one is far
        broker.locked_by.clear()
        restarted_s = asyncio.get_running_loop().time()
        await broker.be_away(0.0)

        await broker.until(lambda: len(broker.locked_by) == 2)

        # The first pull that fails is retried after a second, and reconnects.
        assert asyncio.get_running_loop().time() - restarted_s < 1.5


async def test_a_consumer_that_is_closed_before_its_locks_are_confirmed_leaves_none() -> None:
    """The next member of the group would wait a minute for them."""
    broker = GroupBroker()

    def lock_silently(request: Request) -> None:
        broker._lock(request)
        broker.moved.set()

    broker.handlers[RequestCode.LOCK_BATCH_MQ] = lock_silently
    async with ScriptedCluster([broker]) as cluster:
        consumer = PushConsumer(
            cluster.address, group="g", handler=print, ordered=True, subscriptions={"t": "*"}
        )
        broker.members = [consumer.client_id]
        async with consumer:
            await broker.until(lambda: len(broker.locked_by) == 2)
        await broker.until(lambda: broker.locked_by == {})


async def test_a_lock_that_was_refused_is_not_given_back() -> None:
    rig = HeldLocks()
    rig.broker.refuses.add(rig.one.queue)
    await rig.locks.lock(rig.one.queue)
    await rig.locks.stop()

    assert rig.broker.unlocked == []


@pytest.mark.parametrize("overtaken", [False, True])
async def test_a_queue_whose_lock_is_back_begins_behind_what_another_member_has_committed(
    *, overtaken: bool
) -> None:
    """While this member had lost the lock, another one may have consumed the queue."""
    broker, queue = GroupBroker(), MessageQueue("t", "a", 0)
    broker.bounds, broker.committed["t", 0] = (0, 100), 5
    async with member(broker, hold_ms=100, pull_timeout_ms=200) as consumer:
        await consumer.ready()
        await broker.until(lambda: queue in broker.locked_by and bool(broker.pulls))
        broker.locked_by[queue] = "another"
        await asyncio.sleep(30.0)  # a renewal is refused
        if overtaken:
            broker.committed["t", 0] = 40
        broker.pulls.clear()
        broker.commits.clear()
        del broker.locked_by[queue]

        await broker.until(lambda: any(pull.queue_id == 0 for pull in broker.pulls))
        first = next(pull for pull in broker.pulls if pull.queue_id == 0)

    assert first.queue_offset == (40 if overtaken else 5)
    commits = [each.commit_offset for each in broker.commits if each.queue_id == 0]
    assert min(commits, default=first.queue_offset) >= first.queue_offset


async def test_an_empty_queue_is_unlocked_at_once_when_it_is_released() -> None:
    rig = HeldLocks(unlock_delay_s=20.0)
    await rig.locks.renew()
    await rig.locks.release(rig.one)

    assert rig.broker.unlocked == [{rig.one.queue}]
    assert not rig.one.locked


async def test_a_queue_is_unlocked_only_after_the_delay_of_20_s_when_messages_are_left() -> None:
    """RocketMQ 4.9's delay: nothing is unlocked before it is over."""
    loop = asyncio.get_running_loop()
    rig = HeldLocks(unlock_delay_s=20.0)
    rig.one.put([stored(5)])
    await rig.locks.renew()
    began = loop.time()
    await rig.locks.release(rig.one)
    assert rig.broker.unlocked == []
    async with asyncio.timeout(60):
        await rig.broker.moved.wait()

    assert loop.time() - began == pytest.approx(20.0)
    assert rig.broker.unlocked == [{rig.one.queue}]


async def test_a_queue_that_comes_back_before_the_delay_is_over_stays_locked() -> None:
    rig = HeldLocks(unlock_delay_s=20.0)
    rig.one.put([stored(5)])
    await rig.locks.release(rig.one)
    assert await rig.locks.lock(rig.one.queue)
    await asyncio.sleep(60)

    assert rig.broker.unlocked == []


async def test_all_locks_are_given_back_at_once_at_the_end() -> None:
    rig = HeldLocks(unlock_delay_s=20.0)
    rig.one.put([stored(5)])
    await rig.locks.renew()
    await rig.locks.release(rig.one)
    await rig.locks.stop()

    assert rig.broker.unlocked == [{rig.one.queue, rig.two.queue}]
