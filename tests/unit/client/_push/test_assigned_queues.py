"""The queues of a push consumer: taken, moved, given up, and unlocked when it is time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

import pytest

from cometmq.client._consuming.handover import IDLE_S
from cometmq.client._push import assigned_queues
from cometmq.client._push.assigned_queues import AssignedQueues
from cometmq.client._push.ordered import Locks
from cometmq.client._push.process_queue import ProcessQueue
from cometmq.client.errors import ConnectError, QueueNotFoundError
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.remoting.tasks import Supervisor
from support.checks.waiting import until
from support.clients.consumer_inputs import QUEUE, MemoryOffsets, stored


class Loop:
    """Stands where a pull loop would be, and pulls nothing."""

    def __init__(self, queue: ProcessQueue, offset: QueueOffset) -> None:
        self.queue = queue
        self.offset = self.next_offset = offset
        self.stopped = False

    def start(self, tasks: Supervisor) -> None:
        """Nothing begins."""

    async def stop(self) -> None:
        await asyncio.sleep(0)
        self.stopped = True

    def wake(self) -> None:
        """Nobody sleeps."""


class Broker:
    """The locks of a broker."""

    def __init__(self) -> None:
        self.grants = True
        self.unlocked: list[MessageQueue] = []
        self.moved = asyncio.Event()

    async def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> set[MessageQueue]:
        return set(queues) if self.grants else set()

    async def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        self.unlocked += queues
        self.moved.set()


class Rig:
    def __init__(self, *, locks: bool = False, unlock_delay_s: float = 0.0) -> None:
        self.broker = Broker()
        self.store = MemoryOffsets()
        self.loops: list[Loop] = []
        self.first: QueueOffset | None = QueueOffset(5)
        self.freed = asyncio.Event()
        self.locks = Locks(
            self.broker,  # type: ignore[arg-type]
            "g",
            "c",
            queues=lambda: self.queues.process_queues(),
            now=asyncio.get_running_loop().time,
            unlock_delay_s=unlock_delay_s,
        )
        self.queues = AssignedQueues(
            "g",
            store=self.store,
            exclusion=self.locks if locks else None,
            first_offset=self._first_offset,
            make_loop=self._make_loop,  # type: ignore[arg-type]
            on_rebalanced=self._rebalanced,
            on_free=self.freed.set,
            tasks=Supervisor("pulls"),
        )

    async def _first_offset(self, queue: MessageQueue) -> QueueOffset:
        await asyncio.sleep(0)
        if self.first is None:
            raise QueueNotFoundError("nobody tells")
        return self.first

    def _make_loop(self, queue: ProcessQueue, offset: QueueOffset) -> Loop:
        self.loops.append(Loop(queue, offset))
        return self.loops[-1]

    async def _rebalanced(
        self, topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue]
    ) -> None:
        """Nobody is told."""

    @property
    def fetched(self) -> ProcessQueue:
        [only] = self.queues.process_queues()
        return only

    async def close(self) -> None:
        await self.locks.stop()
        await self.queues.close()


Rigs = Callable[..., Rig]


async def test_a_queue_is_pulled_from_its_first_offset_once_it_was_taken(rigs: Rigs) -> None:
    rig = rigs()

    assert await rig.queues.assign(QUEUE)
    assert [(loop.queue.queue, loop.offset) for loop in rig.loops] == [(QUEUE, 5)]
    assert list(rig.queues.assigned(QUEUE.topic)) == [QUEUE]
    assert not await rig.queues.assign(QUEUE), "it is taken already"


async def test_a_queue_is_not_begun_while_nobody_tells_its_first_offset(rigs: Rigs) -> None:
    rig = rigs(locks=True)
    rig.first = None
    with pytest.raises(QueueNotFoundError):
        await rig.queues.assign(QUEUE)
    await rig.broker.moved.wait()

    assert rig.broker.unlocked == [QUEUE], "its lock is given back"
    assert list(rig.queues.assigned(QUEUE.topic)) == []


async def test_an_ordered_queue_is_not_begun_without_its_lock(rigs: Rigs) -> None:
    rig = rigs(locks=True)
    rig.broker.grants = False
    assert not await rig.queues.assign(QUEUE)
    rig.broker.grants = True

    assert await rig.queues.assign(QUEUE)
    assert rig.fetched.locked


async def test_a_queue_that_is_given_up_is_dropped_and_forgotten(rigs: Rigs) -> None:
    rig = rigs()
    await rig.queues.assign(QUEUE)
    fetched = rig.fetched
    rig.store.update(QUEUE, QueueOffset(9))

    assert await rig.queues.revoke(QUEUE)
    assert fetched.dropped
    assert rig.loops[0].stopped
    assert rig.store.position(QUEUE) is None
    assert rig.queues.queues() == []


async def test_an_ordered_queue_is_unlocked_at_once_when_nothing_of_it_is_left(rigs: Rigs) -> None:
    rig = rigs(locks=True, unlock_delay_s=20.0)
    await rig.queues.assign(QUEUE)

    assert await rig.queues.revoke(QUEUE)
    assert rig.broker.unlocked == [QUEUE]


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_a_queue_is_unlocked_even_if_its_offset_cannot_be_kept(
    rigs: Rigs, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    rig = rigs(locks=True)
    rig.store.failure = error("the database is gone")
    await rig.queues.assign(QUEUE)

    assert await rig.queues.revoke(QUEUE)
    assert rig.broker.unlocked == [QUEUE]
    assert "the database is gone" in caplog.text


async def test_an_ordered_queue_with_messages_left_is_unlocked_after_the_delay(rigs: Rigs) -> None:
    """RocketMQ 4.9 waits 20 s; the delay is a setting, and shorter here."""
    rig = rigs(locks=True, unlock_delay_s=0.05)
    await rig.queues.assign(QUEUE)
    rig.fetched.put([stored(5)])

    assert await rig.queues.revoke(QUEUE)
    assert rig.broker.unlocked == []
    async with asyncio.timeout(60):
        await rig.broker.moved.wait()
    assert rig.broker.unlocked == [QUEUE]


async def test_an_ordered_queue_is_unlocked_only_after_the_handler_that_is_at_it(
    rigs: Rigs,
) -> None:
    rig = rigs(locks=True)
    await rig.queues.assign(QUEUE)
    fetched = rig.fetched
    async with fetched.consuming:
        await rig.queues.revoke(QUEUE)
        assert rig.broker.unlocked == []
        assert fetched.unlock_tries == 1
        assert not await rig.queues.assign(QUEUE), "nor can it be taken again"
        assert list(rig.queues.assigned(QUEUE.topic)) == []
    async with asyncio.timeout(60):
        await rig.freed.wait()

    assert rig.broker.unlocked == [QUEUE]
    assert await rig.queues.assign(QUEUE)


async def test_an_ordered_queue_is_unlocked_after_the_last_result_is_committed(rigs: Rigs) -> None:
    rig = rigs(locks=True)
    await rig.queues.assign(QUEUE)
    fetched = rig.fetched
    async with fetched.consuming:
        await rig.queues.revoke(QUEUE)
        rig.store.update(QUEUE, QueueOffset(9))
        assert rig.store.kept == {QUEUE: 5}
    async with asyncio.timeout(60):
        await rig.freed.wait()

    assert rig.store.kept == {QUEUE: 9}
    assert rig.store.position(QUEUE) is None


@pytest.mark.parametrize(
    ("other", "kept"), [(None, 9), (7, 9), (9, 9), (12, 12)], ids=["none", "less", "same", "more"]
)
async def test_what_a_running_handler_finishes_is_committed_unless_more_is_already(
    rigs: Rigs, *, other: int | None, kept: int
) -> None:
    rig = rigs()
    await rig.queues.assign(QUEUE)
    fetched = rig.fetched
    fetched.put([stored(5)])
    fetched.begin_call()
    await rig.queues.revoke(QUEUE)
    assert not await rig.queues.assign(QUEUE), "it is still being given up"
    rig.store.update(QUEUE, QueueOffset(9))
    if other is not None:
        rig.store.kept[QUEUE] = QueueOffset(other)
    fetched.end_call()
    async with asyncio.timeout(60):
        await rig.freed.wait()

    assert rig.store.kept == {QUEUE: kept}
    assert await rig.queues.assign(QUEUE)


async def test_a_handler_that_does_not_end_keeps_a_revoked_queue_for_a_bounded_time(
    rigs: Rigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assigned_queues, "HAND_OVER_S", 0.01)
    monkeypatch.setattr(assigned_queues, "FINISH_S", 0.01)
    rig = rigs()
    await rig.queues.assign(QUEUE)
    fetched = rig.fetched
    batch = fetched.put([stored(5)])
    assert batch is not None
    fetched.begin_call()

    await rig.queues.revoke(QUEUE)
    assert await rig.queues.assign(QUEUE)
    batch.finish(0, 1)
    assert fetched.committable() is None, "its result counts no more"


async def test_a_queue_that_is_moved_goes_on_there_without_what_was_fetched(rigs: Rigs) -> None:
    rig = rigs()
    await rig.queues.assign(QUEUE)
    before = rig.fetched
    before.put([stored(5), stored(6)])

    assert await rig.queues.move(QUEUE, QueueOffset(2))
    assert before.dropped
    assert before.count == 0
    assert rig.fetched is not before
    assert rig.loops[-1].offset == 2
    assert rig.store.position(QUEUE) == 2


async def test_an_ordered_queue_that_is_moved_goes_on_after_the_handler_that_is_at_it(
    rigs: Rigs,
) -> None:
    rig = rigs(locks=True)
    await rig.queues.assign(QUEUE)
    async with rig.fetched.consuming:
        assert await rig.queues.move(QUEUE, QueueOffset(2))
        assert not await rig.queues.assign(QUEUE)
    async with asyncio.timeout(60):
        await rig.freed.wait()

    assert await rig.queues.assign(QUEUE)
    assert rig.broker.unlocked == []


async def test_a_move_that_nobody_waits_for_any_more_is_finished(rigs: Rigs) -> None:
    rig = rigs()
    await rig.queues.assign(QUEUE)
    moving = asyncio.create_task(rig.queues.move(QUEUE, QueueOffset(77)))
    await asyncio.sleep(0)
    moving.cancel()
    await asyncio.wait([moving])

    await until(lambda: len(rig.loops) == 2)
    assert moving.cancelled()
    assert rig.loops[1].offset == 77
    assert not rig.fetched.dropped


async def test_a_queue_is_moved_even_if_its_offset_cannot_be_stored(rigs: Rigs) -> None:
    rig = rigs()
    await rig.queues.assign(QUEUE)
    rig.store.failure = ValueError("the database is gone")

    assert await rig.queues.move(QUEUE, QueueOffset(77))
    assert rig.loops[1].offset == 77


async def test_a_queue_that_is_not_owned_cannot_be_moved(rigs: Rigs) -> None:
    assert not await rigs().queues.move(QUEUE, QueueOffset(2))


async def test_a_broken_queue_is_revoked_and_can_be_taken_anew_at_its_committed_offset(
    rigs: Rigs,
) -> None:
    rig = rigs(locks=True)
    await rig.queues.assign(QUEUE)
    broken = rig.fetched
    rig.store.update(QUEUE, QueueOffset(9))

    rig.queues.interrupt(broken)
    assert (broken.dropped, list(rig.queues.assigned(QUEUE.topic))) == (True, [])
    async with asyncio.timeout(60):
        await rig.freed.wait()

    assert rig.loops[0].stopped
    assert rig.store.kept == {QUEUE: 9}
    assert rig.broker.unlocked == [QUEUE]
    assert await rig.queues.assign(QUEUE)
    assert len(rig.loops) == 2


async def test_cancelling_whoever_gives_a_queue_up_does_not_leave_it_half_given_up(
    rigs: Rigs,
) -> None:
    rig = rigs(locks=True)
    await rig.queues.assign(QUEUE)
    giving_up = asyncio.create_task(rig.queues.revoke(QUEUE))
    await asyncio.sleep(0)
    giving_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await giving_up
    async with asyncio.timeout(60):
        await rig.freed.wait()

    assert rig.broker.unlocked == [QUEUE]


async def test_nothing_is_taken_after_the_stop(rigs: Rigs) -> None:
    rig = rigs()
    await rig.queues.assign(QUEUE)
    await rig.queues.stop_pulling()

    assert rig.loops[0].stopped
    assert not await rig.queues.assign(MessageQueue("t", "a", 1))


@pytest.mark.parametrize("locks", [False, True])
async def test_the_queues_of_a_process_that_stood_still_begin_at_the_committed_offset(
    rigs: Rigs, *, locks: bool
) -> None:
    """Another member has committed a higher offset: the one in memory does not replace it."""
    rig = rigs(locks=locks)
    await rig.queues.assign(QUEUE)
    before = rig.fetched
    before.put([stored(5)])
    rig.store.update(QUEUE, QueueOffset(9))
    rig.store.kept[QUEUE] = QueueOffset(40)
    before.lock_is_new = True  # as a lock that has expired is not fresh

    rig.queues.note_pause(IDLE_S)
    async with asyncio.timeout(60):
        await rig.freed.wait()

    assert before.dropped
    assert rig.store.kept == {QUEUE: 40}
    assert await rig.queues.assign(QUEUE)


async def test_a_queue_in_doubt_that_another_member_has_consumed_is_released(
    rigs: Rigs, caplog: pytest.LogCaptureFixture
) -> None:
    rig = rigs()
    await rig.queues.assign(QUEUE)
    rig.store.update(QUEUE, QueueOffset(9))
    rig.store.kept[QUEUE] = QueueOffset(40)
    rig.queues.note_pause(IDLE_S - 1)
    assert not rig.fetched.dropped

    await rig.queues.persist()
    async with asyncio.timeout(60):
        await rig.freed.wait()

    assert rig.store.kept == {QUEUE: 40}
    assert "another member has consumed a queue meanwhile" in caplog.text
    assert rig.queues.queues() == []


@pytest.mark.parametrize("committed", [None, 3, 9])
async def test_a_queue_in_doubt_that_only_this_member_has_consumed_is_committed(
    rigs: Rigs, *, committed: int | None
) -> None:
    rig = rigs()
    await rig.queues.assign(QUEUE)
    if committed is not None:
        rig.store.kept[QUEUE] = QueueOffset(committed)
    rig.store.update(QUEUE, QueueOffset(9))
    rig.queues.note_pause(IDLE_S - 1)

    await rig.queues.persist()

    assert rig.store.kept == {QUEUE: 9}
    assert rig.queues.queues() == [QUEUE]


async def test_an_offset_that_cannot_be_read_is_logged_once_until_it_can_be_read(
    rigs: Rigs, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreadable(queue: MessageQueue) -> QueueOffset | None:
        raise ConnectError("the broker is away")

    rig = rigs()
    await rig.queues.assign(QUEUE)
    rig.store.update(QUEUE, QueueOffset(9))
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(rig.store, "stored", unreadable)
            for _ in range(3):
                assert await rig.queues.release_if_overtaken(rig.fetched) is None
        assert await rig.queues.release_if_overtaken(rig.fetched) is False

    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "cannot read an offset, messages may be redelivered"
        f" queue={QUEUE} group=g error=the broker is away"
    ] * 2


async def test_a_revoked_queue_does_not_lower_what_another_member_has_committed(rigs: Rigs) -> None:
    rig = rigs()
    await rig.queues.assign(QUEUE)
    rig.store.update(QUEUE, QueueOffset(9))
    rig.store.kept[QUEUE] = QueueOffset(40)

    await rig.queues.revoke(QUEUE)

    assert rig.store.kept == {QUEUE: 40}


async def test_a_revoked_queue_is_shown_until_its_handlers_have_ended_and_it_is_committed(
    rigs: Rigs,
) -> None:
    rig = rigs()
    await rig.queues.assign(QUEUE)
    fetched = rig.fetched
    batch = fetched.put([stored(5)])
    assert batch is not None
    fetched.begin_call()
    revoking = asyncio.create_task(rig.queues.revoke(QUEUE))
    await until(lambda: rig.store.kept != {})
    assert rig.queues.shown() == [fetched]
    batch.finish(0, 1)
    rig.store.update(QUEUE, QueueOffset(6))
    fetched.end_call()
    await revoking

    assert rig.queues.shown() == []
    assert rig.store.kept == {QUEUE: 6}


async def test_a_queue_of_a_deleted_topic_is_not_committed(rigs: Rigs) -> None:
    rig = rigs()
    await rig.queues.assign(QUEUE)
    rig.fetched.topic_missed = True
    rig.store.update(QUEUE, QueueOffset(9))

    await rig.queues.persist()
    await rig.queues.revoke(QUEUE)

    assert rig.store.kept == {}
