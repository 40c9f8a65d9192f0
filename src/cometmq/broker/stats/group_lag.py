"""Lags of groups: committed offsets, lags and times of each queue.

Source: AdminBrokerProcessor.getConsumeStats, fetchAllConsumeStatsInBroker and
queryConsumeTimeSpan, RocketMQ 5.3.
"""

from __future__ import annotations

from datetime import datetime

from cometmq.broker.core import Core
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies.broker_admin import QueueTimeSpan
from cometmq.protocol.bodies.group import ConsumeStats, OffsetWrapper
from cometmq.remoting.slices import Slices


class GroupLags:
    """Returns the lags of groups.

    Args:
        core: of the broker.
    """

    def __init__(self, core: Core) -> None:
        self._store = core.store
        self._cold_reads = core.cold_reads
        self._offsets = core.offsets
        self._static_topics = core.static_topics
        self._consumers = core.consumers
        self._stats = core.stats
        self._broker_name = core.settings().broker_name
        self._clock = core.clock

    def is_consumed(self, group: str, topic: str) -> bool:
        """Return whether a group still consumes a topic in which it has offsets."""
        online = self._consumers.group(group)
        return online is None or not online.subscriptions or topic in online.subscriptions

    async def of_topic(
        self, group: str, config: TopicConfig, queues: int, slices: Slices
    ) -> ConsumeStats:
        """Return the offsets of a group in the first ``queues`` queues of a topic."""
        topic = config.topic_name
        table = {
            self.queue(topic, queue_id): await self._of_queue(group, topic, queue_id)
            async for queue_id in slices.each(range(queues))
        }
        tps = await self._stats.get_tps(group, topic, slices)
        return ConsumeStats(offset_table=table, consume_tps=tps)

    async def time_span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        """Return the times of the first, the last and the last consumed message of a queue."""
        low, high = self._store.bounds(topic, queue_id)
        consumed = self._offsets.committed(group, topic, queue_id) or 0
        first_ms = await self.store_time(topic, queue_id, low)
        last_ms = await self.store_time(topic, queue_id, high - 1)
        consumed_ms = first_ms
        if consumed > 0:
            consumed_ms = await self.store_time(topic, queue_id, consumed - 1)
        delay_ms = 0
        if consumed < high:
            next_ms = await self.store_time(topic, queue_id, max(consumed, low))
            delay_ms = max(0, self._clock.now_ms() - next_ms) if next_ms > 0 else 0
        return QueueTimeSpan(
            message_queue=self.queue(topic, queue_id),
            min_time_stamp=first_ms,
            max_time_stamp=last_ms,
            consume_time_stamp=consumed_ms,
            delay_time=delay_ms,
            min_time_stamp_str=time_text(first_ms),
            max_time_stamp_str=time_text(last_ms),
            consume_time_stamp_str=time_text(consumed_ms),
        )

    def queue(self, topic: str, queue_id: int) -> MessageQueue:
        """Return the name of a queue of this broker."""
        return MessageQueue(topic=topic, broker_name=self._broker_name, queue_id=queue_id)

    async def _of_queue(self, group: str, topic: str, queue_id: int) -> OffsetWrapper:
        high = self._store.bounds(topic, queue_id)[1]
        committed = self._offsets.committed(group, topic, queue_id)
        consumed = max(committed or 0, 0)
        pulled = self._offsets.pulled(group, topic, queue_id) or 0
        last_ms = await self.store_time(topic, queue_id, consumed - 1)
        return OffsetWrapper(
            broker_offset=high,
            # The offset of a group in a static topic may be at another broker.
            consumer_offset=-1 if committed is None and topic in self._static_topics else consumed,
            pull_offset=max(consumed, pulled),
            last_timestamp=max(last_ms, 0),
        )

    async def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Return when the message at an offset was stored; -1 for none."""
        await self._cold_reads.run(self._store.cold_store_time(topic, queue_id, offset))
        return self._store.store_time_at(topic, queue_id, offset) if offset >= 0 else -1


def time_text(time_ms: int) -> str:
    """Return a time as RocketMQ's tools print it, in local time: ``2023-11-14#22:13:20:000``."""
    moment = datetime.fromtimestamp(time_ms / 1000).astimezone()
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{time_ms % 1000:03d}"
