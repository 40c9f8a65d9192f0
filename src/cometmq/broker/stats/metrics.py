"""The metrics of a broker, by RocketMQ 5's names.

Everything is read when a page is asked for, from counters and tables that exist anyway.

Source: BrokerMetricsConstant, DefaultStoreMetricsConstant and ConsumerLagCalculator, RocketMQ 5.3
(names and labels).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from cometmq.broker.stats.exporter_metrics import ExporterMetrics, GroupLag, broadcasts
from cometmq.broker.stats.windows import SIZE_BOUNDS, Cell, StoredCell
from cometmq.broker.timings import CREATED_BOUNDS_MS, FINISHED_BOUNDS_S
from cometmq.broker.topics.attributes import MESSAGE_TYPE
from cometmq.metrics.config import MetricsSettings
from cometmq.metrics.exporter import Exporter, start_exporter
from cometmq.metrics.page import MILLISECONDS, Buckets, Page, buckets
from cometmq.model.errors import CometError
from cometmq.model.topic import DLQ_PREFIX, RETRY_PREFIX
from cometmq.protocol.logical_queues import is_decided
from cometmq.protocol.version import version_name
from cometmq.remoting.latencies import BOUNDS_MS, request_name, response_name
from cometmq.remoting.slices import Slices

if TYPE_CHECKING:
    from cometmq.broker.clients.members import Member
    from cometmq.broker.stats.sources import Sources
    from cometmq.store import MessageStore

TIMES_S: Final = 5.0
"""How long the times of messages are read for one page, because that may read the disk."""
SYSTEM_GROUP: Final = "CID_RMQ_SYS_"


class BrokerMetrics:
    """Collects the metrics of one broker.

    Args:
        sources: what the metrics are read from.
        address: where clients reach it.
    """

    def __init__(self, sources: Sources, address: str) -> None:
        self._sources = sources
        self._core = core = sources.core
        booted_ms = core.clock.now_ms()
        runtime = sources.runtime(booted_ms)
        self._exporter = ExporterMetrics(sources, runtime, address, booted_ms)
        self._shows_exporters = core.configuration[MetricsSettings].metrics_of_exporter
        self._lags = sources.lags()

    async def collect(self, page: Page) -> None:
        """Fill a page."""
        slices = Slices()
        self._broker(page)
        await self._static_topics(page, slices)
        self._store(page)
        await self._clients(page, slices)
        await self._messages_in(page, slices)
        await self._messages_out(page, slices)
        await self._group_lags(page, slices)
        self._decisions(page)
        self._pop(page)
        self._timers(page)
        self._requests(page)
        if self._shows_exporters:
            await self._exporter.collect(page, slices)

    def _broker(self, page: Page) -> None:
        core = self._core
        waiting = page.gauge("rocketmq_processor_watermark", "Requests that wait, by processor")
        waiting.set(len(self._sources.commit), processor="send")
        waiting.set(core.cold_reads.waiting, processor="pull")
        permission = page.gauge("rocketmq_broker_permission", "4 read, 2 write, 6 both")
        permission.set(core.settings().broker_permission)
        page.gauge("rocketmq_topic_number", "Topics of this broker").set(len(core.topics))
        groups = page.gauge("rocketmq_consumer_group_number", "Consumer groups of this broker")
        groups.set(len(core.groups))
        sessions = self._sources.producer_sessions.made()
        open_sessions = page.gauge("cometmq_producer_sessions", "Producer sessions")
        open_sessions.set(0 if sessions is None else len(sessions))
        refused = page.counter(
            "cometmq_producer_sessions_refused_total", "Sends and openings of older attempts"
        )
        refused.set(0 if sessions is None else sessions.refused)
        used = page.gauge(
            "cometmq_producer_sessions_used_ratio", "Used part of their limit, or of a topic's"
        )
        used.set(0 if sessions is None else sessions.usage().ratio)
        none_left = page.counter(
            "cometmq_producer_sessions_full_total", "Openings refused because of the limit"
        )
        none_left.set(0 if sessions is None else sessions.refused_full)
        master = page.gauge("cometmq_broker_is_master", "1 for a master, 0 for a slave")
        master.set(int(not core.role.is_slave))
        failed = page.gauge(
            "cometmq_store_failed", "1 if the store refuses messages after an error"
        )
        failed.set(int(core.store.failure is not None))
        full = page.gauge("cometmq_store_disk_full", "1 if the disk has no room for messages")
        full.set(int(core.store.disk_full))
        if (elected := self._sources.elected) is not None:
            aside = page.gauge(
                "cometmq_store_set_aside", "Folders with confirmed messages that a master lacked"
            )
            aside.set(len(core.store.folders_aside))
            fenced = page.gauge(
                "cometmq_broker_fenced", "1 if the controllers know less, or another set or process"
            )
            fenced.set(int(elected.replication.acknowledgements.fenced is not None))

    async def _static_topics(self, page: Page, slices: Slices) -> None:
        mappings = self._core.static_topics.mappings
        if not mappings:
            return
        led = undecided = 0
        async for detail in slices.each(list(mappings.values())):
            last = [items[-1] for items in (detail.hosted_queues or {}).values()]
            here = [item for item in last if item.bname == detail.bname]
            led += len(here)
            undecided += sum(not is_decided(item) for item in here)
        page.gauge("cometmq_logical_queues_led", "Logical queues that are led here").set(led)
        moving = page.gauge("cometmq_logical_queues_undecided", "Those of moves not finished")
        moving.set(undecided)
        brokers = self._sources.item_brokers
        forwarded = page.counter(
            "cometmq_static_requests_forwarded_total", "Requests to the brokers of older items"
        )
        forwarded.set(brokers.forwarded)
        failed = page.counter("cometmq_static_requests_failed_total", "Those without a response")
        failed.set(brokers.failed)

    def _store(self, page: Page) -> None:
        store, clock = self._core.store, self._core.clock
        oldest_ms = store.earliest_store_ms()
        for name, text, value in (
            ("size", "Bytes of the log", store.written_to - store.min_log_offset),
            ("flush_behind_bytes", "Bytes of the log not on disk", _behind(store)),
            (
                "dispatch_behind_bytes",
                "Bytes of the log that are not in the queues",
                store.dispatch_backlog_bytes,
            ),
            (
                "message_reserve_time",
                "Age of the oldest message in ms",
                max(0, clock.now_ms() - oldest_ms) if oldest_ms > 0 else 0,
            ),
        ):
            metric = page.gauge(f"rocketmq_storage_{name}", text)
            metric.set(value, storage_type="local", storage_medium="disk")

    async def _clients(self, page: Page, slices: Slices) -> None:
        core = self._core
        producers: Counter[tuple[str, str]] = Counter()
        seen: set[tuple[object, str]] = set()
        async for name in slices.each(core.producers.names()):
            for member in core.producers.members(name):
                if (key := (member.connection, member.client_id)) not in seen:
                    seen.add(key)
                    producers[_software(member)] += 1
        metric = page.gauge("rocketmq_producer_connections", "Producers that are online")
        for (language, version), count in producers.items():
            metric.set(count, language=language, version=version, protocol_type="remoting")
        metric = page.gauge("rocketmq_consumer_connections", "Consumers that are online")
        async for group in slices.each(core.consumers.groups()):
            mode = "pull" if group.kind == "CONSUME_ACTIVELY" else "push"
            counts = Counter(_software(member) for member in group.members.values())
            for (language, version), count in counts.items():
                metric.set(
                    count,
                    consumer_group=group.name,
                    language=language,
                    version=version,
                    consume_mode=mode,
                    protocol_type="remoting",
                    is_system=_flag(group.name.startswith(SYSTEM_GROUP)),
                )

    async def _messages_in(self, page: Page, slices: Slices) -> None:
        messages = page.counter("rocketmq_messages_in_total", "Messages stored")
        size = page.counter("rocketmq_throughput_in_total", "Bytes stored")
        sizes = page.histogram("rocketmq_message_size", "Bytes of messages stored", SIZE_BOUNDS)
        dead = page.counter("rocketmq_send_to_dlq_messages_total", "Messages dead-lettered")
        async for topic, queues in slices.each(self._core.stats.topics_put()):
            config = self._core.topics.get(topic)
            kind = "unspecified" if config is None else config.attributes.get(MESSAGE_TYPE)
            labels = {
                "topic": topic,
                "message_type": (kind or "unspecified").lower(),
                "is_system": _flag(self._core.topics.is_system(topic)),
            }
            total, size_bytes = _sums(queues)
            messages.set(total, **labels)
            size.set(size_bytes, **labels)
            sizes.observe(_sizes(queues, size_bytes), **labels)
            if topic.startswith(DLQ_PREFIX):
                group = topic.removeprefix(DLQ_PREFIX)
                dead.set(total, consumer_group=group, topic=topic, is_system="false")

    async def _messages_out(self, page: Page, slices: Slices) -> None:
        messages = page.counter("rocketmq_messages_out_total", "Messages delivered")
        size = page.counter("rocketmq_throughput_out_total", "Bytes delivered")
        async for (group, topic), queues in slices.each(self._core.stats.topics_got()):
            labels = self._labels(group, topic)
            total, size_bytes = _sums(queues)
            messages.set(total, **labels)
            size.set(size_bytes, **labels)

    async def _group_lags(self, page: Page, slices: Slices) -> None:
        core = self._core
        lag = page.gauge("rocketmq_consumer_lag_messages", "Messages not consumed yet")
        late = page.gauge(
            "rocketmq_consumer_lag_latency",
            "Age in ms of the oldest message not consumed",
            max,
            unit=MILLISECONDS,
        )
        flying = page.gauge("rocketmq_consumer_inflight_messages", "Delivered, not consumed")
        ready = page.gauge("rocketmq_consumer_ready_messages", "Messages not delivered yet")
        queueing = page.gauge(
            "rocketmq_consumer_queueing_latency",
            "Age in ms of the oldest not delivered",
            max,
            unit=MILLISECONDS,
        )
        exporter = self._exporter.group_lags(page) if self._shows_exporters else None
        until_s = core.clock.monotonic() + TIMES_S
        async for key in slices.each(core.offsets.keys()):
            topic, _, group = key.partition("@")
            online = core.consumers.group(group)
            config = core.topics.get(topic)
            if config is None or broadcasts(online):
                continue
            labels = self._labels(group, topic)
            consumed_at: list[tuple[int, int]] = []
            pulled_at: list[tuple[int, int]] = []
            total = undelivered = committed_sum = behind = popped = 0
            is_static = topic in core.static_topics
            async for queue_id in slices.each(range(config.read_queue_nums)):
                low, high = core.store.bounds(topic, queue_id)
                popped += self._sources.pop.in_flight(group, topic, queue_id)
                found = core.offsets.committed(group, topic, queue_id)
                if is_static and core.static_topics.is_ended(topic, queue_id):
                    # Its queue has moved, and so has a group that got everything.
                    got = core.offsets.pulled(group, topic, queue_id) or 0
                    if found is None or got >= high:
                        continue
                committed = found or 0
                committed_sum += committed
                behind += high - committed
                consumed = min(max(committed, low), high)
                pulled = max(consumed, core.offsets.pulled(group, topic, queue_id) or 0)
                if consumed < high:
                    total += high - consumed
                    consumed_at.append((queue_id, consumed))
                if pulled < high:
                    undelivered += high - pulled
                    pulled_at.append((queue_id, pulled))
            lag.set(total, **labels)
            flying.set(total - undelivered + popped, **labels)
            ready.set(undelivered, **labels)
            consumed_ms = await self._age_ms(topic, consumed_at, until_s)
            pulled_ms = await self._age_ms(topic, pulled_at, until_s)
            for metric, age_ms in ((late, consumed_ms), (queueing, pulled_ms)):
                if age_ms is not None:
                    metric.set(age_ms, **labels)
            if exporter is not None:
                exporter.set(GroupLag(group, topic, online, committed_sum, behind, consumed_ms))

    async def _age_ms(
        self, topic: str, oldest: list[tuple[int, int]], until_s: float
    ) -> int | None:
        """Return the age of the oldest of these messages, each given by queue and offset.

        None if their times cannot be read, or not in time: the rest of the page is more useful then
        than an error.
        """
        clock, age_ms = self._core.clock, 0
        for queue_id, offset in oldest:
            if clock.monotonic() >= until_s:
                return None
            try:
                stored_ms = await self._lags.store_time(topic, queue_id, offset)
            except CometError:  # too many reads wait, or the disk cannot read
                return None
            if stored_ms > 0:
                age_ms = max(age_ms, clock.now_ms() - stored_ms)
        return age_ms

    def _labels(self, group: str, topic: str) -> dict[str, str]:
        is_system = self._core.topics.is_system(topic) or group.startswith(SYSTEM_GROUP)
        return {
            "consumer_group": group,
            "topic": topic,
            "is_retry": _flag(topic.startswith(RETRY_PREFIX)),
            "is_system": _flag(is_system),
        }

    def _pop(self, page: Page) -> None:
        pop = self._sources.pop.figures()
        for name, text, value in (
            ("rocketmq_pop_checkpoint_buffer_size", "Check points in flight", pop.check_points),
            ("cometmq_pop_in_flight_messages", "Popped, not acknowledged", pop.in_flight),
            ("cometmq_pop_held", "Pops that wait for a message", pop.held),
            ("cometmq_pop_revive_late_ms", "How late the last was revived", pop.late_ms),
            ("cometmq_pop_revive_behind_ms", "How late the first due one is", pop.behind_ms),
            ("cometmq_pop_oldest_ms", "Since when the oldest is in flight", pop.oldest_ms),
            ("cometmq_pop_mixed_groups", "Groups that pull and pop a topic", len(pop.mixed)),
        ):
            page.gauge(name, text).set(value)
        for name, text, value in (
            ("cometmq_pop_acknowledged_messages_total", "acknowledged", pop.acknowledged),
            ("cometmq_pop_revived_messages_total", "stored again", pop.revived),
            ("cometmq_pop_dropped_messages_total", "gone when due", pop.dropped),
        ):
            page.counter(name, f"Popped messages {text}").set(value)

    def _requests(self, page: Page) -> None:
        metric = page.histogram(
            "rocketmq_rpc_latency", "Time in ms of responses", BOUNDS_MS, unit=MILLISECONDS
        )
        latencies = self._core.measures.latencies
        for kind, histogram in [] if latencies is None else latencies.all():
            metric.observe(
                buckets(histogram),
                protocol_type="remoting",
                request_code=request_name(kind.request_code),
                response_code=response_name(kind.response_code),
                is_long_polling=_flag(kind.is_held),
                result=kind.result,
            )

    def _timers(self, page: Page) -> None:
        figures = self._sources.timers.figures()
        for name, text, value in (
            ("rocketmq_timer_enqueue_lag", "that are not in the wheel yet", figures.queue_behind),
            ("rocketmq_timer_dequeue_lag", "that wait", figures.waiting),
        ):
            page.gauge(name, f"Timer messages {text}").set(value)
        late = page.gauge("rocketmq_timer_dequeue_latency", "Seconds that the wheel is late")
        late.set(figures.behind_ms / 1000)
        for name, text, value in (
            ("rocketmq_timer_enqueue_total", "put into the wheel", figures.enqueued),
            ("rocketmq_timer_dequeue_total", "delivered", figures.delivered),
            ("cometmq_timer_recalled_total", "recalled", figures.recalled),
            ("cometmq_timer_rolled_total", "stored again on their way", figures.rolled),
        ):
            page.counter(name, f"Timer messages {text}").set(value)
        waiting = page.gauge("rocketmq_timing_messages", "Timer messages that wait, by topic")
        for each in self._sources.timers.counts():
            waiting.set(each.waiting, topic=each.topic)

    def _decisions(self, page: Page) -> None:
        figures = self._sources.half_queue.figures()
        if figures is not None:
            half = page.gauge("rocketmq_half_messages", "Half messages that are undecided")
            half.set(figures.undecided)
        timings = self._core.measures.timings
        committed = page.counter("rocketmq_commit_messages_total", "Half messages committed")
        late = page.histogram(
            "rocketmq_finish_message_latency", "Seconds until a commit", FINISHED_BOUNDS_S
        )
        for topic, histogram in list(timings.commits.items()):
            found = buckets(histogram)
            committed.set(sum(found.counts), topic=topic)
            late.observe(found, topic=topic)
        rolled_back = page.counter("rocketmq_rollback_messages_total", "Half messages rolled back")
        for topic, count in list(timings.rollbacks.items()):
            rolled_back.set(count, topic=topic)
        for name, text, creations in (
            ("rocketmq_topic_create_execution_time", "of a topic", timings.topics),
            ("rocketmq_consumer_group_create_execution_time", "of a group", timings.groups),
        ):
            metric = page.histogram(
                name, f"Time in ms of a creation {text}", CREATED_BOUNDS_MS, unit=MILLISECONDS
            )
            for (is_success, is_system), histogram in list(creations.histograms.items()):
                metric.observe(
                    buckets(histogram),
                    invocation_status="success" if is_success else "failure",
                    is_system=_flag(is_system),
                )


async def start_metrics(sources: Sources, address: str) -> Exporter:
    """Start to show the metrics of a broker.

    Raises:
        ConfigError: its address cannot be bound, or a package is not installed.
    """
    settings = sources.core.settings()
    labels = {
        "cluster": settings.broker_cluster_name,
        "node_type": "broker",
        "node_id": settings.broker_name,
    }
    collect = BrokerMetrics(sources, address).collect
    return await start_exporter(sources.core.configuration, labels, collect, sources.unready)


def _behind(store: MessageStore) -> int:
    return store.written_to - store.flushed_to


def _sizes(queues: dict[int, StoredCell], size_bytes: int) -> Buckets:
    counts = [cell.size_counts() for cell in list(queues.values())]
    return Buckets([sum(of) for of in zip(*counts, strict=True)], size_bytes)


def _sums(queues: Mapping[int, Cell]) -> tuple[int, int]:
    cells = list(queues.values())
    return sum([cell.messages for cell in cells]), sum([cell.size_bytes for cell in cells])


def _software(member: Member) -> tuple[str, str]:
    """Return language and version; a version that no release has would be any number."""
    version = version_name(member.version).lower() if member.version >= 0 else "other"
    return (member.language or "other").lower(), version


def _flag(value: bool) -> str:
    return "true" if value else "false"
