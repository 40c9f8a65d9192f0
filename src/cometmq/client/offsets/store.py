"""What every store of consumed offsets can do.

A store is a table in memory, by queue, that is written out from time to time: to the brokers when a
group shares its queues, to a local file when every member reads all of them.

Source: OffsetStore, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue


class OffsetStore(Protocol):
    """Stores for each queue the offset of the next message to consume."""

    async def load(self) -> None:
        """Read the stored offsets; called once, before any other method.

        Raises:
            StoreError: neither the stored offsets nor their backup can be read.
        """

    def position(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the offset in memory, or None; sends no request."""

    async def stored(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the stored offset and take it into memory; None if there is none.

        Raises:
            CometError: the offset could not be read. The queue must not be consumed then.
        """

    def update(
        self, queue: MessageQueue, offset: QueueOffset, *, increase_only: bool = False
    ) -> None:
        """Set the offset of a queue in memory; frozen queues do not change."""

    def freeze(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Set an offset that only `forget` removes; later updates are ignored."""

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Store the offsets of these queues. A failure is logged; the offset stays in memory."""

    def forget(self, queue: MessageQueue) -> None:
        """Remove the queue from memory; the stored offset remains."""

    def table(self) -> Mapping[MessageQueue, QueueOffset]:
        """Return a copy of the offsets in memory."""
