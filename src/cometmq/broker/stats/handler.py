"""Handles requests for statistics of topics, of groups, of counters and of the whole broker.

Source: AdminBrokerProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from cometmq.broker.core import Core
from cometmq.broker.stats.counters import WindowFigures
from cometmq.broker.stats.group_lag import GroupLags
from cometmq.broker.stats.runtime_info import RuntimeInfo, as_release_4
from cometmq.broker.topics.table import TopicTable
from cometmq.model.errors import ResponseError
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies.broker_admin import (
    BrokerStatsData,
    BrokerStatsItem,
    QueryConsumeTimeSpanBody,
)
from cometmq.protocol.bodies.common import GroupList, KVTable, TopicList
from cometmq.protocol.bodies.group import (
    ConsumeStats,
    ConsumeStatsList,
    QuerySubscriptionResponseBody,
)
from cometmq.protocol.bodies.topic import TopicOffset, TopicStatsTable
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.broker_admin import (
    GetBrokerRuntimeInfoRequest,
    ViewBrokerStatsDataRequest,
)
from cometmq.protocol.headers.group import (
    GetBrokerConsumeStatsRequest,
    GetConsumeStatsRequest,
    QuerySubscriptionByConsumerRequest,
    QueryTopicsByConsumerRequest,
)
from cometmq.protocol.headers.topic import (
    GetTopicStatsInfoRequest,
    QueryConsumeTimeSpanRequest,
    QueryTopicConsumeByWhoRequest,
)
from cometmq.protocol.version import RUNTIME_INFO_VERSION_MIN
from cometmq.remoting import Request, Response
from cometmq.remoting.slices import Slices, encode

_NAMES = re.compile("[^;]+")


class BrokerStatsHandler:
    """Handles GET_BROKER_RUNTIME_INFO (28) and VIEW_BROKER_STATS_DATA (315).

    Args:
        core: of the broker.
        runtime: the figures of the whole broker.
    """

    def __init__(self, core: Core, runtime: RuntimeInfo) -> None:
        self._runtime = runtime
        self._store = core.store
        self._cold_reads = core.cold_reads
        self._stats = core.stats

    async def runtime_info(self, request: Request) -> Response:
        """Return the runtime information, a table of texts, as the client's release has it."""
        with_half_messages = request.header(GetBrokerRuntimeInfoRequest).half_messages
        oldest = self._store.cold_record(self._store.min_log_offset)  # its time is shown
        await self._cold_reads.run(oldest)
        table = self._runtime.table()
        if request.command.version < RUNTIME_INFO_VERSION_MIN:
            table = as_release_4(table)
        if with_half_messages:
            table |= self._runtime.half_messages()
        return Response(body=KVTable(table=table).encode())

    async def counter(self, request: Request) -> Response:
        """Return one counter: its last minute, hour and day."""
        header = request.header(ViewBrokerStatsDataRequest)
        view = await self._stats.view(header.stats_name, header.stats_key)
        if view is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{header.stats_name}> <{header.stats_key}> not exist",
            )
        body = BrokerStatsData(
            stats_minute=_item(view.minute), stats_hour=_item(view.hour), stats_day=_item(view.day)
        )
        return Response(body=body.encode())


class TopicStatsHandler:
    """Handles GET_TOPIC_STATS_INFO (202).

    Args:
        core: of the broker.
        lags: names queues, and finds when a message was stored.
    """

    def __init__(self, core: Core, lags: GroupLags) -> None:
        self._store = core.store
        self._topics = core.topics
        self._stats = core.stats
        self._lags = lags

    async def stats_of_topic(self, request: Request) -> Response:
        """Return the bounds of every queue of a topic, and the time of its last message."""
        topic = request.header(GetTopicStatsInfoRequest).topic
        config = _existing(self._topics, topic)
        queues = max(config.read_queue_nums, config.write_queue_nums)
        slices = Slices()
        table = {
            self._lags.queue(topic, queue_id): await self._queue(topic, queue_id)
            async for queue_id in slices.each(range(queues))
        }
        tps = await self._stats.put_tps(topic, slices)
        body = TopicStatsTable(offset_table=table, topic_put_tps=tps)
        return Response(body=await encode(body, slices))

    async def _queue(self, topic: str, queue_id: int) -> TopicOffset:
        low, high = self._store.bounds(topic, queue_id)
        written_ms = await self._lags.store_time(topic, queue_id, high - 1)
        return TopicOffset(
            min_offset=low, max_offset=high, last_update_timestamp=max(written_ms, 0)
        )


