"""Assembles the parts of a broker; nothing runs yet.

The store is opened here, because every other part depends on its content. `FEATURES` lists the
features; what one of them serves and runs is in its own folder, in ``feature.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cometmq.access.account_settings import warn_of_certificates
from cometmq.access.user_settings import user_settings
from cometmq.broker.access import feature as access
from cometmq.broker.acting_master import feature as acting_master
from cometmq.broker.address import BrokerAddress, broker_address
from cometmq.broker.admin import feature as admin
from cometmq.broker.clients import feature as clients
from cometmq.broker.clients.consumers import ConsumerNotifier, ConsumerRegistry
from cometmq.broker.clients.producers import ProducerRegistry
from cometmq.broker.clients.queue_locks import QueueLocks
from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.config import BrokerSettings
from cometmq.broker.creations import CreationLimits
from cometmq.broker.delay import feature as delay
from cometmq.broker.delay.delivery import ScheduledDelivery
from cometmq.broker.failover import feature as failover
from cometmq.broker.filter_servers import feature as filter_servers
from cometmq.broker.filter_servers.servers import FilterServers
from cometmq.broker.filters import feature as filters
from cometmq.broker.filters.table import FilterTable
from cometmq.broker.groups import feature as groups
from cometmq.broker.groups.table import GroupTable
from cometmq.broker.maintenance import feature as storage
from cometmq.broker.offsets import feature as offsets
from cometmq.broker.offsets.offset_store import OffsetStore
from cometmq.broker.pulling import feature as pulling
from cometmq.broker.pulling.arrivals import Arrivals
from cometmq.broker.pulling.long_polling import HeldPulls
from cometmq.broker.queries import feature as queries
from cometmq.broker.registration import Registration
from cometmq.broker.replication import feature as replication
from cometmq.broker.replication.durability_wait import DurabilityWait
from cometmq.broker.replication.master import Master
from cometmq.broker.role import SLAVE, UNKNOWN_ID, Role
from cometmq.broker.sending import feature as sending
from cometmq.broker.sending.flow_control import FlowControl, flow_limits
from cometmq.broker.sending.group_commit import GroupCommit
from cometmq.broker.sending.validation import SendValidation, send_rules
from cometmq.broker.stats import feature as stats
from cometmq.broker.stats.counters import BrokerStats
from cometmq.broker.stats.throughput import Throughput
from cometmq.broker.timings import Timings
from cometmq.broker.topics import feature as topics
from cometmq.broker.topics.table import TopicTable
from cometmq.broker.transactions import feature as transactions
from cometmq.broker.transactions.half_message import HALF_QUEUE
from cometmq.broker.transactions.half_queue import GROUP as HALF_GROUP
from cometmq.broker.transactions.half_queue import HalfQueue
from cometmq.metrics.config import has_metrics
from cometmq.model.delay import DelayLevels
from cometmq.protocol.message_id import UniqueIds
from cometmq.remoting import RemotingClient, TlsSettings
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.latencies import Latencies
from cometmq.store import MessageStore, StoreSettings, kept_log_file_bytes
from cometmq.store.config_files import JsonFile
from cometmq.system.clock import Clock
from cometmq.system.configuration import Configuration
from cometmq.system.files import Files

if TYPE_CHECKING:
    from cometmq.access.plain.accounts import PlainAccounts
    from cometmq.access.users.accounts import UserAccounts
    from cometmq.broker.access.control import AccessControl
    from cometmq.broker.access.sources import AccessSources
    from cometmq.broker.acting_master.service import ActingMaster
    from cometmq.broker.cold_flow_control import ColdFlowControl
    from cometmq.broker.failover.elected_role import ElectedRole
    from cometmq.broker.failover.epochs.replication import EpochReplication
    from cometmq.broker.forwarding import Forwarding
    from cometmq.broker.replication.metadata import MetadataCopy
    from cometmq.broker.replication.slave import LogCopy

logger = logging.getLogger(__name__)

_TABLES = ("topics", "subscriptionGroup", "consumerOffset", "delayOffset", "consumerFilter")
"""The files of tables beside the store."""
SLAVE_MEMORY_LESS = 10
"""So many percent of the memory a slave leaves out of ``accessMessageInMemoryMaxRatio``."""


class Endpoint(msgspec.Struct, frozen=True):
    """Where the broker listens."""

    address: str
    """``host:port`` as registered."""
    store_host: bytes
    """The same as records contain it: 8 or 20 bytes."""


class Parts(msgspec.Struct, frozen=True):
    """All parts of one broker that its features share; a feature builds its own ones."""

    configuration: Configuration
    config_file: Path | None
    """Where changed settings are written."""
    clock: Clock
    files: Files
    table_files: Sequence[JsonFile]
    settings: Callable[[], BrokerSettings]
    role: Role
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    creations: CreationLimits
    offsets: OffsetStore
    filters: FilterTable
    consumers: ConsumerRegistry
    producers: ProducerRegistry
    locks: QueueLocks
    filter_servers: FilterServers
    held: HeldPulls
    cold_reads: ColdReads
    cold_flow: Deferred[ColdFlowControl]
    """Limits them: made for the first read or request that needs it."""
    levels: DelayLevels
    delay: ScheduledDelivery
    half_queue: HalfQueue
    validation: SendValidation
    flow: FlowControl
    commit: GroupCommit
    durability: DurabilityWait
    stats: BrokerStats
    throughput: Throughput
    timings: Timings
    latencies: Latencies | None
    """Counts how long responses take; None without metrics."""
    registration: Registration
    metadata: Deferred[MetadataCopy]
    """Copies the tables of the master: made when this broker is a slave."""
    master: Master
    log_copy: Deferred[LogCopy]
    """Copies the log of the master: made when this broker is a slave."""
    access: AccessControl | None
    """Checks every request; None if the settings want no check."""
    accounts: PlainAccounts | None
    """Those of ``aclEnable``."""
    users: UserAccounts | None
    """Those of ``authenticationEnabled`` and its relatives."""
    elected: ElectedRole | None
    """Takes the role that a controller decides; None without a controller."""
    forwarding: Forwarding | None
    """Forwards requests to the elected master; None without a controller."""
    acting: ActingMaster | None
    """Acts as the master while there is none; None without ``enableSlaveActingMaster``."""
    address: BrokerAddress
    """Where clients and name servers reach this broker, without the port."""

    @property
    def sync_flush(self) -> bool:
        """Whether a send is acknowledged only when its bytes are on disk."""
        return self.configuration[StoreSettings].sync_flush

    def assume_in_memory(self) -> None:
        """Tell the store which messages are in memory, which decides what slaves deliver.

        A slave assumes less than its master, so that a consumer which reads a backlog does not
        change between the two all the time. Source: BrokerController, RocketMQ 5.3.
        """
        ratio = self.configuration[StoreSettings].memory_ratio
        less = SLAVE_MEMORY_LESS if self.role.is_slave else 0
        self.store.assume_in_memory(max(0, ratio - less))

    async def settings_changed(self, changes: Mapping[str, str]) -> None:
        """Apply changed settings to the parts that hold copies, and to the name servers."""
        store_settings = self.configuration[StoreSettings]
        self.validation.change(send_rules(self.settings(), store_settings, self.address.host))
        self.store.reconfigure(store_settings)
        if "enableCalcFilterBitMap" in changes:
            filters.warn_of_bit_maps(self.settings(), store_settings)
        if "fileReservedTime" in changes:
            delay.warn_of_retention(self.levels, store_settings)
        if "brokerPermission" in changes:
            await self.topics.touch()


FEATURES: Sequence[Callable[[Parts, Endpoint], Feature]] = (
    sending.build,
    pulling.build,
    clients.build,
    filters.build,
    offsets.build,
    topics.build,
    groups.build,
    delay.build,
    transactions.build,
    replication.build,
    failover.build,
    acting_master.build,
    filter_servers.build,
    queries.build,
    stats.build,
    storage.build,
    admin.build,
    access.build,
)
"""What a broker consists of. Fast paths are tried in this order."""


def assemble(
    configuration: Configuration,
    *,
    client: RemotingClient,
    config_file: Path | None,
    clock: Clock,
    files: Files,
) -> Parts:
    """Open the store and build the parts around it.

    Args:
        configuration: all settings.
        client: sends requests to name servers.
        config_file: where changed settings are written, if anywhere.
        clock, files: time and disk.

    Raises:
        StoreError: the store or one of the tables beside it cannot be opened.
    """
    settings = configuration.reader_of(BrokerSettings)
    _keep_log_file_size(configuration, files)
    store_settings = configuration[StoreSettings]
    role = _first_role(settings())
    folder = store_settings.root / "config"
    tables = {name: JsonFile(folder / f"{name}.json", files) for name in _TABLES}
    creations = CreationLimits(settings)
    topics = TopicTable(settings, tables["topics"], clock=clock, creations=creations)
    groups = GroupTable(settings, tables["subscriptionGroup"], clock=clock, creations=creations)
    filters = FilterTable(settings, tables["consumerFilter"], clock=clock)
    store = MessageStore(
        store_settings,
        clock=clock,
        files=files,
        threaded=True,
        # An elected broker may become the master of the log as it is.
        is_copy=role.is_slave and not role.is_elected,
        confirms=role.is_elected and settings().all_ack_in_sync_state_set,
    )
    filters.load()  # only read: the store computes bit maps if it dispatches messages again
    store.compute_bitmaps(filters.bitmap_of)
    store.open()  # ahead of the other tables: its lock protects them, too
    if not store.was_closed:
        filters.renew_births()
    try:
        topics.load(store)
        groups.load()
        # A slave may have messages of a topic in its log that it has not copied yet.
        store.expect_topics(
            lambda name: (
                topics.was_lost or name in topics or topics.is_system(name) or role.is_slave
            )
        )
        store.copy_only(role.is_slave)
        role.on_change(lambda: store.copy_only(role.is_slave))  # ahead of what appends as a master
        parts = _build_parts(
            role,
            store,
            configuration,
            topics,
            groups,
            creations,
            filters,
            tables,
            config_file,
            client,
            clock,
            files,
        )
    except BaseException:
        store.close()
        raise
    role.on_change(parts.assume_in_memory)
    parts.assume_in_memory()
    topics.notify(parts.registration.wake)
    parts.filter_servers.on_change = parts.registration.wake
    return parts


def _cold_flow(settings: Callable[[], BrokerSettings]) -> ColdFlowControl:
    from cometmq.broker.cold_flow_control import ColdFlowControl, limits_of

    return ColdFlowControl(lambda: limits_of(settings()))


def _keep_log_file_size(configuration: Configuration, files: Files) -> None:
    """Put the size that the log's files have into the settings."""
    settings = configuration[StoreSettings]
    kept = kept_log_file_bytes(settings, files)
    if kept != settings.commit_log_file_bytes:
        logger.info(
            "log files keep their size bytes=%d folder=%s setting=%d",
            *(kept, settings.commit_log, settings.commit_log_file_bytes),
        )
        configuration.set({"mappedFileSizeCommitLog": str(kept)})


