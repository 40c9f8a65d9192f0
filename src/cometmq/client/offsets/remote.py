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
from cometmq.model.errors import CometError
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue

log = logging.getLogger(__name__)

RENEW_AFTER = 12
"""An offset that does not move is written out again every so many times: a broker may lose it."""


class RemoteOffsetStore:
    """Keeps a group's offsets at the brokers of the queues.

    Args:
        instance: whose connections are used.
        group: whose offsets they are.
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
        """Do nothing: each queue is asked for when it is begun."""

    def position(self, queue: MessageQueue) -> QueueOffset | None:
        """Give the offset in memory, or None when the queue has none; asks nobody."""
        return self._table.get(queue)

    async def stored(self, queue: MessageQueue) -> QueueOffset | None:
        """Ask the queue's broker for the offset, and take it into memory; None if it has none.

        Raises:
            ClientError: nobody serves the queue now.
            ResponseError: the broker refused for any reason but that it has no offset.
            RemotingError: no answer.
        """
        offset = await self._offsets.committed(self._group, queue)
        if offset is not None:
            self._table.update(queue, offset)
            self._written[queue] = (offset, 0)
        return offset

    def update(
        self, queue: MessageQueue, offset: QueueOffset, *, increase_only: bool = False
    ) -> None:
        """Note how far the queue is consumed, in memory; frozen queues stay where they are."""
        self._table.update(queue, offset, increase_only=increase_only)

    def freeze(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Note an offset that nothing but `forget` changes any more."""
        self._table.freeze(queue, offset)

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Tell the brokers these queues' offsets, all at once; returns when they have answered.

        What a broker has already is told again only now and then. One that is no help is logged;
        its queues are told again next time.

        The first offset of a topic goes to a broker alone: RocketMQ's make a group's table of a
        topic when they get it, and of two that come together they may keep but one.
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
        except CometError as error:
            level = logging.DEBUG if queue.broker_name in self._failing else logging.WARNING
            self._failing.add(queue.broker_name)
            log.log(level, "offset not kept queue=%s offset=%d error=%s", queue, offset, error)
            return False
        self._written[queue] = (offset, 0)
        self._opened.add(_place(queue))
        return True

    def forget(self, queue: MessageQueue) -> None:
        """Drop the queue from memory; what its broker keeps stays."""
        self._table.forget(queue)
        self._written.pop(queue, None)

    def table(self) -> Mapping[MessageQueue, QueueOffset]:
        """Give a copy of what is in memory."""
        return self._table.copy()


def _place(queue: MessageQueue) -> tuple[str, str]:
    return queue.topic, queue.broker_name
