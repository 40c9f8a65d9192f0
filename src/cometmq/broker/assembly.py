"""Puts the parts of a broker together; nothing runs yet.

The store is opened here, since every other part is made around what it holds.

Source: ours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cometmq.broker.address import OwnAddress, own_address
from cometmq.broker.config import BrokerSettings
from cometmq.broker.services.consumers import ConsumerRegistry
from cometmq.broker.services.delay import DelayedDelivery
from cometmq.broker.services.delay_levels import DelayLevels
from cometmq.broker.services.flow_control import FlowControl, FlowLimits
from cometmq.broker.services.group_commit import GroupCommit
from cometmq.broker.services.groups import GroupTable
from cometmq.broker.services.housekeeping import Flusher, FlushPace
from cometmq.broker.services.intake import Intake, IntakeRules
from cometmq.broker.services.locks import QueueLocks
from cometmq.broker.services.long_polling import HeldPulls
from cometmq.broker.services.notices import ConsumerNotices
from cometmq.broker.services.offsets import ConsumerOffsets
from cometmq.broker.services.producers import ProducerRegistry
from cometmq.broker.services.progress import Progress
from cometmq.broker.services.relay import ConsumerRelay
from cometmq.broker.services.runtime_info import DelayLevelPlace, RuntimeInfo
from cometmq.broker.services.stats import BrokerStats
from cometmq.broker.services.throughput import Throughput
from cometmq.broker.services.topics import TopicTable
from cometmq.model.topic import DELAY_TOPIC, Perm
from cometmq.protocol.message_id import UniqueIds
from cometmq.store import MessageStore, StoreSettings
from cometmq.store.config_files import JsonFile
from cometmq.system.clock import Clock
from cometmq.system.configuration import Configuration
from cometmq.system.files import Files

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """All parts of one broker that processors are made of."""

    configuration: Configuration
    clock: Clock
    files: Files
    settings: Callable[[], BrokerSettings]
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    consumers: ConsumerRegistry
    producers: ProducerRegistry
    locks: QueueLocks
    held: HeldPulls
    levels: DelayLevels
    delay: DelayedDelivery
    intake: Intake
    flow: FlowControl
    commit: GroupCommit
    stats: BrokerStats
    throughput: Throughput
    progress: Progress
    relay: ConsumerRelay
    runtime: RuntimeInfo
    flusher: Flusher
    address: OwnAddress
    """Where others find this broker, but for the port."""

    @property
    def sync_flush(self) -> bool:
        """Whether a send is acknowledged only when its bytes are on disk."""
        return self.configuration[StoreSettings].sync_flush


def assemble(configuration: Configuration, *, clock: Clock, files: Files) -> Parts:
    """Open the store and make the parts around it.

    Raises:
        StoreError: the store or one of the tables beside it cannot be opened.
    """
    settings = configuration.view(BrokerSettings)
    stored = configuration[StoreSettings]
    folder = stored.root / "config"
    topics = TopicTable(settings, JsonFile(folder / "topics.json", files), clock=clock)
    groups = GroupTable(settings, JsonFile(folder / "subscriptionGroup.json", files), clock=clock)
    store = MessageStore(stored, clock=clock, files=files)
    store.open()  # first: whoever has the store open is the only one to touch the tables
    try:
        topics.load()
        groups.load()
        return _around(store, configuration, topics, groups, folder, clock, files, settings())
    except BaseException:
        store.close()
        raise


def _around(
    store: MessageStore,
    configuration: Configuration,
    topics: TopicTable,
    groups: GroupTable,
    folder: Path,
    clock: Clock,
    files: Files,
    now: BrokerSettings,
) -> Parts:
    settings = configuration.view(BrokerSettings)
    stored = configuration.view(StoreSettings)
    offsets = ConsumerOffsets(JsonFile(folder / "consumerOffset.json", files), clock=clock)
    offsets.load()
    levels = DelayLevels.parse(stored().delay_levels)
    delay = DelayedDelivery(
        store, levels, JsonFile(folder / "delayOffset.json", files), clock=clock
    )
    delay.load()
    stats = BrokerStats(now.broker_cluster_name, clock=clock, is_system_topic=topics.is_system)
    delay.on_delivery = lambda topic, queue_id, size: stats.put(topic, queue_id, 1, size)
    notices = ConsumerNotices(settings)
    consumers = ConsumerRegistry(
        clock, on_change=notices.group_changed, silent_ms_max=now.channel_expired_timeout_ms
    )
    locks = QueueLocks(clock)
    held = HeldPulls(held_max=now.pull_queue_capacity)
    throughput = Throughput(stats, clock=clock)
    commit = GroupCommit(store, timeout_s=stored().sync_flush_timeout_ms / 1000)
    held.awaited[DELAY_TOPIC] = 1  # by the timer
    store.tell_arrivals(_arrivals(held, delay), held.awaited)
    address = own_address(now)
    return Parts(
        configuration=configuration,
        clock=clock,
        files=files,
        settings=settings,
        store=store,
        topics=topics,
        groups=groups,
        offsets=offsets,
        consumers=consumers,
        producers=ProducerRegistry(clock, silent_ms_max=now.channel_expired_timeout_ms),
        locks=locks,
        held=held,
        levels=levels,
        delay=delay,
        intake=Intake(
            intake_rules(now, stored(), address.host),
            topics,
            groups,
            levels,
            holds_locks=locks.holds_any,
            new_unique_key=UniqueIds().next,
            now_ms=clock.now_ms,
        ),
        flow=FlowControl(lambda: _flow_limits(settings()), clock=clock),
        commit=commit,
        stats=stats,
        throughput=throughput,
        progress=Progress(
            store=store,
            offsets=offsets,
            consumers=consumers,
            stats=stats,
            broker_name=now.broker_name,
            clock=clock,
        ),
        relay=ConsumerRelay(consumers),
        runtime=RuntimeInfo(
            store,
            files=files,
            stats=stats,
            throughput=throughput,
            settings=settings,
            sends_waiting=lambda: len(commit),
            oldest_wait_s=commit.oldest_age_s,
            pulls_held=lambda: len(held),
            delay_levels=lambda: {
                level: DelayLevelPlace(*place) for level, place in delay.progress().items()
            },
            clock=clock,
        ),
        flusher=Flusher(store, lambda: _flush_pace(stored()), clock=clock),
        address=address,
    )


def _arrivals(
    held: HeldPulls, delay: DelayedDelivery
) -> Callable[[str, int, int, int, int, bytes], None]:
    """What happens when a message has arrived in a queue: pulls wake, a delayed one is timed."""

    def arrived(
        topic: str,
        queue_id: int,
        queue_offset: int,
        tags_code: int,
        store_time_ms: int,
        properties: bytes,
    ) -> None:
        # An edge: the message is stored, whatever goes wrong with those who wait for it.
        try:
            held.arrived(topic, queue_id, queue_offset, tags_code, store_time_ms, properties)
            if topic == DELAY_TOPIC:
                delay.arrived(queue_id)
        except Exception:
            log.exception("cannot notify held pulls topic=%s queue=%d", topic, queue_id)

    return arrived


def intake_rules(settings: BrokerSettings, stored: StoreSettings, ip: str) -> IntakeRules:
    """What the settings say about sends."""
    return IntakeRules(
        broker_ip=ip,
        cluster=settings.broker_cluster_name,
        region=settings.region_id,
        trace_on=settings.trace_on,
        broker_writable=bool(settings.broker_permission & Perm.WRITE),
        accept_from_ms=settings.start_accept_send_request_ms,
        body_bytes_max=stored.message_bytes_max,
    )


def _flow_limits(settings: BrokerSettings) -> FlowLimits:
    return FlowLimits(
        waiting_max=settings.send_queue_capacity,
        append_ms_max=1000,
        lag_ms_max=settings.wait_time_in_send_queue_ms,
        enabled=settings.broker_fast_failure_enable,
    )


def _flush_pace(stored: StoreSettings) -> FlushPace:
    return FlushPace(
        log_interval_ms=stored.flush_interval_ms,
        log_least_pages=stored.flush_least_pages,
        log_thorough_ms=stored.flush_thorough_interval_ms,
        queue_interval_ms=stored.flush_queue_interval_ms,
        queue_least_pages=stored.flush_queue_least_pages,
        queue_thorough_ms=stored.flush_queue_thorough_interval_ms,
    )
