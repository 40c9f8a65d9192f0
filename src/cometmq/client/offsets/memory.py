"""The table of offsets in memory that every store has. Source: ControllableOffset, RocketMQ 5.3."""

from __future__ import annotations

from collections.abc import Mapping

from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue


class OffsetTable:
    """The offset of the next message to be consumed, by queue."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, QueueOffset] = {}
        self._frozen: set[MessageQueue] = set()

    def get(self, queue: MessageQueue) -> QueueOffset | None:
        """Give the queue's offset, or None."""
        return self._offsets.get(queue)

    def update(
        self, queue: MessageQueue, offset: QueueOffset, *, increase_only: bool = False
    ) -> None:
        """Set a queue's offset, unless it is frozen, or would go back and must not."""
        if queue in self._frozen:
            return
        if increase_only and offset <= self._offsets.get(queue, -1):
            return
        self._offsets[queue] = offset

    def freeze(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Set a queue's offset for good."""
        self._offsets[queue] = offset
        self._frozen.add(queue)

    def forget(self, queue: MessageQueue) -> None:
        """Drop a queue."""
        self._offsets.pop(queue, None)
        self._frozen.discard(queue)

    def copy(self) -> Mapping[MessageQueue, QueueOffset]:
        """Give a copy of all offsets."""
        return dict(self._offsets)
