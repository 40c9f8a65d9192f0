"""The assigned queues of a push consumer: locked, pulled, revoked.

    assign  lock (if order is kept) -> find the first offset -> process queue and pull loop
    revoke  drop -> stop pulling -> commit -> wait for running handlers -> commit again, release

A handler that runs when its queue is revoked gets some time to end, so that its messages are not
redelivered to the next owner. Its result is committed where that is safe: if order is kept, while
the broker's lock is held; otherwise if the group's committed offset is still lower, because all
messages before the new offset are consumed.

If order is not kept, a queue that another living member may have is assigned at once, and begins
when that member has released it: see `Handover`.

A queue is in doubt if another member may have it, too: this process stood still, its connection
was lost, or it was taken from a member that is not in the group any more, but may live. For
`DOUBT_S` seconds its offset is committed only if the group's committed offset is not higher. If it
is, another member has consumed the queue: it is released, and assigned again at the committed
offset. After `IDLE_S` seconds of standing still it is released anyway.

A queue is revoked in a task of its own, which continues if the caller is cancelled; until it ends
the queue is not assigned and cannot be assigned again.

Source: RebalanceImpl.updateProcessQueueTableInRebalance and RebalancePushImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from cometmq.client._consuming.handover import DOUBT_S, HAND_OVER_S, IDLE_S, Handover
from cometmq.client._consuming.rebalancer import QueueTable
from cometmq.client._push.ordered import Locks
from cometmq.client._push.process_queue import ProcessQueue
from cometmq.client._push.pull_loop import FirstOffset, PullLoop
from cometmq.client._supervision import ALIKE_MAX
from cometmq.client.offsets import Failures, OffsetStore
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.remoting.tasks import Supervisor, raise_unless_failure
from cometmq.system.failure_log import FailureLog

log = logging.getLogger(__name__)

REVOKE_S = 1.0
"""How long a rebalance waits for a queue to be revoked; the rest happens in the background."""
FINISH_S = 10.0
"""How long handlers of a revoked queue may run, if order is not kept."""
CHECKS_MAX = 16
"""Interrupted queues whose committed offsets are read at a time."""

Rebalanced = Callable[[str, Collection[MessageQueue], Collection[MessageQueue]], Awaitable[None]]


@dataclass(slots=True)
class _Owned:
    fetched: ProcessQueue
    loop: PullLoop


class AssignedQueues:
    """Owns the queues that a rebalancer assigns.

    Args:
        group: for the log.
        store: keeps offsets.
        exclusion: keeps other members from a queue: broker locks if order is kept, else handovers;
            None in broadcasting.
        first_offset: returns the first offset of a queue, or raises.
        make_loop: makes the pull loop of a process queue, from an offset on.
        on_rebalanced: called after an assignment has changed.
        on_free: called when a revoked queue can be assigned again.
        tasks: where pull loops run.
    """

    def __init__(
        self,
        group: str,
        *,
        store: OffsetStore,
        exclusion: Locks | Handover | None,
        first_offset: Callable[[MessageQueue], Awaitable[QueueOffset]],
        make_loop: Callable[[ProcessQueue, QueueOffset | FirstOffset], PullLoop],
        on_rebalanced: Rebalanced,
        on_free: Callable[[], None],
        tasks: Supervisor,
    ) -> None:
        self._group = group
        self._store = store
        self._locks = exclusion if isinstance(exclusion, Locks) else None
        self._handover = exclusion if isinstance(exclusion, Handover) else None
        self._first_offset = first_offset
        self._make_loop = make_loop
        self._on_rebalanced = on_rebalanced
        self._on_free = on_free
        self._tasks = tasks
        self._table: QueueTable[_Owned] = QueueTable()
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        self._releasing: dict[MessageQueue, ProcessQueue] = {}
        """Revoked queues that are not committed yet: their next owners wait."""
        self._endings = Supervisor(f"queues of {group}")
        self._closed = False
        self._reading = FailureLog(
            log,
            fails="cannot read an offset, messages may be redelivered",
            works="the offset is read again",
            name="queue",
            more=f"group={group}",
            alike_max=ALIKE_MAX,
        )
        self._uncommitted: list[MessageQueue] = []
        """Queues that began without a committed offset."""
        self._begun = asyncio.Event()
        """Set when a queue that had to wait for another member begins."""

    # --- called by the rebalancer -------------------------------------------------------------

    def assigned(self, topic: str) -> Collection[MessageQueue]:
        """Return the assigned queues of a topic."""
        return self._table.of_topic(topic)

    async def assign(self, queue: MessageQueue) -> bool:
        """Start a queue; False while it is being revoked, or another member has its lock."""
        if queue in self._leaving or queue in self._table or self._closed:
            return False
        locks, handover = self._locks, self._handover
        if locks is not None and not await locks.lock(queue):
            return False
        self._store.forget(queue)
        if handover is not None and handover.waits(queue):
            self._begin(queue, lambda: self._offset_of(queue), locked=False)
            return True
        begun = False
        try:
            offset = await self._offset_of(queue)
            begun = not self._closed and queue not in self._table
            if begun:
                self._begin(queue, offset, locked=locks is not None)
        finally:
            if not begun and locks is not None:
                self._endings.spawn(locks.unlock(queue), f"unlock-{queue}")
        return begun

    async def _offset_of(self, queue: MessageQueue) -> QueueOffset:
        """Return where to begin a queue, after other living members have released it."""
        handover = self._handover
        if handover is None:
            offset = await self._first_offset(queue)
        else:
            offset = await handover.begin(queue, self._first_offset)
        if self._store.position(queue) is None:  # a member after this one starts here, too
            self._store.update(queue, offset)
            self._uncommitted.append(queue)
        self._begun.set()
        return offset

    async def until_begun(self) -> None:
        """Wait until each assigned queue has its first offset."""
        while any(owned.loop.next_offset is None for owned in self._table.values()):
            self._begun.clear()
            await self._begun.wait()

    async def revoke(self, queue: MessageQueue) -> bool:
        """Revoke a queue, and return whether it was assigned. Running handlers get time to end."""
        was_owned = self._begin_revoking(queue)
        ending = self._leaving.get(queue)
        if ending is not None:
            await asyncio.wait([ending], timeout=REVOKE_S)
        return was_owned

    def _begin_revoking(self, queue: MessageQueue) -> bool:
        owned = self._table.remove(queue)
        if owned is not None:
            owned.fetched.drop()
            if owned.loop.next_offset is not None:
                self._releasing[queue] = owned.fetched
            self._leaving[queue] = self._endings.spawn(self._end(owned), f"leave-{queue}")
            self._begun.set()
        return owned is not None

    async def rebalanced(
        self, topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue]
    ) -> None:
        """Note that the assignment of a topic has changed."""
        await self._on_rebalanced(topic, queues, mine)

    # --- called by the consumer ---------------------------------------------------------------

    def queues(self) -> list[MessageQueue]:
        """Return the assigned queues, sorted."""
        return sorted(self._table)

    def process_queues(self) -> list[ProcessQueue]:
        """Return the process queue of each assigned queue."""
        return [owned.fetched for owned in self._table.values()]

    def shown(self) -> list[ProcessQueue]:
        """Return the queues that other members must not begin yet: begun, or not committed."""
        begun = [
            owned.fetched for owned in self._table.values() if owned.loop.next_offset is not None
        ]
        return begun + list(self._releasing.values())

    def wake(self) -> None:
        """Wake all pull loops: each checks whether it may pull."""
        for owned in self._table.values():
            owned.loop.wake()

    async def release_at(self, fetched: ProcessQueue, offset: QueueOffset) -> None:
        """Drop a queue, so that it is assigned again at this offset; its lock is kept."""
        fetched.drop()
        self._store.freeze(fetched.queue, offset)
        try:
            await self._store.persist([fetched.queue])
        finally:
            self.release_dropped(fetched)

    def release_dropped(self, fetched: ProcessQueue) -> None:
        """Release a dropped queue, so that it can be assigned again; its lock is kept.

        If order is kept, it can be assigned once its running handler call has ended.
        """
        queue = fetched.queue
        owned = self._table.get(queue)
        if owned is None or owned.fetched is not fetched:
            return
        self._table.remove(queue)
        fetched.clear()  # running handler calls must not overwrite the new offset
        if self._locks is not None and fetched.consuming.locked():
            self._leaving[queue] = self._endings.spawn(
                self._release_after_call(fetched), f"end-{queue}"
            )

    async def move(self, queue: MessageQueue, offset: QueueOffset) -> bool:
        """Continue an assigned queue at another offset; its fetched messages are removed.

        The result of a handler call that runs is ignored. If order is kept, the queue continues
        after that call. Cancelling stops the wait, not the move.

        Returns:
            Whether the queue is assigned to this consumer.
        """
        moving = self._endings.spawn(self._move(queue, offset), f"move-{queue}", awaited=True)
        await asyncio.wait([moving])
        return not moving.cancelled() and moving.result()

    async def _move(self, queue: MessageQueue, offset: QueueOffset) -> bool:
        owned = self._table.get(queue)
        if owned is None or owned.fetched.dropped:
            return False
        fetched = owned.fetched
        fetched.drop()
        await owned.loop.stop()
        fetched.clear()
        self._store.update(queue, offset)
        fetched.topic_missed = False
        await self._store_offset(fetched)
        if self._closed or self._table.get(queue) is not owned:
            return False
        if self._locks is not None and fetched.consuming.locked():
            self.release_dropped(fetched)
        else:
            self._begin(queue, offset, locked=fetched.locked)
        return True

    async def stop_pulling(self) -> None:
        """Stop assigning and pulling queues; fetched messages stay."""
        self._closed = True
        await asyncio.gather(*(owned.loop.stop() for owned in list(self._table.values())))

    async def persist_first(self) -> None:
        """Store the offsets of queues that began without one; failures are left to `persist`."""
        begun, self._uncommitted = self._uncommitted, []
        if begun:
            await self._store.persist([queue for queue in begun if queue in self._table])

    async def persist(self) -> Failures | None:
        """Store the offsets of all assigned queues, as `OffsetStore.persist` does."""
        doubted = [owned.fetched for owned in self._table.values() if owned.fetched.is_in_doubt()]
        limit = asyncio.Semaphore(CHECKS_MAX)

        async def check(fetched: ProcessQueue) -> None:
            async with limit:
                await self.release_if_overtaken(fetched)

        await asyncio.gather(*map(check, doubted))
        owned = self._table.items()
        return await self._store.persist(
            [queue for queue, each in owned if not each.fetched.topic_missed]
        )

    async def close(self) -> None:
        """Drop all queues; queues that are being revoked get `REVOKE_S` seconds to commit."""
        self._closed = True
        await self._endings.drain(REVOKE_S)
        for owned in self._table.values():
            owned.fetched.drop()
        self._table.remove_all()
        await self._endings.cancel(REVOKE_S)
        self._leaving.clear()

    def _begin(
        self, queue: MessageQueue, offset: QueueOffset | FirstOffset, *, locked: bool
    ) -> None:
        fetched = ProcessQueue(queue, now=time.monotonic)
        fetched.locked = locked
        handover = self._handover
        if handover is not None and handover.is_taken_from_the_dead(queue):
            fetched.doubt(DOUBT_S)
        loop = self._make_loop(fetched, offset)
        self._table[queue] = _Owned(fetched, loop)
        loop.start(self._tasks)

    async def _end(self, owned: _Owned) -> None:
        fetched, locks = owned.fetched, self._locks
        queue = fetched.queue
        try:
            await owned.loop.stop()
            if locks is None:
                stored = await self._store_unless_lower(fetched)  # some next owners do not wait
                is_idle = await fetched.wait_idle(HAND_OVER_S)
                stored = await self._store_unless_lower(fetched, stored)
                self._releasing.pop(queue, None)
                if not is_idle:
                    await self._finish(fetched)
                    await self._store_unless_lower(fetched, stored)
            else:
                if fetched.consuming.locked():
                    fetched.unlock_tries += 1
                await self._store_locked(fetched)
                async with fetched.consuming:
                    await self._store_locked(fetched)
                    await locks.release(fetched)
        finally:
            fetched.clear()
            self._store.forget(queue)
            self._reading.forget(str(queue))
            self._releasing.pop(queue, None)
            self._leaving.pop(queue, None)
            self._on_free()

    async def _finish(self, fetched: ProcessQueue) -> None:
        """Wait longer for handlers of a revoked queue, whose next owner does not."""
        if not await fetched.wait_idle(FINISH_S):
            log.info(
                "handlers of a revoked queue still run, results are ignored queue=%s group=%s",
                fetched.queue,
                self._group,
            )

    async def _store_locked(self, fetched: ProcessQueue) -> None:
        """Store the offset of a queue that no other member has while its lock is held."""
        if fetched.lock_is_fresh():
            await self._store_offset(fetched)
        else:
            await self._store_unless_lower(fetched)

    async def _store_unless_lower(
        self, fetched: ProcessQueue, stored: QueueOffset | None = None
    ) -> QueueOffset | None:
        """Store the offset of a revoked queue, unless another member has committed a higher one.

        Args:
            fetched: the queue.
            stored: the offset that was stored by the last call.

        Returns:
            The offset that is stored now, as far as it is known.
        """
        queue, own = fetched.queue, self._store.position(fetched.queue)
        if own is None or own == stored or fetched.topic_missed:
            return stored
        committed = await self._committed(queue)
        if committed is not None and committed <= own:
            self._store.update(queue, own, increase_only=True)
            await self._store_offset(fetched)
        return own

    async def _committed(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the committed offset of a queue, 0 without one; None if it cannot be read."""
        try:
            committed = await self._store.stored(queue) or QueueOffset(0)
        except BaseException as error:
            raise_unless_failure(error)
            self._reading.failed(str(queue), error)
            return None
        self._reading.succeeded(str(queue))
        return committed

    async def release_if_overtaken(self, fetched: ProcessQueue) -> bool | None:
        """Release a queue if another member has committed a higher offset; it begins there again.

        Returns:
            Whether it was overtaken; None if the committed offset cannot be read now.
        """
        queue, own = fetched.queue, self._store.position(fetched.queue)
        if own is None:
            return False
        committed = await self._committed(queue)
        if committed is None and not fetched.dropped:
            return None
        if committed is None or committed <= own or fetched.dropped:
            self._store.update(queue, own, increase_only=True)
            return False
        log.warning(
            "another member has consumed a queue meanwhile, continuing behind it queue=%s group=%s"
            " offset=%d committed=%d",
            queue,
            self._group,
            own,
            committed,
        )
        self.interrupt(fetched)
        return True

    def interrupt(self, fetched: ProcessQueue) -> None:
        """Release a queue; the rebalancer assigns it again at its committed offset."""
        handover = self._handover
        owned = self._table.get(fetched.queue)
        if owned is not None and owned.fetched is fetched and not self._closed:
            if handover is not None:
                handover.contest(fetched.queue)
            self._begin_revoking(fetched.queue)

    def note_pause(self, seconds: float) -> None:
        """Note that this process stood still: other members may have got its queues."""
        for fetched in self.process_queues():
            if seconds >= IDLE_S:
                self.interrupt(fetched)
        self.doubt(DOUBT_S)

    def doubt(self, seconds: float) -> None:
        """Note that other members may have the queues, too, for this time.

        If order is kept, no handler is called until the locks are renewed and the offsets compared.
        """
        for fetched in self.process_queues():
            fetched.doubt(seconds)
            if self._locks is not None and seconds < math.inf:
                fetched.lock_is_new = True

    async def _store_offset(self, fetched: ProcessQueue) -> None:
        """Store the offset of a queue; a failure is logged, so that its lock is released anyway."""
        if fetched.topic_missed:
            return
        queue = fetched.queue
        try:
            await self._store.persist([queue])
        except BaseException as error:
            raise_unless_failure(error)
            log.exception("cannot store an offset queue=%s group=%s", queue, self._group)

    async def _release_after_call(self, fetched: ProcessQueue) -> None:
        try:
            async with fetched.consuming:
                pass
        finally:
            self._leaving.pop(fetched.queue, None)
            self._on_free()
