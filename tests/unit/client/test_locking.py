"""Brokers' locks: renewed, lost, given back at once or late."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from cometmq.client import PushConsumer
from cometmq.client._push import ordered as locking
from cometmq.client._push.ordered import Locks
from cometmq.client._push.process_queue import ProcessQueue
from cometmq.client._supervision import SupervisedTasks
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Request
from support.consuming import QUEUE
from support.group_broker import GroupBroker
from support.scripted import ScriptedCluster

pytestmark = pytest.mark.usefixtures("virtual_time")


class Broker:
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


class Rig:
    def __init__(self) -> None:
        self.now = 100.0
        self.broker = Broker()
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
        )


async def test_all_owned_queues_are_locked_again_in_one_round() -> None:
    rig = Rig()

    await rig.locks.renew()

    assert rig.broker.locked == [{rig.one.queue, rig.two.queue}]
    assert (rig.one.locked, rig.two.locked) == (True, True)


async def test_a_queue_that_the_broker_does_not_confirm_is_not_locked_any_more() -> None:
    rig = Rig()
    await rig.locks.renew()
    rig.broker.refuses.add(rig.one.queue)
    await rig.locks.renew()

    assert (rig.one.locked, rig.two.locked) == (False, True)


async def test_dropped_queues_are_not_locked_again() -> None:
    rig = Rig()
    rig.one.drop()
    await rig.locks.renew()

    assert rig.broker.locked == [{rig.two.queue}]


async def test_its_owner_is_told_when_a_lost_lock_is_back() -> None:
    rig = Rig()
    await rig.locks.renew()
    rig.back.clear()
    await rig.locks.renew()
    assert rig.back == []
    rig.now += 31
    await rig.locks.renew()

    assert rig.back == [rig.one, rig.two]


async def test_locks_are_renewed_on_and_on() -> None:
    rig = Rig()
    rig.locks.start(0.01, SupervisedTasks("test"))
    async with asyncio.timeout(60):
        while len(rig.broker.locked) < 3:
            await asyncio.sleep(0.005)
    await rig.locks.stop()

    assert rig.one.locked


async def test_a_lost_lock_is_asked_for_again_long_before_the_next_renewal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(locking, "FIRST_RENEWAL_S", 0.0)
    monkeypatch.setattr(locking, "RELOCK_S", 0.01)
    rig = Rig()
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
    async with asyncio.timeout(1000):
        while len(rig.broker.locked) == asked:
            await asyncio.sleep(0.005)
    await rig.locks.stop()


async def test_the_queues_of_a_consumer_are_locked_again_at_once_by_a_broker_that_restarted() -> (
    None
):
    broker = GroupBroker()
    async with ScriptedCluster([broker]) as cluster:
        consumer = PushConsumer(
            cluster.address, group="g", handler=print, ordered=True, subscriptions={"t": "*"}
        )
        broker.members = [consumer.client_id]
        async with consumer:
            await broker.wait_until(lambda: len(broker.locked_by) == 2)
            await consumer.ready()
            await asyncio.sleep(5.0)  # the first renewal is over, the next one is far
            broker.locked_by.clear()
            restarted_s = asyncio.get_running_loop().time()
            await broker.be_away(0.0)

            await broker.wait_until(lambda: len(broker.locked_by) == 2)

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
            await broker.wait_until(lambda: len(broker.locked_by) == 2)
        await broker.wait_until(lambda: broker.locked_by == {})


async def test_a_lock_that_was_refused_is_not_given_back() -> None:
    rig = Rig()
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
    async with ScriptedCluster([broker]) as cluster:
        consumer = PushConsumer(
            cluster.address, group="g", handler=print, ordered=True, subscriptions={"t": "*"},
            hold_ms=100, pull_timeout_ms=200,
        )  # fmt: skip
        broker.members = [consumer.client_id]
        async with consumer:
            await consumer.ready()
            await broker.wait_until(lambda: queue in broker.locked_by and bool(broker.pulls))
            broker.locked_by[queue] = "another"
            await asyncio.sleep(30.0)  # a renewal is refused
            if overtaken:
                broker.committed["t", 0] = 40
            broker.pulls.clear()
            broker.commits.clear()
            del broker.locked_by[queue]

            await broker.wait_until(lambda: any(pull.queue_id == 0 for pull in broker.pulls))
            first = next(pull for pull in broker.pulls if pull.queue_id == 0)

    assert first.queue_offset == (40 if overtaken else 5)
    commits = [each.commit_offset for each in broker.commits if each.queue_id == 0]
    assert min(commits, default=first.queue_offset) >= first.queue_offset


async def test_a_queue_is_unlocked_at_once_when_it_is_released_without_delay() -> None:
    rig = Rig()
    await rig.locks.renew()
    await rig.locks.release_after(rig.one, 0.0)

    assert rig.broker.unlocked == [{rig.one.queue}]
    assert not rig.one.locked


async def test_a_queue_is_unlocked_only_after_the_delay_of_20_s_when_messages_are_left() -> None:
    """RocketMQ 4.9's delay: nothing is unlocked before it is over."""
    loop = asyncio.get_running_loop()
    rig = Rig()
    await rig.locks.renew()
    began = loop.time()
    await rig.locks.release_after(rig.one, 20.0)
    assert rig.broker.unlocked == []
    async with asyncio.timeout(60):
        await rig.broker.moved.wait()

    assert loop.time() - began == pytest.approx(20.0)
    assert rig.broker.unlocked == [{rig.one.queue}]


async def test_a_queue_that_comes_back_before_the_delay_is_over_stays_locked() -> None:
    rig = Rig()
    await rig.locks.release_after(rig.one, 20.0)
    assert await rig.locks.lock(rig.one.queue)
    await asyncio.sleep(60)

    assert rig.broker.unlocked == []


async def test_all_locks_are_given_back_at_once_at_the_end() -> None:
    rig = Rig()
    await rig.locks.renew()
    await rig.locks.release_after(rig.one, 20.0)
    await rig.locks.stop()

    assert rig.broker.unlocked == [{rig.one.queue, rig.two.queue}]
