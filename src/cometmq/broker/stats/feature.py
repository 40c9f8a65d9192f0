"""The statistics and metrics of this broker, and the requests and jobs for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.metrics.config import has_metrics
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import Job, every

if TYPE_CHECKING:
    from cometmq.broker.stats.handler import (
        BrokerStatsHandler,
        GroupStatsHandler,
        TopicStatsHandler,
    )
    from cometmq.broker.stats.sources import Sources
    from cometmq.metrics.exporter import Exporter


COUNTERS_S = 10.0
RATES_S = 1.0
IDLE_COUNTERS_S = 600.0


class StatsFeature(BrokerFeature):
    """Shows statistics, and metrics if the settings want them.

    Args:
        sources: what they are read from.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        super().__init__(sources.core)
        self._exporter: Exporter | None = None

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handlers that show statistics of the broker, its topics and its groups."""
        core, sources = self._core, self._sources
        booted_ms = core.clock.now_ms()

        @Deferred
        def broker() -> BrokerStatsHandler:
            from cometmq.broker.stats.handler import BrokerStatsHandler

            return BrokerStatsHandler(core, sources.runtime(booted_ms))

        @Deferred
        def topics() -> TopicStatsHandler:
            from cometmq.broker.stats.handler import TopicStatsHandler

            return TopicStatsHandler(core, lags.get())

        @Deferred
        def groups() -> GroupStatsHandler:
            from cometmq.broker.stats.handler import GroupStatsHandler

            return GroupStatsHandler(core, lags.get(), endpoint.address)

        lags = Deferred(sources.lags)
        return Feature(
            {
                RequestCode.GET_BROKER_RUNTIME_INFO: broker.exclusive(lambda h: h.runtime_info),
                RequestCode.VIEW_BROKER_STATS_DATA: broker.exclusive(lambda h: h.counter),
                RequestCode.GET_TOPIC_STATS_INFO: topics.exclusive(lambda h: h.stats_of_topic),
                RequestCode.GET_CONSUME_STATS: groups.exclusive(lambda h: h.consume_stats),
                RequestCode.GET_BROKER_CONSUME_STATS: groups.exclusive(
                    lambda h: h.all_consume_stats
                ),
                RequestCode.QUERY_CONSUME_TIME_SPAN: groups.exclusive(lambda h: h.time_spans),
                RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: groups.exclusive(
                    lambda h: h.groups_of_topic
                ),
                RequestCode.QUERY_TOPICS_BY_CONSUMER: groups.exclusive(lambda h: h.topics_of_group),
                RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: groups.handler(
                    lambda h: h.subscription
                ),
            },
            _jobs(core),
        )

    async def begin(self, endpoint: Endpoint) -> None:
        """Start to show metrics."""
        if has_metrics(self._core.configuration):
            from cometmq.broker.stats.metrics import start_metrics  # most brokers have none

            self._exporter = await start_metrics(self._sources, endpoint.address)

    async def end(self) -> None:
        """Show metrics no more."""
        if self._exporter is not None:
            await self._exporter.stop()


def _jobs(core: Core) -> list[Job]:
    """The samples of counters and rates, and the removal of idle counters."""
    return [
        every(COUNTERS_S, core.stats.sample, "sample-counters"),
        every(RATES_S, core.measures.throughput.sample, "sample-rates"),
        every(IDLE_COUNTERS_S, core.stats.drop_idle, "drop-idle-counters"),
    ]
