"""The metrics of a broker by the names and labels of RocketMQ's exporter.

The exporter sends requests to brokers; here the broker has the same figures on its own page, so
that dashboards and alerts made for the exporter go on. Rates are those of the last minute.

Source: RMQMetricsCollector and MetricsCollectTask, rocketmq-exporter 0.0.3 (names, labels and what
they count).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.broker.clients.consumers import BROADCASTING, ConsumerGroup
from cometmq.broker.stats.runtime_info import EXPORTED, RuntimeInfo
from cometmq.broker.stats.sources import MASTER_SILENT_S
from cometmq.metrics.page import OTHER, Metric, Number, Page
from cometmq.model.topic import DLQ_PREFIX, RETRY_PREFIX
from cometmq.protocol.command import OUR_VERSION
from cometmq.protocol.version import version_name
from cometmq.remoting.slices import Slices

if TYPE_CHECKING:
    from cometmq.broker.stats.sources import Sources

MEMBERS_SHOWN_MAX: Final = 20
"""How many members of a group the labels of its size name."""
CLUSTERING: Final = "1"
"""The number of RocketMQ's message model. Groups that broadcast have no lag on a broker."""


class GroupLag(NamedTuple):
    """How far a group is in one topic."""

    group: str
    topic: str
    online: ConsumerGroup | None
    committed: int
    """The committed offsets of all queues, added."""
    lag: int
    """Messages that are not consumed, by the committed offsets as they are."""
    age_ms: int | None
    """The age of the oldest message not consumed; None if it was not read."""


class ExporterMetrics:
    """Collects them for one page at a time.

    Args:
        sources: what the metrics are read from.
        runtime: the runtime information.
        address: where clients reach the broker.
        booted_ms: when it was started.
    """

    def __init__(
        self, sources: Sources, runtime: RuntimeInfo, address: str, booted_ms: int
    ) -> None:
        self._sources = sources
        self._core = core = sources.core
        self._runtime = runtime
        self._address = address
        self._booted_ms = booted_ms
        self._broker = {"broker": core.settings().broker_name}

    async def collect(self, page: Page, slices: Slices) -> None:
        """Fill a page with all but the lags of groups."""
        await self._members(page, slices)
        await self._topics(page, slices)
        await self._rates_in(page, slices)
        await self._rates_out(page, slices)
        self._replication(page)
        self._runtime_info(page)

    async def _members(self, page: Page, slices: Slices) -> None:
        count = page.gauge("rocketmq_producer_count", "Producers of a group")
        async for name in slices.each(self._core.producers.names()):
            members = self._core.producers.members(name)
            count.set(len(members), **self._broker, group=name)
        count = page.gauge("rocketmq_group_count", "Consumers of a group")
        async for group in slices.each(self._core.consumers.groups()):
            shown = list(islice(group.members.values(), MEMBERS_SHOWN_MAX))
            rest = [OTHER] if len(group.members) > len(shown) else []
            count.set(
                len(group.members),
                caddr=",".join([member.connection.peer_text for member in shown] + rest),
                localaddr=",".join([member.client_id for member in shown] + rest),
                group=group.name,
            )

    async def _topics(self, page: Page, slices: Slices) -> None:
        ends = page.gauge("rocketmq_producer_offset", "The ends of a topic's queues, added")
        retries = page.gauge("rocketmq_topic_retry_offset", "The same of a retry topic")
        dead = page.gauge("rocketmq_topic_dlq_offset", "The same of a dead-letter topic")
        bounds = self._core.store.bounds
        async for config in slices.each(list(self._core.topics.all().values())):
            topic, end = config.topic_name, 0
            async for queue_id in slices.each(
                range(max(config.read_queue_nums, config.write_queue_nums))
            ):
                end += bounds(topic, queue_id)[1]
            if topic.startswith(DLQ_PREFIX):
                dead.set(end, **self._broker, group=topic.removeprefix(DLQ_PREFIX))
            else:
                metric = retries if topic.startswith(RETRY_PREFIX) else ends
                metric.set(end, **self._broker, topic=topic)

    async def _rates_in(self, page: Page, slices: Slices) -> None:
        messages = page.gauge("rocketmq_producer_tps", "Messages stored a second")
        size = page.gauge("rocketmq_producer_message_size", "Bytes stored a second")
        stats = self._core.stats
        total = 0.0
        async for topic, queues in slices.each(stats.topics_put()):
            rates = await stats.rates(queues, slices)
            total += rates[0]
            messages.set(rates[0], **self._broker, topic=topic)
            size.set(rates[1], **self._broker, topic=topic)
        self._of_broker(page, "rocketmq_broker_tps", "Messages stored a second", total)

    async def _rates_out(self, page: Page, slices: Slices) -> None:
        messages = page.gauge("rocketmq_consumer_tps", "Messages delivered a second")
        size = page.gauge("rocketmq_consumer_message_size", "Bytes delivered a second")
        back = page.gauge("rocketmq_send_back_nums", "Messages sent back in the last minute")
        stats = self._core.stats
        total = 0.0
        async for (group, topic), queues in slices.each(stats.topics_got()):
            rates = await stats.rates(queues, slices)
            total += rates[0]
            messages.set(rates[0], **self._broker, topic=topic, group=group)
            size.set(rates[1], **self._broker, topic=topic, group=group)
        async for group, topic, count in slices.each(stats.sent_back_last_minute()):
            back.set(count, **self._broker, topic=topic, group=group)
        self._of_broker(page, "rocketmq_broker_qps", "Messages delivered a second", total)

    def _of_broker(self, page: Page, name: str, text: str, value: Number) -> None:
        metric = page.gauge(name, text)
        metric.set(value, brokerIP=self._address, **self._broker)

    def _replication(self, page: Page) -> None:
        core = self._core
        if core.role.is_slave:
            has_master = self._sources.log_copy.get().hears_master(MASTER_SILENT_S)
            heard = page.gauge("cometmq_slave_has_master", "1 if a slave receives from its master")
            heard.set(int(has_master))
            return
        behind = page.gauge("rocketmq_broker_commitlog_diff", "Bytes of the log a slave lacks")
        in_sync = page.gauge("cometmq_slave_in_sync", "1 if a slave has the newest of the log")
        for slave in self._sources.master.status():
            behind.set(slave.diff, brokerIP=slave.addr, **self._broker)
            in_sync.set(int(slave.in_sync), brokerIP=slave.addr, **self._broker)

    def group_lags(self, page: Page) -> GroupLagMetrics:
        """Add the metrics of the lags of groups to a page."""
        return GroupLagMetrics(page, self._broker)

    def _runtime_info(self, page: Page) -> None:
        core = self._core
        labels = {
            "brokerIP": self._address,
            "brokerHost": core.settings().broker_name,
            "des": version_name(OUR_VERSION),
            "boottime": str(self._booted_ms),
            "broker_version": str(OUR_VERSION),
        }
        usage = core.files.usage(core.store.paths.commit_log)
        values: dict[str, Number] = {
            "commitlogdir_capacity_free": usage.available_bytes,
            "commitlogdir_capacity_total": usage.used_bytes + usage.available_bytes,
            "remain_howmanydata_toflush": core.store.written_to - core.store.flushed_to,
        }
        table = self._runtime.table()
        for names, key in EXPORTED.items():
            values.update(zip(names.split(), _numbers(table[key]), strict=False))
        for name, value in values.items():
            metric = page.gauge(f"rocketmq_brokeruntime_{name}", "As in mqadmin brokerStatus")
            metric.set(value, **labels)


