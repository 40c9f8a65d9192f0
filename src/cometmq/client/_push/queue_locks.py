"""Keeps brokers' locks of the queues that are consumed in order.

A lock counts for 30 s after it was renewed, and a broker keeps it for 60 s: one that cannot be
renewed ends here before another member can get it.

Source: RebalanceImpl.lock, lockAll and unlock, and ConsumeMessageOrderlyService.lockMQPeriodically,
RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection

from cometmq.client._consuming.group_requests import GroupCalls
from cometmq.client._consuming.process_queue import ProcessQueue
from cometmq.client._failure_log import text_of, trace_of
from cometmq.client._supervision import PeriodicLoop, SupervisedTasks
from cometmq.model.queue import MessageQueue
from cometmq.remoting.tasks import Supervisor, is_call_failure

log = logging.getLogger(__name__)

FIRST_S = 1.0
"""Until the locks are renewed for the first time."""
AGAIN_S = 3.0
"""From one try to the next to get a lock back that was lost."""
UNLOCK_ALL_S = 2.0


class Locks:
    """The locks of one member of a group.

    Args:
        calls: asks brokers.
        group: as brokers know it.
        client_id: of the member.
        queues: gives the queues that are owned now.
        now: a steady clock in seconds, the one of the process queues.
        on_locked: called with a queue whose lock had been lost and is back.
    """

    def __init__(
        self,
        calls: GroupCalls,
        group: str,
        client_id: str,
        *,
        queues: Callable[[], Collection[ProcessQueue]],
        now: Callable[[], float],
        on_locked: Callable[[ProcessQueue], None] | None = None,
    ) -> None:
        self._calls = calls
        self._group = group
        self._client_id = client_id
        self._queues = queues
        self._now = now
        self._on_locked = on_locked
        self._later: dict[MessageQueue, asyncio.TimerHandle] = {}
        self._tasks = Supervisor(f"locks {group}")
        self._renewed_at = -math.inf
        self._renewals: PeriodicLoop | None = None

    def start(self, interval_s: float, tasks: SupervisedTasks) -> None:
        """Renew all locks every ``interval_s`` seconds, and sooner while one of them is lost."""
        check_s = min(AGAIN_S, interval_s)

        async def renew_due() -> None:
            if self._is_lost() or self._now() - self._renewed_at + check_s >= interval_s:
                await self.renew()

        self._renewals = tasks.repeat(
            check_s, renew_due, "renew-locks", first_s=min(FIRST_S, interval_s)
        )

    def _is_lost(self) -> bool:
        return any(not queue.locked and not queue.dropped for queue in self._queues())

    async def stop(self) -> None:
        """Renew no longer, and give all locks back to the brokers at once."""
        late = list(self._later)
        await self.abandon()
        held = [queue.queue for queue in self._queues() if queue.locked]
        await self._unlock({*held, *late})

    async def abandon(self) -> None:
        """Renew no longer, and leave the locks to expire."""
        for timer in self._later.values():
            timer.cancel()
        self._later.clear()
        if self._renewals is not None:
            await self._renewals.stop()
        await self._tasks.cancel()

    async def obtain(self, queue: MessageQueue) -> bool:
        """Lock one queue that is not owned yet.

        Returns:
            False when another member has it, or its broker is no help.
        """
        self._forget_unlocking(queue)
        return queue in await self._lock([queue])

    async def regain(self, queue: ProcessQueue) -> bool:
        """Lock an owned queue whose lock was lost or is old."""
        self._note(queue, await self.obtain(queue.queue))
        return queue.locked

    async def renew(self) -> None:
        """Lock all owned queues again; those that no broker confirms are not locked any more."""
        owned = [queue for queue in self._queues() if not queue.dropped]
        self._renewed_at = self._now()
        if not owned:
            return
        locked = await self._lock([queue.queue for queue in owned])
        for queue in owned:
            self._note(queue, queue.queue in locked)

    async def release(self, queue: ProcessQueue, *, delay_s: float = 0.0) -> None:
        """Give a queue's lock back, at once or after a delay.

        Args:
            queue: one that is given up, and that no handler is at.
            delay_s: seconds until others can have it.
        """
        queue.locked = False
        if delay_s <= 0:
            await self._unlock({queue.queue})
            return
        loop, which = asyncio.get_running_loop(), queue.queue
        self._later[which] = loop.call_later(delay_s, self._unlock_late, which)

    async def give_back(self, queue: MessageQueue) -> None:
        """Give back the lock of a queue that was not begun after all."""
        await self._unlock({queue})

    def _unlock_late(self, queue: MessageQueue) -> None:
        if self._later.pop(queue, None) is not None:
            self._tasks.spawn(self._unlock({queue}), f"unlock-{queue.queue_id}")

    def _forget_unlocking(self, queue: MessageQueue) -> None:
        timer = self._later.pop(queue, None)
        if timer is not None:
            timer.cancel()

    def _note(self, queue: ProcessQueue, locked: bool) -> None:
        was_fresh = queue.lock_is_fresh()
        if queue.locked and not locked:
            log.warning("queue lock lost group=%s queue=%s", self._group, queue.queue)
        queue.locked = locked
        if locked:
            queue.locked_at = self._now()
            if not was_fresh and self._on_locked is not None:
                self._on_locked(queue)

    async def _lock(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        try:
            return await self._calls.lock(self._group, self._client_id, queues)
        except BaseException as error:
            if not is_call_failure(error):
                raise
            log.warning(
                "cannot lock queues group=%s error=%s",
                *(self._group, text_of(error)),
                exc_info=trace_of(error),
            )
            return set()

    async def _unlock(self, queues: Collection[MessageQueue]) -> None:
        if not queues:
            return
        try:
            async with asyncio.timeout(UNLOCK_ALL_S):
                await self._calls.unlock(self._group, self._client_id, queues, oneway=True)
        except BaseException as error:
            if not is_call_failure(error):
                raise
            log.warning(
                "cannot unlock queues group=%s error=%s",
                *(self._group, text_of(error)),
                exc_info=trace_of(error),
            )
