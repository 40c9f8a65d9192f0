"""Passes queues from one living member of a group to another, without redelivery.

    former owner                               next owner
    stop handing out, wait for handlers        ask the former owner for its queues, again and again
    commit, remove the queue from its list ──► not in the list: read the committed offset, begin

The question is a request that administrators use, too (GET_CONSUMER_RUNNING_INFO): a broker passes
it on to the member. RocketMQ's clients answer it as well, and remove a queue after its commit.

- Only queues that a living member had until now wait. All members use one strategy, so each can
  compute who had a queue before.
- A member that does not answer, or may not be asked, gets `UNKNOWN_S` to rebalance and to commit.
- After `TAKE_S` the next owner begins anyway.

Queue locks would say the same, but a broker of RocketMQ 5 makes the retries of a group that holds
any lock dead letters.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from cometmq.client._consuming.group_calls import GroupCalls
from cometmq.client._consuming.rebalancer import MemberAllocation
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.remoting.tasks import Supervisor

log = logging.getLogger(__name__)

HAND_OVER_S = 1.0
"""How long the next owner of a queue waits for running handlers."""
DOUBT_S = 30.0
"""How long the offsets of a queue are compared before each commit after another member may have got
it: longer than the interval of rebalances, in which that member releases it."""
IDLE_S = 120.0
"""A queue that was not pulled for so long is released: the broker has closed the connection, and
another member may have the queue."""
TAKE_S = 15.0
"""How long a queue waits for a living former owner, which consumes it until its next round ends."""
UNKNOWN_S = 2.0
"""How long a queue waits for a member that does not answer: RocketMQ 5 rebalances once a second at
most."""
POLL_S = 0.05
"""The pause before each question, in which all queues join that wait for the same member."""


class Handover:
    """Waits until other members of a group have released the queues that this one is to begin.

    Args:
        calls: asks members for their queues.
        group: as brokers know it.
        allocation: knows the members and the former owners of queues.
    """

    def __init__(self, calls: GroupCalls, group: str, allocation: MemberAllocation) -> None:
        self._calls = calls
        self._group = group
        self._allocation = allocation
        self._contested: set[MessageQueue] = set()
        """Queues that any other member may have got while this one was interrupted."""
        self._asked: dict[str, asyncio.Future[Collection[MessageQueue] | None]] = {}
        """Questions by member that are sent in the next iteration of the event loop."""
        self._tasks = Supervisor(f"handover {group}")

    async def stop(self) -> None:
        """Ask nothing any more."""
        await self._tasks.cancel()

    def waits(self, queue: MessageQueue) -> bool:
        """Return whether another living member may have a queue that this member is to begin."""
        return bool(self._owners(queue))

    def is_taken_from_the_dead(self, queue: MessageQueue) -> bool:
        """Return whether a queue's former owner is no member any more: it may live and not know."""
        return self._allocation.former_owner(queue) is not None and not self._owners(queue)

    def contest(self, queue: MessageQueue) -> None:
        """Ask all other members when this queue begins again: they may have got it."""
        self._contested.add(queue)

    async def begin(
        self,
        queue: MessageQueue,
        first_offset: Callable[[MessageQueue], Awaitable[QueueOffset]],
    ) -> QueueOffset:
        """Return the first offset of a queue, read after the last commit of its former owner."""
        clock = asyncio.get_running_loop().time
        begun_s = clock()
        while owners := self._owners(queue):
            answers = await asyncio.gather(*(self._queues_of(each, queue) for each in owners))
            if None in answers:
                await asyncio.sleep(begun_s + UNKNOWN_S - clock())
                break
            if not any(queue in (answer or ()) for answer in answers):
                break
            if clock() - begun_s >= TAKE_S:
                log.warning(
                    "another member does not release a queue, beginning it queue=%s group=%s"
                    " members=%s seconds=%.0f",
                    queue,
                    self._group,
                    sorted(owners),
                    TAKE_S,
                )
                break
        self._contested.discard(queue)
        return await first_offset(queue)

    def _owners(self, queue: MessageQueue) -> set[str]:
        """Return the other living members that may have a queue."""
        others = self._allocation.others()
        if queue in self._contested:
            return others
        owner = self._allocation.former_owner(queue)
        return others.intersection([] if owner is None else [owner])

    async def _queues_of(self, member: str, queue: MessageQueue) -> Collection[MessageQueue] | None:
        """Return the queues of another member; None if it does not say.

        One question is asked for all queues that wait for the member.
        """
        asked = self._asked.get(member)
        if asked is None:
            asked = self._asked[member] = asyncio.get_running_loop().create_future()
            self._tasks.spawn(self._ask(member, queue.topic, asked), "ask")
        return await asyncio.shield(asked)

    async def _ask(
        self, member: str, topic: str, asked: asyncio.Future[Collection[MessageQueue] | None]
    ) -> None:
        queues = None
        try:
            await asyncio.sleep(POLL_S)
            del self._asked[member]  # who asks from now on needs a newer answer
            queues = await self._calls.queues_of(self._group, member, topic)
        finally:
            if not asked.done():
                asked.set_result(queues)
