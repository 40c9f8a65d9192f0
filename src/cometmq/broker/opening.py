"""Opens the store of a broker and reads its tables, before its features are built."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from cometmq.access.account_settings import signing_hooks
from cometmq.broker.address import broker_address
from cometmq.broker.clients.consumers import ConsumerNotifier, ConsumerRegistry
from cometmq.broker.clients.producers import ProducerRegistry
from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.config import BrokerSettings
from cometmq.broker.core import Core, table_file
from cometmq.broker.creations import CreationLimits
from cometmq.broker.filters.table import FilterTable
from cometmq.broker.groups.table import GroupTable
from cometmq.broker.offsets.offset_store import OffsetStore
from cometmq.broker.pop.config import PopSettings
from cometmq.broker.role import SLAVE, UNKNOWN_ID, Role
from cometmq.broker.static_topics.table import FILE as STATIC_TOPICS
from cometmq.broker.static_topics.table import StaticTopicTable
from cometmq.broker.stats.counters import BrokerStats
from cometmq.broker.stats.measures import Measures
from cometmq.broker.stats.throughput import Throughput
from cometmq.broker.timings import Timings
from cometmq.broker.topics.table import TopicTable
from cometmq.metrics.config import has_metrics
from cometmq.model.errors import StoreError
from cometmq.remoting import (
    RemotingClient,
    RemotingSettings,
    TlsClientSettings,
    TlsSettings,
    outgoing_context,
)
from cometmq.remoting.client import ConnectionPolicy
from cometmq.remoting.features import Deferred
from cometmq.remoting.latencies import Latencies
from cometmq.store import MessageStore, StoreSettings, kept_log_file_bytes
from cometmq.store.config_files import JsonFile
from cometmq.store.queues.batch_topics import holds_batches
from cometmq.system.clock import Clock
from cometmq.system.configuration import Configuration
from cometmq.system.files import Files

if TYPE_CHECKING:
    from cometmq.broker.cold_flow_control import ColdFlowControl

log = logging.getLogger(__name__)

TABLES = ("topics", STATIC_TOPICS, "subscriptionGroup", "consumerOffset", "consumerFilter")
"""The files of the tables, beside the store."""


def client_of(configuration: Configuration) -> RemotingClient:
    """Return what sends the requests of a broker to other servers.

    Raises:
        ConfigError: a TLS file, or the account that signs the requests, cannot be used.
    """
    return RemotingClient(
        configuration[RemotingSettings],
        tls=outgoing_context(configuration[TlsClientSettings], configuration[TlsSettings]),
        name="broker-client",
        hooks=signing_hooks(configuration[BrokerSettings].inner_client_credentials),
        policy=ConnectionPolicy(close_silent=True),
    )


def open_core(
    configuration: Configuration, *, client: RemotingClient, clock: Clock, files: Files
) -> Core:
    """Open the store, and read the tables.

    Args:
        configuration: all settings.
        client: sends requests to other servers.
        clock, files: time and disk.

    Raises:
        ConfigError: ``brokerIP1`` is a name that cannot be resolved.
        StoreError: the store or one of the tables beside it cannot be opened.
    """
    settings = configuration.reader_of(BrokerSettings)
    _keep_log_file_size(configuration, files)
    role = _first_role(settings())
    tables = {name: table_file(configuration, files, name) for name in TABLES}
    creations = CreationLimits(settings)
    topics = TopicTable(settings, tables["topics"], clock=clock, creations=creations)
    static_topics = StaticTopicTable(tables[STATIC_TOPICS], settings().broker_name, clock=clock)
    groups = GroupTable(settings, tables["subscriptionGroup"], clock=clock, creations=creations)
    filters = FilterTable(settings, tables["consumerFilter"], clock=clock)
    store = MessageStore(
        configuration[StoreSettings],
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
        pop_settings = configuration[PopSettings]
        topics.load(store, [pop_settings.revive_topic(settings().broker_cluster_name)])
        static_topics.load(topics)
        groups.load()
        # A slave may have messages of a topic in its log that it has not copied yet.
        store.expect_topics(
            lambda name: (
                topics.was_lost or name in topics or topics.is_system(name) or role.is_slave
            ),
            lambda name: (
                (config := topics.get(name)) is not None and holds_batches(config.attributes)
            ),
        )
        store.copy_only(role.is_slave)
        offsets = _read_offsets(role, store, tables["consumerOffset"], clock)
        stats = BrokerStats(
            settings().broker_cluster_name, clock=clock, is_system_topic=topics.is_system
        )
        silent_ms_max = settings().channel_expired_timeout_ms
        core = Core(
            configuration=configuration,
            settings=settings,
            clock=clock,
            files=files,
            client=client,
            address=broker_address(settings()),
            role=role,
            store=store,
            cold_reads=_cold_reads(configuration, settings),
            topics=topics,
            static_topics=static_topics,
            groups=groups,
            offsets=offsets,
            filters=filters,
            consumers=ConsumerRegistry(
                clock,
                filters=filters,
                on_change=ConsumerNotifier(settings).notify,
                silent_ms_max=silent_ms_max,
            ),
            producers=ProducerRegistry(clock, silent_ms_max=silent_ms_max),
            stats=stats,
            measures=Measures(
                throughput=Throughput(stats, clock=clock),
                timings=Timings(),
                latencies=Latencies() if has_metrics(configuration) else None,
            ),
            tables=tuple(tables.values()),
        )
    except BaseException:
        store.close()
        raise
    core.role_changed()
    return core


async def allocate_segment(core: Core) -> None:
    """Allocate the first file of the log, if there is none."""
    if not core.role.is_slave:  # the log of a slave may begin with another file
        core.store.allocate_first_segment()
    try:
        await asyncio.get_running_loop().run_in_executor(None, core.store.wait_for_segment)
    except StoreError as problem:  # sends wait for the file, or are refused
        log.warning("cannot allocate the first commit-log file: %s", problem)


def _keep_log_file_size(configuration: Configuration, files: Files) -> None:
    """Put the size that the log's files have into the settings."""
    settings = configuration[StoreSettings]
    kept = kept_log_file_bytes(settings, files)
    if kept != settings.commit_log_file_bytes:
        log.info(
            "log files keep their size bytes=%d folder=%s setting=%d",
            *(kept, settings.commit_log, settings.commit_log_file_bytes),
        )
        configuration.set({"mappedFileSizeCommitLog": str(kept)})


def _first_role(settings: BrokerSettings) -> Role:
    """Return the role with which a broker starts: a slave of none, if a controller decides it."""
    if settings.enable_controller_mode:
        return Role(SLAVE, UNKNOWN_ID, is_elected=True)
    return Role(settings.broker_role, settings.broker_id, ha_address=settings.ha_master_address)


def _read_offsets(role: Role, store: MessageStore, file: JsonFile, clock: Clock) -> OffsetStore:
    offsets = OffsetStore(file, clock=clock)
    offsets.next_offset = store.next_offset
    offsets.may_lack_messages = lambda: bool(store.dispatch_backlog_bytes) or role.is_slave
    offsets.load(None if offsets.may_lack_messages() else store.bounds)
    return offsets


def _cold_reads(configuration: Configuration, settings: Callable[[], BrokerSettings]) -> ColdReads:
    stored = configuration.reader_of(StoreSettings)

    @Deferred
    def flow() -> ColdFlowControl:
        from cometmq.broker.cold_flow_control import ColdFlowControl, limits_of

        return ColdFlowControl(lambda: limits_of(settings()))

    return ColdReads(
        flow,
        lambda: settings().cold_data_flow_control_enable,
        reads_ahead=lambda: stored().read_ahead,
    )
