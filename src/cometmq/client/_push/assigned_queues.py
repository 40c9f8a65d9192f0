"""The assigned queues of a push consumer: locked, pulled, revoked.

    assign  lock (when in order) -> find the first offset -> process queue and pull loop
    revoke  drop -> stop pulling -> commit -> wait for running handlers -> commit again, unlock

A handler that runs when its queue is revoked gets some time to end, so that its messages are not
delivered again to the next owner. Its result is committed where that is safe: in order while the
broker's lock is held; in any order if the group's committed offset is still a lower one, because
everything before the new offset is consumed.

A queue is revoked in a task of its own, which goes on if the caller is cancelled; meanwhile the
queue is not assigned and cannot be assigned again.

Source: RebalanceImpl.updateProcessQueueTableInRebalance and RebalancePushImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from cometmq.client._push.ordered import Locks
from cometmq.client._push.process_queue import ProcessQueue
from cometmq.client._push.pull_loop import PullLoop
from cometmq.client._supervision import log_text, log_trace
from cometmq.client.offsets import Failures, OffsetStore
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.remoting.tasks import Supervisor, is_call_failure

log = logging.getLogger(__name__)

REVOKE_S = 1.0
"""How long a rebalance waits for a queue to be revoked; the rest happens in the background."""
FINISH_S = 10.0
"""How long handlers that take messages in any order may go on with a queue that is revoked."""

Rebalanced = Callable[[str, Collection[MessageQueue], Collection[MessageQueue]], Awaitable[None]]


@dataclass(slots=True)
class _Owned:
    fetched: ProcessQueue
    loop: PullLoop


class AssignedQueues:
    """Owns the queues that a rebalancer hands out.

    Args:
        group: for the log.
        store: keeps offsets.
        locks: the brokers' locks; None when queues need none.
        first_offset: tells where to begin with a queue, or raises.
        make_loop: makes the pull loop of a process queue, from an offset on.
        on_rebalanced: called after an assignment has changed.
        on_free: called when a queue can be assigned that could not be before.
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
        self._table: dict[MessageQueue, _Owned] = {}
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        self._endings = Supervisor(f"queues of {group}")
        self._closed = False

    # --- what the rebalancer asks -------------------------------------------------------------

    def assigned(self, topic: str) -> Collection[MessageQueue]:
        """Return the assigned queues of a topic."""
        return [queue for queue in self._table if queue.topic == topic]

    async def assign(self, queue: MessageQueue) -> bool:
        """Start a queue; False while it is being revoked, or another member has its lock."""
        if queue in self._leaving or queue in self._table or self._closed:
            return False
        locks = self._locks()
        if locks is not None and not await locks.obtain(queue):
            return False
        self._store.forget(queue)
        begun = False
        try:
            offset = await self._first_offset(queue)
            begun = not self._closed and queue not in self._table
            if begun:
                self._begin(queue, offset, locked=locks is not None)
        finally:
            if not begun and locks is not None:
                self._endings.spawn(locks.give_back(queue), f"unlock-{queue}")
        return begun

    async def revoke(self, queue: MessageQueue) -> bool:
        """Revoke a queue, and return whether it was assigned. Running handlers get time to end."""
        was_owned = self._begin_revoking(queue)
        ending = self._leaving.get(queue)
        if ending is not None:
            await asyncio.wait([ending], timeout=REVOKE_S)
        return was_owned

    def _begin_revoking(self, queue: MessageQueue) -> bool:
        owned = self._table.pop(queue, None)
        if owned is not None:
            owned.fetched.drop()
            self._leaving[queue] = self._endings.spawn(self._end(owned), f"leave-{queue}")
        return owned is not None

    async def rebalanced(
        self, topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue]
    ) -> None:
        """Note that the assignment of a topic has changed."""
        await self._on_rebalanced(topic, queues, mine)

    # --- what the consumer asks ---------------------------------------------------------------

    def queues(self) -> list[MessageQueue]:
        """Return the assigned queues, sorted."""
        return sorted(self._table)

    def process_queues(self) -> list[ProcessQueue]:
        """Return the process queue of each assigned queue."""
        return [owned.fetched for owned in self._table.values()]

    def wake(self) -> None:
        """Let all pull loops check again whether they may pull."""
        for owned in self._table.values():
            owned.loop.wake()

    def assign_anew(self, queue: MessageQueue) -> None:
        """Revoke a queue that the rebalancer then assigns again, at its committed offset."""
        if not self._closed:
            self._begin_revoking(queue)

    def lost(self, fetched: ProcessQueue) -> None:
        """Release a queue that was dropped, with its lock, so that it can be assigned again.

        When consuming in order, that is once the handler is through that is still at it.
        """
        queue = fetched.queue
        owned = self._table.get(queue)
        if owned is None or owned.fetched is not fetched:
            return
        del self._table[queue]
        fetched.clear()  # handlers that still run must not commit what is behind an offset skipped
        if self._locks() is not None and fetched.consuming.locked():
            self._leaving[queue] = self._endings.spawn(self._let_finish(fetched), f"end-{queue}")

    async def move(self, queue: MessageQueue, offset: QueueOffset) -> bool:
        """Continue an assigned queue at another offset; what was fetched of it is forgotten.

        A handler that is at the queue goes on, and its result no longer counts. When consuming in
        order, the queue goes on after it. Cancelling stops the waiting, not the move.

        Returns:
            Whether the queue is this consumer's.
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
        await self._keep_offset(queue)
        if self._closed or self._table.get(queue) is not owned:
            return False
        if self._locks() is not None and fetched.consuming.locked():
            self.lost(fetched)
        else:
            self._begin(queue, offset, locked=fetched.locked)
        return True

    async def stop_pulling(self) -> None:
        """Take no further queue, and pull none; what was fetched stays."""
        self._closed = True
        await asyncio.gather(*(owned.loop.stop() for owned in list(self._table.values())))

    async def persist(self) -> Failures | None:
        """Store the offsets of all assigned queues, as `OffsetStore.persist` does."""
        return await self._store.persist(list(self._table))

    async def close(self) -> None:
        """Drop all queues; those that are being revoked get a moment to commit."""
        self._closed = True
        await self._endings.drain(REVOKE_S)
        for owned in self._table.values():
            owned.fetched.drop()
        self._table.clear()
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
            await self._keep_offset(queue)  # at once: the next owner begins there
            if locks is None:
                await self._finish(owned.fetched)
            else:
                if owned.fetched.consuming.locked():
                    owned.fetched.unlock_tries += 1
                async with owned.fetched.consuming:
                    await self._keep_offset(queue)
                    delay_s = self._unlock_delay_s if owned.fetched.count else 0.0
                    await locks.release(owned.fetched, delay_s=delay_s)
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
                "handlers go on with a revoked queue, their results are ignored queue=%s group=%s",
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
            await self._keep_offset(queue)

    async def _keep_offset(self, queue: MessageQueue) -> None:
        """Keep the offset of a queue that is given up; a failure keeps no lock held."""
        try:
            await self._store.persist([queue])
        except BaseException as error:
            if not is_call_failure(error):
                raise
            log.exception("an offset was not kept queue=%s group=%s", queue, self._group)

    async def _let_finish(self, fetched: ProcessQueue) -> None:
        try:
            async with fetched.consuming:
                pass
        finally:
            self._leaving.pop(fetched.queue, None)
            self._on_free()
