"""Where a pull consumer stands: asked, moved, committed, paused.

Source: DefaultLitePullConsumerImpl.seek, commit, pause and relatives, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cometmq.client.errors import OffsetRangeError
from cometmq.client.pull.core import PullCore
from cometmq.client.queue_offsets import QueueBounds
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue


class PlaceCalls(PullCore):
    """Calls about places."""

    def assignment(self) -> list[MessageQueue]:
        """Give the queues that are being read."""
        return [self._plain(queue) for queue in self._fetcher.queues]

    def position(self, queue: MessageQueue) -> QueueOffset | None:
        """Give the offset behind the last message handed out of a queue, or None before one."""
        return self._positions.position(self._inner(queue))

    async def committed(self, queue: MessageQueue) -> QueueOffset | None:
        """Give the offset this group has committed of a queue, or None.

        Brokers give 0 for a group they do not know while the queue's first message is in memory.
        """
        self._check_running()
        return await self._places.committed(self._inner(queue))

    async def commit(
        self, offsets: Mapping[MessageQueue, int] | Iterable[MessageQueue] | None = None
    ) -> None:
        """Commit how far the application has come.

        Args:
            offsets: None for everything handed out so far, the message in hand included; queues for
                the same of these alone; or for each queue the offset to go on at after a restart,
                which the next message of that queue that is finished overrides. A consumer that
                neither subscribes nor is assigned queues, but pulls, may name any queue.

        Raises:
            NotAssignedError: a queue is not this consumer's; nothing was committed.
            ResponseError, RemotingError: a broker was no help; what it serves stays uncommitted
                and is handed out again after a restart, unless a later commit succeeds.
        """
        self._check_running()
        if isinstance(offsets, Mapping) and self._chosen.mode is None:
            places = {self._inner(queue): QueueOffset(told) for queue, told in offsets.items()}
            for failure in (await self._places.commit(places)).values():
                raise failure
        elif isinstance(offsets, Mapping):
            chosen = dict(zip(self._own(offsets), offsets.values(), strict=True))
            for queue, offset in chosen.items():
                self._positions.declare(queue, QueueOffset(offset))
            await self._commit_due(chosen)
        else:
            queues = None if offsets is None else self._own(offsets)
            self._finish_handed_out()
            await self._commit_due(queues)

    async def bounds(self, queue: MessageQueue) -> QueueBounds:
        """Give a queue's oldest offset and the one its next message will have."""
        self._check_running()
        return await self._offsets.bounds(self._inner(queue))

    async def offset_at_time(self, queue: MessageQueue, timestamp_ms: int) -> QueueOffset:
        """Give the offset of the first message stored at or after a time, in ms since 1970."""
        self._check_running()
        return await self._offsets.at_time(self._inner(queue), timestamp_ms)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on reading a queue at another offset, which becomes its place at once.

        Raises:
            NotAssignedError: the queue is not this consumer's.
            OffsetRangeError: the queue does not reach there; it goes on where it was.
            ResponseError, RemotingError: the broker was no help; it goes on where it was.
        """
        (inner,) = self._own([queue])
        low, high = await self._offsets.bounds(inner)
        if not low <= offset <= high:
            raise OffsetRangeError(f"{queue} reaches from {low} to {high}: there is no {offset}")
        self._move(inner, QueueOffset(offset))

    async def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Go on at the oldest message of these queues, or of all that are read."""
        for queue in self._own(queues or self.assignment()):
            self._move(queue, (await self._offsets.bounds(queue)).min_offset)

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Go on behind the newest message of these queues, or of all that are read."""
        for queue in self._own(queues or self.assignment()):
            self._move(queue, (await self._offsets.bounds(queue)).max_offset)

    async def seek_to_time(self, timestamp_ms: int, *queues: MessageQueue) -> None:
        """Go on at the first message stored at or after a time.

        Args:
            timestamp_ms: milliseconds since 1970.
            queues: where to move; none means all that are read.

        Raises:
            NotAssignedError: a queue is not this consumer's.
            ResponseError, RemotingError: a broker was no help; queues before it were moved.
        """
        for queue in self._own(queues or self.assignment()):
            self._move(queue, await self._offsets.at_time(queue, timestamp_ms))

    def pause(self, *queues: MessageQueue) -> None:
        """Hand out nothing of these queues until they are resumed; they keep their places.

        A queue that another member had in between comes back without the pause.

        Raises:
            NotAssignedError: one is not this consumer's; nothing was paused.
        """
        for queue in self._own(queues):
            rest = self._positions.set_aside(queue)
            if rest is not None:
                self._fetcher.put_back(rest)
            self._fetcher.pause(queue)

    def resume(self, *queues: MessageQueue) -> None:
        """Hand out messages of these queues again.

        Raises:
            NotAssignedError: one is not this consumer's; nothing was resumed.
        """
        for queue in self._own(queues):
            self._fetcher.resume(queue)

    def paused(self) -> set[MessageQueue]:
        """Give the queues that are paused."""
        return {self._plain(queue) for queue in self._fetcher.paused}

    def read_from(self, broker_id: int | None) -> None:
        """Pull all queues from this replica, as far as there is one.

        Args:
            broker_id: 0 for masters, above for slaves; None to follow the brokers' advice.
        """
        self._replicas.forced = broker_id
