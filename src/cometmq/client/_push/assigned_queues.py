"""The assigned queues of a push consumer: locked, pulled, revoked.

    assign  lock (if order is kept) -> find the first offset -> process queue and pull loop
    revoke  drop -> stop pulling -> commit -> wait for running handlers -> commit again, unlock

A handler that runs when its queue is revoked gets some time to end, so that its messages are not
redelivered to the next owner. Its result is committed where that is safe: if order is kept, while
the broker's lock is held; otherwise if the group's committed offset is still lower, because all
messages before the new offset are consumed.

A queue is revoked in a task of its own, which continues if the caller is cancelled; until it ends
the queue is not assigned and cannot be assigned again.

Source: RebalanceImpl.updateProcessQueueTableInRebalance and RebalancePushImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from cometmq.client._consuming.rebalancer import QueueTable
from cometmq.client._push.ordered import Locks
from cometmq.client._push.process_queue import ProcessQueue
from cometmq.client._push.pull_loop import PullLoop
from cometmq.client.offsets import Failures, OffsetStore
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.remoting.tasks import Supervisor, is_call_failure
from cometmq.system.failure_log import log_text, log_trace

log = logging.getLogger(__name__)

REVOKE_S = 1.0
"""How long a rebalance waits for a queue to be revoked; the rest happens in the background."""
FINISH_S = 10.0
"""How long handlers of a revoked queue may run, if order is not kept."""

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
        locks: returns the broker locks; None if queues need none.
        first_offset: returns the first offset of a queue, or raises.
        make_loop: makes the pull loop of a process queue, from an offset on.
        on_rebalanced: called after an assignment has changed.
        on_free: called when a revoked queue can be assigned again.
        unlock_delay_s: seconds until a queue with messages left is unlocked.
        tasks: where pull loops run.
    """

    def __init__(
        self,
        group: str,
        *,
        store: OffsetStore,
        locks: Callable[[], Locks | None],
        first_offset: Callable[[MessageQueue], Awaitable[QueueOffset]],
        make_loop: Callable[[ProcessQueue, QueueOffset], PullLoop],
        on_rebalanced: Rebalanced,
        on_free: Callable[[], None],
        unlock_delay_s: float,
        tasks: Supervisor,
    ) -> None:
        self._group = group
        self._store = store
        self._locks = locks
        self._first_offset = first_offset
        self._make_loop = make_loop
        self._on_rebalanced = on_rebalanced
        self._on_free = on_free
        self._unlock_delay_s = unlock_delay_s
        self._tasks = tasks
        self._table: QueueTable[_Owned] = QueueTable()
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        self._endings = Supervisor(f"queues of {group}")
        self._closed = False

    # --- called by the rebalancer -------------------------------------------------------------

    def assigned(self, topic: str) -> Collection[MessageQueue]:
        """Return the assigned queues of a topic."""
        return self._table.of_topic(topic)

    async def assign(self, queue: MessageQueue) -> bool:
        """Start a queue; False while it is being revoked, or another member has its lock."""
        if queue in self._leaving or queue in self._table or self._closed:
            return False
        locks = self._locks()
        if locks is not None and not await locks.lock(queue):
            return False
        self._store.forget(queue)
        begun = False
        try:
            offset = await self._first_offset(queue)
            begun = not self._closed and queue not in self._table
            if begun:
                if self._store.position(queue) is None:  # a member after this one starts here too
                    self._store.update(queue, offset)
                self._begin(queue, offset, locked=locks is not None)
        finally:
            if not begun and locks is not None:
                self._endings.spawn(locks.unlock(queue), f"unlock-{queue}")
        return begun

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
            self._leaving[queue] = self._endings.spawn(self._end(owned), f"leave-{queue}")
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

    def wake(self) -> None:
        """Wake all pull loops: each checks whether it may pull."""
        for owned in self._table.values():
            owned.loop.wake()

    def reassign(self, queue: MessageQueue) -> None:
        """Revoke a queue, so that the rebalancer assigns it again at its committed offset."""
        if not self._closed:
            self._begin_revoking(queue)

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
        if self._locks() is not None and fetched.consuming.locked():
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
        if self._locks() is not None and fetched.consuming.locked():
            self.release_dropped(fetched)
        else:
            self._begin(queue, offset, locked=fetched.locked)
        return True

    async def stop_pulling(self) -> None:
        """Stop assigning and pulling queues; fetched messages stay."""
        self._closed = True
        await asyncio.gather(*(owned.loop.stop() for owned in list(self._table.values())))

    async def persist(self) -> Failures | None:
        """Store the offsets of all assigned queues, as `OffsetStore.persist` does."""
        owned = self._table.items()
        return await self._store.persist(
            [queue for queue, each in owned if not each.fetched.topic_missed]
        )

    async def close(self) -> None:
        """Drop all queues; those that are being revoked get `REVOKE_S` seconds to commit."""
        self._closed = True
        await self._endings.drain(REVOKE_S)
        for owned in self._table.values():
            owned.fetched.drop()
        self._table.remove_all()
        await self._endings.cancel(REVOKE_S)
        self._leaving.clear()

    def _begin(self, queue: MessageQueue, offset: QueueOffset, *, locked: bool) -> None:
        fetched = ProcessQueue(queue, now=time.monotonic)
        fetched.locked = locked
        loop = self._make_loop(fetched, offset)
        self._table[queue] = _Owned(fetched, loop)
        loop.start(self._tasks)

    async def _end(self, owned: _Owned) -> None:
        queue, locks = owned.fetched.queue, self._locks()
        try:
            await owned.loop.stop()
            await self._store_offset(owned.fetched)  # at once: the next owner begins there
            if locks is None:
                await self._finish(owned.fetched)
            else:
                if owned.fetched.consuming.locked():
                    owned.fetched.unlock_tries += 1
                async with owned.fetched.consuming:
                    await self._store_offset(owned.fetched)
                    delay_s = self._unlock_delay_s if owned.fetched.count else 0.0
                    await locks.release_after(owned.fetched, delay_s)
        finally:
            owned.fetched.clear()
            self._store.forget(queue)
            self._leaving.pop(queue, None)
            self._on_free()

    async def _finish(self, fetched: ProcessQueue) -> None:
        """Wait for running handlers of a revoked queue, and commit what they finished."""
        queue, before = fetched.queue, self._store.position(fetched.queue)
        if not await fetched.wait_idle(FINISH_S):
            log.info(
                "handlers of a revoked queue still run, results are ignored queue=%s group=%s",
                *(queue, self._group),
            )
        finished = self._store.position(queue)
        if finished is None or finished == before:
            return
        try:
            stored = await self._store.stored(queue)
        except BaseException as error:
            if not is_call_failure(error):
                raise
            log.warning(
                "cannot read an offset, messages are redelivered queue=%s group=%s error=%s",
                *(queue, self._group, log_text(error)),
                exc_info=log_trace(error),
            )
            return
        if stored is None or stored < finished:
            self._store.update(queue, finished)
            await self._store_offset(fetched)

    async def _store_offset(self, fetched: ProcessQueue) -> None:
        """Store the offset of a queue; a failure is logged, so that its lock is released anyway."""
        if fetched.topic_missed:
            return
        queue = fetched.queue
        try:
            await self._store.persist([queue])
        except BaseException as error:
            if not is_call_failure(error):
                raise
            log.exception("cannot store an offset queue=%s group=%s", queue, self._group)

    async def _release_after_call(self, fetched: ProcessQueue) -> None:
        try:
            async with fetched.consuming:
                pass
        finally:
            self._leaving.pop(fetched.queue, None)
            self._on_free()