def _first_role(settings: BrokerSettings) -> Role:
    """Return the role with which a broker starts: a slave of none, if a controller decides it."""
    if settings.enable_controller_mode:
        return Role(SLAVE, UNKNOWN_ID, is_elected=True)
    return Role(settings.broker_role, settings.broker_id, ha_address=settings.ha_master_address)


def _build_parts(
    role: Role,
    store: MessageStore,
    configuration: Configuration,
    topics: TopicTable,
    groups: GroupTable,
    creations: CreationLimits,
    filters: FilterTable,
    tables: Mapping[str, JsonFile],
    config_file: Path | None,
    client: RemotingClient,
    clock: Clock,
    files: Files,
) -> Parts:
    settings = configuration.reader_of(BrokerSettings)
    broker_settings = settings()
    store_settings = configuration.reader_of(StoreSettings)
    offsets = OffsetStore(tables["consumerOffset"], clock=clock)
    offsets.next_offset = store.next_offset
    offsets.may_lack_messages = lambda: bool(store.dispatch_backlog_bytes) or role.is_slave
    offsets.load(None if offsets.may_lack_messages() else store.bounds)
    levels = DelayLevels.parse(store_settings().delay_levels)
    cold_flow = Deferred(partial(_cold_flow, settings))
    cold_reads = ColdReads(
        cold_flow,
        lambda: settings().cold_data_flow_control_enable,
        reads_ahead=lambda: store_settings().read_ahead,
    )
    stats = BrokerStats(
        broker_settings.broker_cluster_name, clock=clock, is_system_topic=topics.is_system
    )
    commit = GroupCommit(store, timeout_s=store_settings().sync_flush_timeout_ms / 1000)
    delay = ScheduledDelivery(
        store,
        levels,
        tables["delayOffset"],
        queue_for=topics.queue_for,
        clock=clock,
        cold_reads=cold_reads,
        on_delivery=stats.delivered,
        request_sync=None if store.shows_unsynced else commit.request_sync,
        refusal=lambda: waits.refusal,
    )
    delay.load()
    locks = QueueLocks(clock)
    servers = FilterServers(clock)
    held = HeldPulls(held_max=broker_settings.pull_queue_capacity)
    Arrivals(store, held, delay.arrived, commit.request_sync)
    silent_ms_max = broker_settings.channel_expired_timeout_ms
    address = broker_address(broker_settings)
    synced_by = commit if store_settings().sync_flush else None
    registration = Registration(
        client, topics, settings, role=role, filter_servers=servers.addresses
    )

    def make_metadata() -> MetadataCopy:
        from cometmq.broker.replication.metadata import MetadataCopy

        return MetadataCopy(
            role,
            client,
            topics=topics,
            groups=groups,
            offsets=offsets,
            delay=delay,
            store=store,
            find_master=registration.hurry,
            clock=clock,
        )

    def before_truncation(log_end: int) -> None:
        def ends(topic: str, queue_id: int) -> tuple[int, int]:
            end = store.end_at(topic, queue_id, log_end)
            return end, store.next_offset(topic, queue_id)

        delay.take_back(log_end)
        has_halves, has_others = half_queue.take_back(log_end), offsets.take_back(ends)
        if has_halves or has_others:
            offsets.persist(store.flush)

    def make_log_copy() -> LogCopy:
        if elected_log is not None:
            return elected_log.copy
        from cometmq.broker.replication.slave import LogCopy

        return LogCopy(role, store, settings, commit=synced_by, clock=clock)

    elected_log: EpochReplication | None = None
    elected: ElectedRole | None = None
    if role.is_elected:
        from cometmq.broker.failover.elected_role import elect_role

        elected_log, elected = elect_role(
            role,
            store,
            settings,
            topics,
            client,
            root=store_settings().root,
            commit=commit,
            sync_flush=store_settings().sync_flush,
            clock=clock,
            files=files,
            before_truncation=before_truncation,
        )
    master = Master(role, store, settings) if elected_log is None else elected_log.master
    waits = master.acknowledgements
    flow = FlowControl(lambda: flow_limits(settings()), clock=clock, role=role)
    waits.on_refusal = lambda: flow.replicas_changed(waits.refusal)
    log_copy = Deferred(make_log_copy)
    half_queue = HalfQueue(store, offsets, levels, clock=clock, cold_reads=cold_reads)
    half_queue.on_stored = lambda topic, size: stats.put(topic, HALF_QUEUE, 1, size)
    half_queue.on_read = partial(stats.got, HALF_GROUP)
    acting: ActingMaster | None = None
    if broker_settings.enable_slave_acting_master:
        from cometmq.broker.acting_master.service import ActingMaster

        acting = ActingMaster(
            role,
            client,
            settings,
            registration,
            hears_master=lambda seconds: log_copy.get().hears_master(seconds),
            delay=delay,
            halves=half_queue,
        )
    sources = _open_access(configuration, store, cold_reads, groups, offsets, clock, files)
    access = creations.access = None if sources is None else sources.control
    forwarding: Forwarding | None = None
    if role.is_elected:
        from cometmq.broker.forwarding import Forwarding

        forwarding = Forwarding(role, client, None if access is None else access.needs_account)
    return Parts(
        access=access,
        accounts=None if sources is None else sources.accounts,
        users=None if sources is None else sources.users,
        configuration=configuration,
        config_file=config_file,
        clock=clock,
        files=files,
        table_files=tuple(tables.values()),
        settings=settings,
        role=role,
        store=store,
        topics=topics,
        groups=groups,
        creations=creations,
        offsets=offsets,
        filters=filters,
        consumers=ConsumerRegistry(
            clock,
            filters=filters,
            on_change=ConsumerNotifier(settings).notify,
            silent_ms_max=silent_ms_max,
        ),
        producers=ProducerRegistry(clock, silent_ms_max=silent_ms_max),
        locks=locks,
        filter_servers=servers,
        held=held,
        cold_reads=cold_reads,
        cold_flow=cold_flow,
        levels=levels,
        delay=delay,
        half_queue=half_queue,
        validation=SendValidation(
            send_rules(broker_settings, store_settings(), address.host),
            topics,
            groups,
            levels,
            holds_locks=locks.holds_any,
            new_unique_key=UniqueIds().next,
            now_ms=clock.now_ms,
        ),
        flow=flow,
        commit=commit,
        durability=DurabilityWait(synced_by, waits),
        stats=stats,
        throughput=Throughput(stats, clock=clock),
        timings=Timings(),
        latencies=Latencies() if has_metrics(configuration) else None,
        registration=registration,
        metadata=Deferred(make_metadata),
        master=master,
        log_copy=log_copy,
        elected=elected,
        forwarding=forwarding,
        acting=acting,
        address=address,
    )


def _open_access(
    configuration: Configuration,
    store: MessageStore,
    cold_reads: ColdReads,
    groups: GroupTable,
    offsets: OffsetStore,
    clock: Clock,
    files: Files,
) -> AccessSources | None:
    """Read the accounts or users of the broker; None if the settings turn on neither."""
    settings, of_users = configuration[BrokerSettings], user_settings(configuration)
    if not settings.acl_enable and not of_users.checks_requests:
        warn_of_certificates(configuration[TlsSettings])
    if not settings.acl_enable and not of_users.keeps_users:
        return None
    from cometmq.broker.access.sources import open_sources

    def group_exists(name: str) -> bool:
        return name in groups or bool(offsets.topics_of(name))

    return open_sources(configuration, store, cold_reads, group_exists, clock, files)
