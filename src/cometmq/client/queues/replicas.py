"""Which replica of a broker each queue is pulled from. Source: PullAPIWrapper, RocketMQ 5.3."""

from __future__ import annotations

from cometmq.client.routes import MASTER_ID
from cometmq.model.queue import MessageQueue


class ReplicaChoice:
    """Remembers what brokers advise: their master, or a replica while a queue lags far behind."""

    def __init__(self) -> None:
        self.forced: int | None = None
        """The broker id that all queues are pulled from, whatever brokers advise; or None."""
        self._advised: dict[MessageQueue, int] = {}

    def of(self, queue: MessageQueue) -> int:
        """Give the broker id to pull a queue from."""
        return self._advised.get(queue, MASTER_ID) if self.forced is None else self.forced

    def advise(self, queue: MessageQueue, broker_id: int) -> None:
        """Note what a broker suggests for the next pull of a queue."""
        if broker_id == MASTER_ID:
            self._advised.pop(queue, None)
        else:
            self._advised[queue] = broker_id

    def forget(self, queue: MessageQueue) -> None:
        """Go back to the master."""
        self._advised.pop(queue, None)
