"""The core of a broker from the parts that a test has made."""

from __future__ import annotations

from collections.abc import Callable

from cometmq.broker.address import BrokerAddress
from cometmq.broker.clients.consumers import ConsumerRegistry
from cometmq.broker.clients.producers import ProducerRegistry
from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.config import BrokerSettings
from cometmq.broker.core import Core
from cometmq.broker.filters.table import FilterTable
from cometmq.broker.groups.table import GroupTable
from cometmq.broker.offsets.offset_store import OffsetStore
from cometmq.broker.role import Role
from cometmq.broker.static_topics.table import FILE, StaticTopicTable
from cometmq.broker.stats.counters import BrokerStats
from cometmq.broker.stats.measures import Measures
from cometmq.broker.stats.throughput import Throughput
from cometmq.broker.timings import Timings
from cometmq.broker.topics.table import TopicTable
from cometmq.remoting import RemotingClient
from cometmq.store import MessageStore
from cometmq.store.config_files import JsonFile
from cometmq.system.clock import Clock
from cometmq.system.configuration import Configuration
from cometmq.system.files import Files


def core_of(
    settings: Callable[[], BrokerSettings],
    store: MessageStore,
    clock: Clock,
    *,
    topics: TopicTable,
    groups: GroupTable,
    offsets: OffsetStore,
    filters: FilterTable | None = None,
    consumers: ConsumerRegistry | None = None,
    producers: ProducerRegistry | None = None,
    stats: BrokerStats | None = None,
    role: Role | None = None,
    cold_reads: ColdReads | None = None,
) -> Core:
    """Parts that are not given are made here; files of theirs are in the folder of the store."""
    files = Files()
    filter_file = JsonFile(store.settings.root / "config" / "consumerFilter.json", files)
    mapping_file = JsonFile(store.settings.root / "config" / f"{FILE}.json", files)
    counters = stats or BrokerStats("C", clock=clock, is_system_topic=topics.is_system)
    return Core(
        configuration=Configuration.of(settings(), store.settings),
        settings=settings,
        clock=clock,
        files=files,
        client=RemotingClient(),
        address=BrokerAddress("10.0.0.1", "10.0.0.1"),
        role=role or Role(),
        store=store,
        cold_reads=cold_reads or ColdReads(),
        topics=topics,
        static_topics=StaticTopicTable(mapping_file, settings().broker_name, clock=clock),
        groups=groups,
        offsets=offsets,
        filters=filters or FilterTable(settings, filter_file, clock=clock),
        consumers=consumers or ConsumerRegistry(clock),
        producers=producers or ProducerRegistry(clock),
        stats=counters,
        measures=Measures(Throughput(counters, clock=clock), Timings(), None),
        tables=(),
    )
