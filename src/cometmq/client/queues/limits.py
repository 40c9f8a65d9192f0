"""When a queue holds enough, so that nothing more is pulled: by count, size and span.

Source: DefaultMQPushConsumerImpl.pullMessage and RebalancePushImpl.messageQueueChanged, RocketMQ
5.3.
"""

from __future__ import annotations

from collections.abc import Callable

from cometmq.client.config import PushSettings
from cometmq.client.config.base import MIB
from cometmq.client.queues.process_queue import ProcessQueue


class Limits:
    """The limits of a consumer's queues.

    Args:
        settings: the limits of one queue, and of all queues of a topic together.
        spans: whether the offsets of what is not consumed may not lie too far apart; not so when
            consuming in order, where the oldest message is always the next.
    """

    def __init__(self, settings: PushSettings, *, spans: bool) -> None:
        self._settings = settings
        self._span_max = settings.span_max if spans else None
        self._shares: dict[str, tuple[int, int]] = {}
        self.waiting: set[Callable[[], None]] = set()
        """Called when a limit has changed."""

    def share(self, topic: str, queues: int) -> None:
        """Divide a topic's limits among the queues that are this consumer's now."""
        self._shares.pop(topic, None)
        if queues > 0:
            self._shares[topic] = self._share(queues)
        for look in list(self.waiting):
            look()

    def _share(self, queues: int) -> tuple[int, int]:
        count, size = self._settings.queue_messages_max, self._settings.queue_mib_max * MIB
        if self._settings.topic_messages_max > 0:
            count = max(1, self._settings.topic_messages_max // queues)
        if self._settings.topic_mib_max > 0:
            size = max(1, self._settings.topic_mib_max // queues) * MIB
        return count, size

    def of(self, topic: str) -> tuple[int, int]:
        """Give the messages and the bytes that one queue of a topic may hold."""
        return self._shares.get(topic) or (
            self._settings.queue_messages_max,
            self._settings.queue_mib_max * MIB,
        )

    def holds_enough(self, queue: ProcessQueue) -> str | None:
        """Say why nothing more is to be pulled for a queue, or give None."""
        count, size_bytes = self.of(queue.queue.topic)
        if queue.count > count:
            return f"{queue.count} messages, more than {count}"
        if queue.size_bytes > size_bytes:
            return f"{queue.size_bytes} bytes, more than {size_bytes}"
        if self._span_max is not None and queue.span > self._span_max:
            return f"offsets {queue.span} apart, more than {self._span_max}"
        return None
