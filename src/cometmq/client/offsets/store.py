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
    """Keeps the offset of the next message that is to be consumed of each queue."""

    async def load(self) -> None:
        """Read what was kept before; called once, before anything else.

        Raises:
            StoreError: what was kept cannot be read, and neither can its older copy.
        """

    def position(self, queue: MessageQueue) -> QueueOffset | None:
        """Give the offset in memory, or None when the queue has none; asks nobody."""

    async def stored(self, queue: MessageQueue) -> QueueOffset | None:
        """Give the offset that was kept, and take it into memory; None when there is none.

        Raises:
            CometError: nobody could tell; the queue must not be started then.
        """

    def update(
        self, queue: MessageQueue, offset: QueueOffset, *, increase_only: bool = False
    ) -> None:
        """Note how far the queue is consumed, in memory; frozen queues stay where they are."""

    def freeze(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Note an offset that nothing but `forget` changes any more, whatever comes in late."""

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Write out these queues' offsets; a queue whose broker is no help is logged and kept."""

    def forget(self, queue: MessageQueue) -> None:
        """Drop the queue from memory; what was kept stays."""

    def table(self) -> Mapping[MessageQueue, QueueOffset]:
        """Give a copy of what is in memory."""
