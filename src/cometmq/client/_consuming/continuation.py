"""Decides at which offset a consumer begins or continues a queue; all consumers use this table.

    cause of the decision  ->  `RULES`  ->  a `Start`  ->  an offset

The table stands in ``docs/explanation/consuming.md``, too: a test compares both.

Source of the first rule: RebalancePushImpl.computePullFromWhereWithException, RocketMQ 5.3. In
RocketMQ a queue that is new to a running member starts at its end, and an offset beyond the end
moves to the end: messages are skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import datetime
from enum import Enum

from cometmq.client._connection.broker_calls import QueueOffsets
from cometmq.client._consuming.pulls import PullResult, PullStatus
from cometmq.client.offsets import OffsetStore, StartFrom
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.times import epoch_ms


class Cause(Enum):
    """Why a consumer needs an offset."""

    ASSIGNED = "The queue is assigned, and existed when the member first saw its topic"
    NEW = "The queue is assigned, and did not exist then: a new queue, broker or topic"
    TOPIC_MISSED = "The broker has responded that the topic does not exist, and serves it again"
    BEYOND_END = "The offset is beyond the end of the queue"
    BELOW_START = "The message at the offset is deleted"
    MOVED = "The offset was reset at the broker"


class Start(Enum):
    """The offset from which a queue continues."""

    COMMITTED = "committed offset"
    START_FROM = "`start_from`"
    FIRST = "first message"
    UNSEEN = "first message stored after the last one received"
    LOWER = "committed offset, or the first message after the last one received if that is earlier"
    RESPONSE = "offset of the response"


RULES: dict[Cause, tuple[Start, Start]] = {
    Cause.ASSIGNED: (Start.COMMITTED, Start.START_FROM),
    Cause.NEW: (Start.COMMITTED, Start.FIRST),
    Cause.TOPIC_MISSED: (Start.LOWER, Start.UNSEEN),
    Cause.BEYOND_END: (Start.LOWER, Start.UNSEEN),
    Cause.BELOW_START: (Start.RESPONSE, Start.RESPONSE),
    Cause.MOVED: (Start.RESPONSE, Start.RESPONSE),
}
"""The start by cause: with a committed offset, and without one."""


def cause_of(
    response: PullResult, asked: QueueOffset | None, *, topic_missed: bool
) -> Cause | None:
    """Return why a queue cannot continue at ``response.next_offset``; None if it can.

    Args:
        response: the response to a pull.
        asked: the offset that was pulled.
        topic_missed: whether the broker has responded before that the topic does not exist.
    """
    if topic_missed:
        return Cause.TOPIC_MISSED
    if response.status is not PullStatus.OFFSET_ILLEGAL or asked is None:
        return None
    if asked > response.max_offset:
        return Cause.BEYOND_END
    return Cause.BELOW_START if asked < response.min_offset else Cause.MOVED


def log_cause(
    log: logging.Logger,
    cause: Cause,
    queue: MessageQueue,
    group: str,
    asked: QueueOffset | None,
    response: PullResult,
) -> None:
    """Log why a queue cannot continue at an offset."""
    log.warning(
        "%s queue=%s group=%s offset=%s min=%d max=%d next=%d",
        cause.value.lower(),
        queue,
        group,
        asked,
        response.min_offset,
        response.max_offset,
        response.next_offset,
    )


class Continuation:
    """Returns the offsets at which one consumer begins and continues its queues.

    Args:
        store: the offset store of the group.
        offsets: reads the bounds of queues from their brokers.
        start_from: where a group without a committed offset starts.
        retry_topic: the topic of which nothing is skipped unless the start is a time; or None.
    """

    def __init__(
        self,
        store: OffsetStore,
        offsets: QueueOffsets,
        *,
        start_from: StartFrom | datetime | int,
        retry_topic: str | None,
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._start_from = start_from
        self._retry_topic = retry_topic
        self._there: dict[str, frozenset[MessageQueue]] = {}
        """By topic, the queues that have always been there since this member first saw it."""

    def look(self, topic: str, queues: Collection[MessageQueue] | None) -> None:
        """Note the queues that a topic has now: none if it does not exist.

        None instead of queues forgets a topic that is not subscribed any more.
        """
        if queues is None:
            self._there.pop(topic, None)
            return
        found = frozenset(queues)
        before = self._there.get(topic)
        if before is None:
            # What the file of a member lacks, but not of the whole topic, was added meanwhile.
            before = frozenset(each for each in found if self._store.position(each) is not None)
            before = before or found
        self._there[topic] = found & before

    async def assigned(self, queue: MessageQueue) -> QueueOffset:
        """Return where to begin a queue that is assigned now.

        Raises:
            CometError: no broker responded; the queue must not be started in this round.
        """
        there = self._there.get(queue.topic)
        cause = Cause.ASSIGNED if there is None or queue in there else Cause.NEW
        committed = await self._store.stored(queue)
        if committed is not None:
            assert RULES[cause][0] is Start.COMMITTED, "the only rule of assigned queues"
            return committed
        return QueueOffset(0) if RULES[cause][1] is Start.FIRST else await self._start(queue)

    async def after(
        self, cause: Cause, queue: MessageQueue, response: PullResult, received_ms: int
    ) -> QueueOffset:
        """Return where to continue a queue after a response of its broker.

        Args:
            cause: why it cannot continue where it was.
            queue: the queue.
            response: the response.
            received_ms: when the last message that was received had been stored; 0 for none.

        Raises:
            CometError: no broker responded; try again.
        """
        if RULES[cause][0] is Start.RESPONSE:
            return response.next_offset
        low, high = await self._offsets.bounds(queue)
        unseen = low
        if received_ms:
            found = await self._offsets.at_time(queue, received_ms + 1)
            unseen = max(low, min(found, high))
        committed = await self._store.stored(queue)
        has_committed = committed is not None and committed <= high
        if RULES[cause][not has_committed] is Start.LOWER and committed is not None:
            return min(unseen, committed)
        return unseen

    async def _start(self, queue: MessageQueue) -> QueueOffset:
        """Return the offset of ``start_from``."""
        start, is_retry = self._start_from, queue.topic == self._retry_topic
        if not isinstance(start, StartFrom):
            if is_retry:
                return (await self._offsets.bounds(queue)).max_offset
            return await self._offsets.at_time(queue, epoch_ms(start))
        if start is StartFrom.FIRST or is_retry:
            return QueueOffset(0)
        return (await self._offsets.bounds(queue)).max_offset
