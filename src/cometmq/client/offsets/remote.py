"""Offsets that the brokers keep: for groups whose members share the queues.

Source: RemoteBrokerOffsetStore and ControllableOffset, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from cometmq.client.instance import ClientInstance
from cometmq.client.offsets.memory import OffsetTable
from cometmq.client.queue_offsets import QueueOffsets
from cometmq.client.troubles import text_of, trace_of
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.remoting.tasks import is_call_failure

log = logging.getLogger(__name__)

RENEW_AFTER = 12
"""An offset that does not move is written out again every so many times: a broker may lose it."""


class RemoteOffsetStore:
    """Stores a group's offsets at the brokers of the queues.

    Args:
        instance: the connections to use.
        group: the consumer group.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._group = group
        self._offsets = QueueOffsets(instance.routes, instance.brokers)
        self._table = OffsetTable()
        self._written: dict[MessageQueue, tuple[QueueOffset, int]] = {}
        self._failing: set[str] = set()
        self._opened: set[tuple[str, str]] = set()
        """Topics and brokers that have taken some offset."""

    async def load(self) -> None:
        """Do nothing: each offset is read when its queue is assigned."""

    def position(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the offset in memory, or None; sends no request."""
        return self._table.get(queue)

    async def stored(self, queue: MessageQueue) -> QueueOffset | None:
        """Read the offset from the queue's broker and take it into memory; None if it has none.

        Raises:
            ClientError: no broker serves the queue now.
            ResponseError: the broker refused for another reason than a missing offset.
            RemotingError: no response.
        """
        offset = await self._offsets.committed(self._group, queue)
        if offset is not None:
            self._table.update(queue, offset)
            self._written[queue] = (offset, 0)
        return offset

    def update(
        self, queue: MessageQueue, offset: QueueOffset, *, increase_only: bool = False
    ) -> None:
        """Set the offset of a queue in memory; frozen queues do not change."""
        self._table.update(queue, offset, increase_only=increase_only)

    def freeze(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Set an offset that only `forget` removes; later updates are ignored."""
        self._table.freeze(queue, offset)

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Send these queues' offsets to their brokers in parallel; returns after the responses.

        An unchanged offset is sent only from time to time. A failure is logged, and the offset is
        sent again next time.

        The first offset of a topic is sent to a broker alone: a RocketMQ broker creates the
        group's table for the topic on it, and may lose one of two parallel offsets.
        """
        due = [queue for queue in queues if self._is_due(queue)]
        firsts = {_place(queue): queue for queue in due if _place(queue) not in self._opened}
        alone = set(firsts.values())
        due.sort(key=lambda queue: queue not in alone)
        answers = await asyncio.gather(*(self._persist(queue) for queue in due[: len(alone)]))
        answers += await asyncio.gather(*(self._persist(queue) for queue in due[len(alone) :]))
        failing = {queue.broker_name for queue, ok in zip(due, answers, strict=True) if not ok}
        self._failing -= {queue.broker_name for queue in due} - failing

    def _is_due(self, queue: MessageQueue) -> bool:
        offset = self._table.get(queue)
        written, skipped = self._written.get(queue, (None, 0))
        if offset is None:
            return False
        if offset != written or skipped + 1 >= RENEW_AFTER:
            return True
        self._written[queue] = (offset, skipped + 1)
        return False

    async def _persist(self, queue: MessageQueue) -> bool:
        offset = self._table.get(queue)
        assert offset is not None
        try:
            await self._offsets.commit(self._group, queue, offset)
        except BaseException as error:
            if not is_call_failure(error):
                raise
            level = logging.DEBUG if queue.broker_name in self._failing else logging.WARNING
            self._failing.add(queue.broker_name)
            log.log(
                level,
                "cannot commit an offset queue=%s offset=%d error=%s",
                *(queue, offset, text_of(error)),
                exc_info=trace_of(error),
            )
            return False
        self._written[queue] = (offset, 0)
        self._opened.add(_place(queue))
        return True

    def forget(self, queue: MessageQueue) -> None:
        """Remove the queue from memory; the broker's offset remains."""
        self._table.forget(queue)
        self._written.pop(queue, None)

    def table(self) -> Mapping[MessageQueue, QueueOffset]:
        """Return a copy of the offsets in memory."""
        return self._table.copy()


def _place(queue: MessageQueue) -> tuple[str, str]:
    return queue.topic, queue.broker_name
