"""The parts of a broker that tests of handlers and services share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.access.control import AccessControl
from cometmq.broker.clients.consumers import ConsumerRegistry
from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.config import BrokerSettings
from cometmq.broker.core import Core
from cometmq.broker.filters.subscriptions import Subscription
from cometmq.broker.filters.table import FilterTable
from cometmq.broker.groups.table import GroupTable
from cometmq.broker.offsets.offset_store import OffsetStore
from cometmq.broker.pulling.handler import PullHandler
from cometmq.broker.pulling.long_polling import HeldPulls
from cometmq.broker.role import Role
from cometmq.broker.sending.validation import SendRules, SendValidation
from cometmq.broker.stats.counters import BrokerStats
from cometmq.broker.topics.table import TopicTable
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.subscription import parse_tag_expression
from cometmq.remoting import Peer
from cometmq.store import MessageStore, StoreSettings
from cometmq.store.config_files import JsonFile
from cometmq.system.files import Files
from support.brokers.cores import core_of
from support.brokers.timers import timer_routing
from support.checks.manual_clock import ManualClock


class Tables:
    """Topics, groups and offsets of one broker, and settings that a test may replace."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self.clock = ManualClock()
        self.settings = BrokerSettings(broker_name="b", broker_ip1="10.0.0.1")
        self.role = Role()
        self.topics = TopicTable(lambda: self.settings, self.file("topics"), clock=self.clock)
        self.groups = GroupTable(
            lambda: self.settings, self.file("subscriptionGroup"), clock=self.clock
        )
        self.offsets = OffsetStore(self.file("consumerOffset"), clock=self.clock)
        self.filters = FilterTable(
            lambda: self.settings, self.file("consumerFilter"), clock=self.clock
        )
        self.topics.load()
        self.groups.load()

    def file(self, name: str) -> JsonFile:
        return JsonFile(self.config / f"{name}.json", Files())

    def core(self, store: MessageStore, **parts: Any) -> Core:
        return core_of(
            lambda: self.settings,
            store,
            self.clock,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            filters=self.filters,
            role=self.role,
            **parts,
        )

    def validation(
        self, rules: SendRules, levels: str | None = None, **parts: Any
    ) -> SendValidation:
        """The validation of sends; no group holds a lock, and the last queue is chosen."""
        known = {
            "holds_locks": lambda group: False,
            "new_unique_key": lambda: "FRESH",
            "now_ms": self.clock.now_ms,
            "queue_chance": lambda count: count - 1,
        }
        timers = timer_routing(self.clock, levels)
        return SendValidation(rules, self.topics, self.groups, timers, **known | parts)

    def topic(self, name: str, *, queues: int = 1, perm: int = 6) -> TopicConfig:
        config = TopicConfig(
            topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm
        )
        self.topics.put_now([config])
        return config

    def group(self, name: str, **changes: Any) -> SubscriptionGroupConfig:
        config = SubscriptionGroupConfig(group_name=name, **changes)
        self.groups.put_now([config])
        return config


class Pulls:
    """The part of a broker that handles pulls."""

    def __init__(
        self,
        tables: Tables,
        store: MessageStore,
        *,
        held_max: int = 1_000,
        reads: ColdReads | None = None,
        access: AccessControl | None = None,
    ) -> None:
        self.consumers = ConsumerRegistry(tables.clock, filters=tables.filters)
        self.held = HeldPulls(held_max=held_max)
        self.reads = reads or ColdReads()
        self.stats = BrokerStats("C", clock=tables.clock, is_system_topic=lambda _: False)
        core = tables.core(store, consumers=self.consumers, stats=self.stats, cold_reads=self.reads)
        self.handler = PullHandler(core, self.held, access)
        self.consumers.on_changed_expressions = self.handler.changed_expressions

    def register(
        self, connection: Peer, *subscriptions: SubscriptionData, model: str = "CLUSTERING"
    ) -> None:
        """Register a heartbeat of the only member of group g."""
        self.consumers.register(
            connection,
            "c",
            "g",
            kind="CONSUME_PASSIVELY",
            model=model,
            consume_from="",
            subscriptions=[Subscription(data) for data in subscriptions],
        )


def by_tags(expression: str) -> SubscriptionData:
    """The subscription to topic T by a tag expression, in version 5."""
    codes = sorted(parse_tag_expression(expression).codes)
    return SubscriptionData(topic="T", sub_string=expression, code_set=codes, sub_version=5)


async def nothing_else(_: str) -> None:
    """Nothing but its settings is known of a topic that a test deletes."""


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path / "config")


def open_store(
    root: Path,
    tables: Tables,
    *,
    filters: FilterTable | None = None,
    files: Files | None = None,
    confirms: bool = False,
    **changes: object,
) -> MessageStore:
    """A store with small files, on the tables' clock; reads see what is written."""
    small = {
        "flush_disk_type": "ASYNC_FLUSH",
        "commit_log_file_bytes": 1 << 20,
        "consume_queue_file_bytes": 20_000,
        "index_slots": 100,
        "index_entries": 1000,
        "segment_wait_ms": 60_000,
    }
    settings = StoreSettings(root=root, **(small | changes))  # type: ignore[arg-type]
    store = MessageStore(settings, clock=tables.clock, files=files, confirms=confirms)
    if filters is not None:
        store.compute_bitmaps(filters.bitmap_of)
    store.open()
    return store


@pytest.fixture
async def broker(request: pytest.FixtureRequest, tables: Tables, store: MessageStore) -> Any:
    """The part of a broker that the test's module has as its class ``Broker``."""
    return request.module.Broker(tables, store)


@pytest.fixture
def store(tmp_path: Path, tables: Tables) -> Iterator[MessageStore]:
    opened = open_store(tmp_path / "store", tables)
    yield opened
    opened.close()
