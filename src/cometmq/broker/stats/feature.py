"""Request handlers and jobs for statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.protocol.codes import RequestCode
from cometmq.remoting import exclusive
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import Job, every

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts
    from cometmq.broker.stats.group_lag import GroupLags
    from cometmq.broker.stats.handler import (
        BrokerStatsHandler,
        GroupStatsHandler,
        TopicStatsHandler,
    )
    from cometmq.broker.stats.runtime_info import RuntimeInfo


COUNTERS_S = 10.0
RATES_S = 1.0
IDLE_COUNTERS_S = 600.0


def build(parts: Parts, endpoint: Endpoint) -> Feature:
    """Build the handlers that show statistics of the broker, its topics and its groups."""
    booted_ms = parts.clock.now_ms()

    def make_broker() -> BrokerStatsHandler:
        from cometmq.broker.stats.handler import BrokerStatsHandler

        runtime = runtime_of(parts, booted_ms)
        return BrokerStatsHandler(runtime, parts.stats, parts.store, parts.cold_reads)

    def make_topics() -> TopicStatsHandler:
        from cometmq.broker.stats.handler import TopicStatsHandler

        return TopicStatsHandler(
            parts.store, topics=parts.topics, stats=parts.stats, lags=lags.get()
        )

    def make_groups() -> GroupStatsHandler:
        from cometmq.broker.stats.handler import GroupStatsHandler

        return GroupStatsHandler(
            topics=parts.topics,
            groups=parts.groups,
            consumers=parts.consumers,
            offsets=parts.offsets,
            lags=lags.get(),
            address=lambda: endpoint.address,
        )

    lags = Deferred(lambda: lags_of(parts))
    broker, topics, groups = Deferred(make_broker), Deferred(make_topics), Deferred(make_groups)
    return Feature(
        {
            RequestCode.GET_BROKER_RUNTIME_INFO: exclusive(
                broker.handler(lambda h: h.runtime_info)
            ),
            RequestCode.VIEW_BROKER_STATS_DATA: exclusive(broker.handler(lambda h: h.counter)),
            RequestCode.GET_TOPIC_STATS_INFO: exclusive(topics.handler(lambda h: h.stats_of_topic)),
            RequestCode.GET_CONSUME_STATS: exclusive(groups.handler(lambda h: h.consume_stats)),
            RequestCode.GET_BROKER_CONSUME_STATS: exclusive(
                groups.handler(lambda h: h.all_consume_stats)
            ),
            RequestCode.QUERY_CONSUME_TIME_SPAN: exclusive(groups.handler(lambda h: h.time_spans)),
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: exclusive(
                groups.handler(lambda h: h.groups_of_topic)
            ),
            RequestCode.QUERY_TOPICS_BY_CONSUMER: exclusive(
                groups.handler(lambda h: h.topics_of_group)
            ),
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: groups.handler(lambda h: h.subscription),
        },
        _jobs(parts),
    )


def lags_of(parts: Parts) -> GroupLags:
    """Make what returns the lags of groups."""
    from cometmq.broker.stats.group_lag import GroupLags

    return GroupLags(
        store=parts.store,
        cold_reads=parts.cold_reads,
        offsets=parts.offsets,
        consumers=parts.consumers,
        stats=parts.stats,
        broker_name=parts.settings().broker_name,
        clock=parts.clock,
    )


def runtime_of(parts: Parts, booted_ms: int) -> RuntimeInfo:
    """Make the table of runtime information."""
    from cometmq.broker.stats.runtime_info import DelayLevelOffsets, RuntimeInfo

    return RuntimeInfo(
        parts.store,
        files=parts.files,
        stats=parts.stats,
        throughput=parts.throughput,
        settings=parts.settings,
        sends_waiting=lambda: len(parts.commit),
        oldest_wait_s=parts.commit.oldest_age_s,
        reads_waiting=lambda: parts.cold_reads.waiting,
        delay_levels=lambda: {
            level: DelayLevelOffsets(*ends) for level, ends in parts.delay.progress().items()
        },
        half_messages=parts.half_queue.figures,
        refusal=lambda: _refusal(parts),
        clock=parts.clock,
        booted_ms=booted_ms,
    )


def _refusal(parts: Parts) -> str:
    """Return why sends are refused until the state of the broker changes; empty if they are not."""
    if parts.store.failure is not None:
        return f"the store refuses messages until a restart: {parts.store.failure}"
    acknowledgements = parts.master.acknowledgements
    refusal = acknowledgements.fenced or acknowledgements.refusal
    return "" if refusal is None else refusal.remark


def _jobs(parts: Parts) -> list[Job]:
    """The samples of counters and rates, and the removal of idle counters."""
    return [
        every(COUNTERS_S, parts.stats.sample, "sample-counters"),
        every(RATES_S, parts.throughput.sample, "sample-rates"),
        every(IDLE_COUNTERS_S, parts.stats.drop_idle, "drop-idle-counters"),
    ]