class GroupStatsHandler:
    """Returns the groups of topics, their offsets and their lags (208, 300, 303, 317, 343, 345).

    Args:
        core: of the broker.
        lags: the lags of groups.
        address: of this broker, ``host:port``.
    """

    def __init__(self, core: Core, lags: GroupLags, address: str) -> None:
        self._topics = core.topics
        self._groups = core.groups
        self._consumers = core.consumers
        self._offsets = core.offsets
        self._lags = lags
        self._address = address

    async def consume_stats(self, request: Request) -> Response:
        """Return the offsets of a group in one topic, in some, or in all where it has any."""
        header = request.header(GetConsumeStatsRequest)
        group = header.consumer_group
        slices = Slices()
        body = ConsumeStats()
        seen: set[str] = set()
        async for name in slices.each(self._topics_shown(header)):
            config = self._existing_consumed(group, name)
            if config is None or name in seen:
                continue
            seen.add(name)
            stats = await self._lags.of_topic(group, config, config.read_queue_nums, slices)
            async for queue, figures in slices.each(stats.offset_table.items()):
                body.offset_table[queue] = figures
            body.consume_tps += stats.consume_tps
        written = await encode(body, slices)
        await slices.clear(body.offset_table)
        return Response(body=written)

    async def all_consume_stats(self, request: Request) -> Response:
        """Return the offsets of every group in every topic that it consumes."""
        only_ordered = request.header(GetBrokerConsumeStatsRequest).is_order
        body = ConsumeStatsList(broker_addr=self._address)
        slices = Slices()
        async for group in slices.each(list(self._groups.all())):
            found: list[ConsumeStats] = []
            async for name in slices.each(self._offsets.topics_of(group)):
                config = self._existing_consumed(group, name)
                if config is None or (only_ordered and not config.order):
                    continue
                stats = await self._lags.of_topic(group, config, config.write_queue_nums, slices)
                found.append(stats)
                async for queue in slices.each(stats.offset_table.values()):
                    consumed = max(queue.consumer_offset, 0)
                    body.total_diff += queue.broker_offset - consumed
                    body.total_inflight_diff += queue.pull_offset - consumed
            body.consume_stats_list.append({group: found})
        written = await encode(body, slices)
        async for by_topic in slices.each(body.consume_stats_list):
            for found in by_topic.values():
                async for stats in slices.each(found):
                    await slices.clear(stats.offset_table)
                await slices.clear(found)
        await slices.clear(body.consume_stats_list)
        return Response(body=written)

    async def time_spans(self, request: Request) -> Response:
        """Return the times of first, last and last consumed message of each queue of a topic."""
        header = request.header(QueryConsumeTimeSpanRequest)
        config = _existing(self._topics, header.topic)
        slices = Slices()
        spans = [
            await self._lags.time_span(header.group, header.topic, queue_id)
            async for queue_id in slices.each(range(config.write_queue_nums))
        ]
        body = QueryConsumeTimeSpanBody(consume_time_span_set=spans)
        return Response(body=await encode(body, slices))

    async def groups_of_topic(self, request: Request) -> Response:
        """Return the groups that subscribe to a topic now, or have offsets in it."""
        topic = request.header(QueryTopicConsumeByWhoRequest).topic
        slices = Slices()
        online = [
            group.name
            async for group in slices.each(self._consumers.groups())
            if topic in group.subscriptions
        ]
        groups = dict.fromkeys(online + self._offsets.groups_of(topic))
        return Response(body=await encode(GroupList(group_list=list(groups)), slices))

    async def topics_of_group(self, request: Request) -> Response:
        """Return the topics in which a group has offsets."""
        group = request.header(QueryTopicsByConsumerRequest).group
        body = TopicList(topic_list=self._offsets.topics_of(group), broker_addr=self._address)
        return Response(body=await encode(body))

    def subscription(self, request: Request) -> Response:
        """Return the subscription of a group that is online to a topic."""
        header = request.header(QuerySubscriptionByConsumerRequest)
        online = self._consumers.group(header.group)
        found = None if online is None else online.subscriptions.get(header.topic or "")
        body = QuerySubscriptionResponseBody(
            group=header.group,
            topic=header.topic,
            subscription_data=None if found is None else found.data,
        )
        return Response(body=body.encode())

    def _topics_shown(self, header: GetConsumeStatsRequest) -> Iterable[str]:
        if (header.topic_list or "").strip("; "):
            return (found[0] for found in _NAMES.finditer(header.topic_list or ""))
        if header.topic:
            return [header.topic]
        return self._offsets.topics_of(header.consumer_group)

    def _existing_consumed(self, group: str, name: str) -> TopicConfig | None:
        """Return a topic if it exists and the group consumes it."""
        config = self._topics.get(name)
        return config if config is not None and self._lags.is_consumed(group, name) else None


def _existing(topics: TopicTable, name: str) -> TopicConfig:
    config = topics.get(name)
    if config is None:
        raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
    return config


def _item(view: WindowFigures) -> BrokerStatsItem:
    return BrokerStatsItem(sum=view.sum, tps=view.tps, avgpt=view.avgpt)
