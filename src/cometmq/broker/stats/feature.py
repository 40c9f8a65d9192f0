"""Request handlers and jobs for statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.stats.group_lag import GroupLags
from cometmq.broker.stats.handler import (
    BrokerStatsHandler,
    GroupStatsHandler,
    TopicStatsHandler,
)
from cometmq.broker.stats.runtime_info import DelayLevelOffsets, RuntimeInfo
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import exclusive
from cometmq.remoting.features import Feature
from cometmq.remoting.jobs import Job, every

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts


COUNTERS_S = 10.0
RATES_S = 1.0
IDLE_COUNTERS_S = 600.0


def build(parts: Parts, endpoint: Endpoint) -> Feature:
    """Build the handlers that show statistics of the broker, its topics and its groups."""
    lags = GroupLags(
        store=parts.store,
        cold_reads=parts.cold_reads,
        offsets=parts.offsets,
        consumers=parts.consumers,
        stats=parts.stats,
        broker_name=parts.settings().broker_name,
        clock=parts.clock,
    )
    broker = BrokerStatsHandler(_runtime(parts), parts.stats, parts.store, parts.cold_reads)
    topics = TopicStatsHandler(parts.store, topics=parts.topics, stats=parts.stats, lags=lags)
    groups = GroupStatsHandler(
        topics=parts.topics,
        groups=parts.groups,
        consumers=parts.consumers,
        offsets=parts.offsets,
        lags=lags,
        address=lambda: endpoint.address,
    )
    return Feature(
        {
            RequestCode.GET_BROKER_RUNTIME_INFO: exclusive(broker.runtime_info),
            RequestCode.VIEW_BROKER_STATS_DATA: exclusive(broker.counter),
            RequestCode.GET_TOPIC_STATS_INFO: exclusive(topics.stats_of_topic),
            RequestCode.GET_CONSUME_STATS: exclusive(groups.consume_stats),
            RequestCode.GET_BROKER_CONSUME_STATS: exclusive(groups.all_consume_stats),
            RequestCode.QUERY_CONSUME_TIME_SPAN: exclusive(groups.time_spans),
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: exclusive(groups.groups_of_topic),
            RequestCode.QUERY_TOPICS_BY_CONSUMER: exclusive(groups.topics_of_group),
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: groups.subscription,
        },
        _jobs(parts),
    )


def _runtime(parts: Parts) -> RuntimeInfo:
    return RuntimeInfo(
        parts.store,
        files=parts.files,
        stats=parts.stats,
        throughput=parts.throughput,
        settings=parts.settings,
        sends_waiting=lambda: len(parts.commit),
        oldest_wait_s=parts.commit.oldest_age_s,
        pulls_held=lambda: len(parts.held),
        delay_levels=lambda: {
            level: DelayLevelOffsets(*ends) for level, ends in parts.delay.progress().items()
        },
        half_messages=parts.half_queue.figures,
        clock=parts.clock,
    )


def _jobs(parts: Parts) -> list[Job]:
    """The samples of counters and rates, and the removal of idle counters."""
    return [
        every(COUNTERS_S, parts.stats.sample, "sample-counters"),
        every(RATES_S, parts.throughput.sample, "sample-rates"),
        every(IDLE_COUNTERS_S, parts.stats.drop_idle, "drop-idle-counters"),
    ]
