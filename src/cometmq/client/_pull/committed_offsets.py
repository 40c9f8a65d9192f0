"""Where a pull consumer's committed offsets are kept: by brokers, or by a store of its own.

Source: DefaultLitePullConsumerImpl.commit, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from cometmq.client._connection.queue_offsets import QueueOffsets
from cometmq.client.offsets import Failures, OffsetStore, StartFrom, first_offset
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import retry_topic


class CommittedOffsets:
    """Reads and writes the committed offsets of one group.

    Args:
        group: as brokers know it.
        offsets: asks brokers about queues.
        store: where offsets are kept.
        start: where to begin in a queue of which nothing was committed.
    """

    def __init__(
        self,
        group: str,
        offsets: QueueOffsets,
        store: OffsetStore,
        start: StartFrom | datetime | int,
    ) -> None:
        self._group = group
        self._offsets = offsets
        self._store = store
        self._start = start

    async def load(self) -> None:
        """Read what the store kept from before.

        Raises:
            StoreError: it cannot be read.
        """
        await self._store.load()

    async def first(self, queue: MessageQueue) -> QueueOffset:
        """Give the offset at which to begin with a queue.

        Raises:
            CometError: nobody could tell now.
        """
        return await first_offset(
            queue,
            store=self._store,
            offsets=self._offsets,
            start=self._start,
            retry=queue.topic == retry_topic(self._group),
        )

    async def committed(self, queue: MessageQueue) -> QueueOffset | None:
        """Give what was committed of a queue, or None."""
        return await self._store.stored(queue)

    async def commit(self, offsets: Mapping[MessageQueue, QueueOffset]) -> Failures:
        """Store offsets, those of all queues at once, so that no broker delays another one.

        Returns:
            The queues that were not committed, and the error of each. What a store raises is
            raised.
        """
        for queue, offset in offsets.items():
            self._store.forget(queue)  # another client may have changed what was stored last
            self._store.update(queue, offset)
        return await self._store.persist(offsets) or {}
