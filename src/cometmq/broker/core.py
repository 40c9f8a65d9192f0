"""The parts that all features of a broker share: the store, the role, the settings and the tables.

It is opened first and closed last. What one feature makes, and others may use, is an attribute of
that feature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from cometmq.store import StoreSettings
from cometmq.store.config_files import JsonFile
from cometmq.system.configuration import Configuration
from cometmq.system.files import Files

if TYPE_CHECKING:
    from cometmq.broker.address import BrokerAddress
    from cometmq.broker.clients.consumers import ConsumerRegistry
    from cometmq.broker.clients.producers import ProducerRegistry
    from cometmq.broker.cold_reads import ColdReads
    from cometmq.broker.config import BrokerSettings
    from cometmq.broker.filters.table import FilterTable
    from cometmq.broker.groups.table import GroupTable
    from cometmq.broker.offsets.offset_store import OffsetStore
    from cometmq.broker.role import Role
    from cometmq.broker.static_topics.table import StaticTopicTable
    from cometmq.broker.stats.counters import BrokerStats
    from cometmq.broker.stats.measures import Measures
    from cometmq.broker.topics.table import TopicTable
    from cometmq.remoting import RemotingClient
    from cometmq.store import MessageStore
    from cometmq.system.clock import Clock

SLAVE_MEMORY_LESS = 10
"""Percent of the memory by which a slave lowers ``accessMessageInMemoryMaxRatio``."""


class Core(msgspec.Struct, frozen=True):
    """The parts that all features of one broker share."""

    configuration: Configuration
    settings: Callable[[], BrokerSettings]
    clock: Clock
    files: Files
    client: RemotingClient
    """Sends requests to other servers."""
    address: BrokerAddress
    """The address at which clients and name servers reach this broker, without the port."""
    role: Role
    store: MessageStore
    cold_reads: ColdReads
    topics: TopicTable
    static_topics: StaticTopicTable
    groups: GroupTable
    offsets: OffsetStore
    filters: FilterTable
    consumers: ConsumerRegistry
    producers: ProducerRegistry
    stats: BrokerStats
    measures: Measures
    tables: tuple[JsonFile, ...]
    """The files of the tables."""

    def table_file(self, name: str) -> JsonFile:
        """Return a file beside the files of the tables."""
        return table_file(self.configuration, self.files, name)

    def persist_offsets(self) -> None:
        """Write the committed offsets, after the messages that they count.

        Raises:
            StoreError: the disk refused.
        """
        self.offsets.persist(self.store.flush)

    def role_changed(self) -> None:
        """Set whether the store belongs to a master or to a slave."""
        self.store.copy_only(self.role.is_slave)
        self.assume_in_memory()

    def assume_in_memory(self) -> None:
        """Tell the store which messages are in memory, which decides what slaves deliver.

        A slave assumes less than its master, so that a consumer which reads a backlog does not
        change between the two all the time. Source: BrokerController, RocketMQ 5.3.
        """
        ratio = self.configuration[StoreSettings].memory_ratio
        less = SLAVE_MEMORY_LESS if self.role.is_slave else 0
        self.store.assume_in_memory(max(0, ratio - less))

    def close(self) -> None:
        """Close the files of the tables and the store, once the features have written theirs."""
        for file in self.tables:
            file.close()
        self.store.close()


def table_file(configuration: Configuration, files: Files, name: str) -> JsonFile:
    """Return the file of a table beside the store."""
    return JsonFile(configuration[StoreSettings].root / "config" / f"{name}.json", files)
