"""Calls of a pull consumer about offsets: read, commit, seek, pause.

Source: DefaultLitePullConsumerImpl.seek, commit, pause and relatives, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from cometmq.client._connection.broker_calls import QueueBounds
from cometmq.client._pull.core import PullCore
from cometmq.client.errors import OffsetRangeError
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.times import epoch_ms


class OffsetCalls(PullCore):
    """Calls about offsets."""

    def queues(self) -> list[MessageQueue]:
        """Return the assigned queues."""
        return [self._namespace.unwrap_queue(queue) for queue in self._fetcher.queues]

    def position(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the offset after the last delivered message of a queue, or None."""
        return self._positions.position(self._namespace.wrap_queue(queue))

    async def committed(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the group's committed offset of a queue, or None.

        For a group without one, brokers return 0 while the queue's first message is in memory.
        """
        self._check_running()
        return await self._store.stored(self._namespace.wrap_queue(queue))

    async def commit(
        self, offsets: Mapping[MessageQueue, int] | Iterable[MessageQueue] | None = None
    ) -> None:
        """Commit offsets.

        Args:
            offsets: None commits everything delivered so far, including the current message.
                Queues commit the same for these queues only. A mapping commits the given offset
                of each queue; the next consumed message of that queue overrides it. A consumer
                that only uses `pull` may name any queue. If several tasks or threads read, the
                call includes only the caller's current message: the unfinished messages of the
                others, and all later ones of the same queue, are not committed.

        Raises:
            NotAssignedError: a queue is not assigned to this consumer; nothing was committed.
            OffsetRangeError: an offset is below 0 or beyond the end of its queue; nothing was
                committed.
            ClientError: several tasks or threads read, and the caller is none of them; nothing was
                committed. `asyncio.shield`, and `asyncio.wait_for` before Python 3.12, make the
                call in another task. A mapping may be committed by any task.
            ResponseError, RemotingError: a broker refused or did not respond. The offsets of its
                queues are not committed, and the messages are redelivered after a restart unless
                a later commit succeeds.
        """
        self._check_running()
        if isinstance(offsets, Mapping) and self._mode.mode is None:
            wrapped = {
                self._namespace.wrap_queue(queue): QueueOffset(offset)
                for queue, offset in offsets.items()
            }
            await self._check_within(wrapped)
            _raise_first((await self._store_offsets(wrapped)).values())
        elif isinstance(offsets, Mapping):
            await self._check_within(
                dict(zip(self._assigned(offsets), offsets.values(), strict=True))
            )
            chosen = dict(zip(self._assigned(offsets), offsets.values(), strict=True))
            for queue, offset in chosen.items():
                self._positions.set_finished(queue, QueueOffset(offset))
            _raise_first(await self._commit_due(chosen))
        else:
            queues = None if offsets is None else self._assigned(offsets)
            self._finish_for_commit()
            _raise_first(await self._commit_due(queues))

    async def _check_within(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Refuse offsets beyond the end of a queue: its next messages would be skipped.

        An offset that was delivered needs no request. One below the oldest message is right: the
        message may have been deleted after its delivery.
        """
        for queue, offset in offsets.items():
            if 0 <= offset <= (self._positions.position(queue) or 0):
                continue
            low, high = await self._offsets.bounds(queue)
            if not 0 <= offset <= high:
                raise _out_of_range(self._namespace.unwrap_queue(queue), offset, low, high)

    async def bounds(self, queue: MessageQueue) -> QueueBounds:
        """Return a queue's minimum offset, and the offset of its next message."""
        self._check_running()
        return await self._offsets.bounds(self._namespace.wrap_queue(queue))

    async def offset_at_time(self, queue: MessageQueue, time: datetime | int) -> QueueOffset:
        """Return the offset of the first message stored at or after a time.

        Args:
            queue: any queue.
            time: a `datetime` with a time zone, or ms since 1970.
        """
        self._check_running()
        return await self._offsets.at_time(self._namespace.wrap_queue(queue), epoch_ms(time))

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at another offset of a queue. The next commit stores it.

        Raises:
            NotAssignedError: the queue is not assigned to this consumer.
            OffsetRangeError: the queue does not have this offset; its position is unchanged.
            ResponseError, RemotingError: the broker refused or did not respond; the position is
                unchanged.
        """
        (inner,) = self._assigned([queue])
        low, high = await self._offsets.bounds(inner)
        if not low <= offset <= high:
            raise _out_of_range(queue, offset, low, high)
        self._move(inner, QueueOffset(offset))

    async def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Continue at the oldest message of these queues; without arguments, of all queues."""
        for queue in self._assigned(queues or self.queues()):
            self._move(queue, (await self._offsets.bounds(queue)).min_offset)

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Continue after the newest message of these queues; without arguments, of all queues."""
        for queue in self._assigned(queues or self.queues()):
            self._move(queue, (await self._offsets.bounds(queue)).max_offset)

    async def seek_to_time(self, time: datetime | int, *queues: MessageQueue) -> None:
        """Continue at the first message stored at or after a time.

        Args:
            time: a `datetime` with a time zone, or ms since 1970.
            queues: the queues to move; none means all assigned queues.

        Raises:
            NotAssignedError: a queue is not assigned to this consumer.
            ResponseError, RemotingError: a broker refused or did not respond. Earlier queues
                have moved.
        """
        start_ms = epoch_ms(time)
        for queue in self._assigned(queues or self.queues()):
            self._move(queue, await self._offsets.at_time(queue, start_ms))

    def pause(self, *queues: MessageQueue) -> None:
        """Stop deliveries of these queues until `resume`. Their positions remain.

        A queue that is revoked and assigned again is not paused.

        Raises:
            NotAssignedError: a queue is not assigned to this consumer; nothing was paused.
        """
        for queue in self._assigned(queues):
            self._fetcher.pause(queue)

    def resume(self, *queues: MessageQueue) -> None:
        """Resume deliveries of these queues.

        Raises:
            NotAssignedError: a queue is not assigned to this consumer; nothing was resumed.
        """
        for queue in self._assigned(queues):
            self._fetcher.resume(queue)

    def paused(self) -> set[MessageQueue]:
        """Return the paused queues."""
        return {self._namespace.unwrap_queue(queue) for queue in self._fetcher.paused}

    def read_from(self, broker_id: int | None) -> None:
        """Pull all queues from this replica, if the broker has it.

        Args:
            broker_id: 0 for the master, a number above 0 for a slave; None to use the broker's
                suggestion.
        """
        self._replicas.forced = broker_id


def _out_of_range(queue: MessageQueue, offset: int, low: int, high: int) -> OffsetRangeError:
    return OffsetRangeError(f"offset {offset} is out of range: {queue} has {low} to {high}")


def _raise_first(failures: Iterable[BaseException]) -> None:
    for failure in failures:
        raise failure