class GroupLagMetrics:
    """The metrics of the lags of groups on one page.

    Args:
        page: the page.
        broker: the label of the broker.
    """

    def __init__(self, page: Page, broker: dict[str, str]) -> None:
        self._broker = broker
        self._lag = page.gauge("rocketmq_group_diff", "Messages not consumed")
        self._retry = page.gauge("rocketmq_group_retrydiff", "The same of a retry topic")
        self._dead = page.gauge("rocketmq_group_dlqdiff", "The same of a dead-letter topic")
        self._committed = page.gauge("rocketmq_consumer_offset", "Committed offsets, added")
        self._age = page.gauge(
            "rocketmq_group_get_latency_by_storetime",
            "Age in ms of the oldest message not consumed",
            max,
        )

    def set(self, found: GroupLag) -> None:
        """Add the series of a group and a topic."""
        labels = {"topic": found.topic, "group": found.group}
        self._committed.set(found.committed, **self._broker, **labels)
        if found.age_ms is not None:
            self._age.set(found.age_ms, **self._broker, **labels)
        count = 0 if found.online is None else len(found.online.members)
        self._metric_of(found.topic).set(
            found.lag,
            group=found.group,
            topic=found.topic,
            countOfOnlineConsumers=str(count),
            msgModel=CLUSTERING,
        )

    def _metric_of(self, topic: str) -> Metric:
        if topic.startswith(RETRY_PREFIX):
            return self._retry
        return self._dead if topic.startswith(DLQ_PREFIX) else self._lag


def broadcasts(online: ConsumerGroup | None) -> bool:
    """Return whether the members of a group keep their offsets themselves."""
    return online is not None and online.model == BROADCASTING


def _numbers(text: str) -> Iterator[Number]:
    """Yield the numbers of a text of the runtime information; of ``name:number``, the number."""
    for word in text.split():
        number = float(word.rpartition(":")[2])
        yield int(number) if number.is_integer() else number
