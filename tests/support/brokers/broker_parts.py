"""The parts of a broker without its sockets: a real store, tables and members."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cometmq.broker.clients.connections import ConnectionsHandler
from cometmq.broker.clients.consumers import ConsumerRegistry
from cometmq.broker.clients.producers import ProducerRegistry
from cometmq.broker.clients.relay import RelayHandler
from cometmq.broker.config import BrokerSettings
from cometmq.broker.delay.handler import DelayOffsetsHandler
from cometmq.broker.filters.subscriptions import Subscription
from cometmq.broker.filters.table import FilterTable
from cometmq.broker.groups.table import GroupTable
from cometmq.broker.offsets.offset_store import OffsetStore
from cometmq.broker.queries.handler import QueryHandler
from cometmq.broker.replication.master import Master
from cometmq.broker.replication.slave import LogCopy
from cometmq.broker.replication.slave_connection import SlaveConnection
from cometmq.broker.replication.status import StatusHandler
from cometmq.broker.role import Role
from cometmq.broker.stats.counters import BrokerStats
from cometmq.broker.stats.group_lag import GroupLags
from cometmq.broker.stats.handler import BrokerStatsHandler, GroupStatsHandler, TopicStatsHandler
from cometmq.broker.stats.runtime_info import DelayLevelOffsets, RuntimeInfo
from cometmq.broker.timers.figures import TimerFigures
from cometmq.broker.topics.table import TopicTable
from cometmq.broker.transactions.half_queue import HalfMessageFigures
from cometmq.model.topic import TopicConfig
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.protocol.hashing import java_hash
from cometmq.remoting import Connection, RequestHandler
from cometmq.remoting.features import Deferred
from cometmq.store import MessageStore, StoreSettings
from cometmq.store.config_files import JsonFile
from cometmq.system.files import Files
from support.brokers.cores import core_of
from support.checks.manual_clock import ManualClock
from support.stores.small_stores import put
from support.wire.memory_link import link

ADDRESS = "10.0.0.1:10911"


class BrokerParts:
    """The parts, and requests to them.

    Args:
        folder: of the store.
        has_bitmaps: whether messages get extension units with bit maps.
    """

    def __init__(self, folder: Path, *, has_bitmaps: bool = False) -> None:
        files, self.clock = Files(), ManualClock()
        settings = BrokerSettings(broker_name="broker-a", enable_calc_filter_bit_map=has_bitmaps)
        self.store = MessageStore(
            StoreSettings(
                root=folder,
                commit_log_file_bytes=2**20,
                index_slots=100,
                index_entries=400,
                flush_disk_type="ASYNC_FLUSH",
                consume_queue_ext_enabled=has_bitmaps,
            ),
            clock=self.clock,
        )
        config = folder / "config"
        self.filters = FilterTable(
            lambda: settings, JsonFile(config / "consumerFilter.json", files), clock=self.clock
        )
        self.store.compute_bitmaps(self.filters.bitmap_of)
        self.store.open()
        self.topics = TopicTable(
            lambda: settings, JsonFile(config / "topics.json", files), clock=self.clock
        )
        self.groups = GroupTable(
            lambda: settings, JsonFile(config / "subscriptionGroup.json", files), clock=self.clock
        )
        self.consumers = ConsumerRegistry(self.clock, filters=self.filters)
        self.producers = ProducerRegistry(self.clock)
        self.offsets = OffsetStore(
            JsonFile(config / "consumerOffset.json", files), clock=self.clock
        )
        self.stats = BrokerStats(
            "DefaultCluster", clock=self.clock, is_system_topic=self.topics.is_system
        )
        self.role = Role()
        self.delay_levels: dict[int, DelayLevelOffsets] = {}
        self.half_messages: HalfMessageFigures | None = None
        self._settings = settings
        self.handlers = self._routes()

    def _routes(self) -> Mapping[int, RequestHandler]:
        settings = self._settings
        core = core_of(
            lambda: settings,
            self.store,
            self.clock,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            filters=self.filters,
            consumers=self.consumers,
            producers=self.producers,
            stats=self.stats,
            role=self.role,
        )
        lags = GroupLags(core)
        runtime = RuntimeInfo(
            core,
            waiting_sends=lambda: (0, 0.0),
            delay_levels=lambda: self.delay_levels,
            timers=TimerFigures,
            half_messages=lambda: self.half_messages,
            sessions=lambda: None,
            refusal=str,
            booted_ms=self.clock.now_ms(),
        )
        query = QueryHandler(core)
        broker = BrokerStatsHandler(core, runtime)
        topics = TopicStatsHandler(core, lags)
        groups = GroupStatsHandler(core, lags, ADDRESS)
        connections = ConnectionsHandler(core)
        relay = RelayHandler(core)
        return {
            RequestCode.QUERY_MESSAGE: query.by_key,
            RequestCode.VIEW_MESSAGE_BY_ID: query.by_offset,
            RequestCode.QUERY_CONSUME_QUEUE: query.queue_entries,
            RequestCode.GET_BROKER_RUNTIME_INFO: broker.runtime_info,
            RequestCode.VIEW_BROKER_STATS_DATA: broker.counter,
            RequestCode.GET_BROKER_HA_STATUS: StatusHandler(
                core,
                Master(self.role, self.store, BrokerSettings, connect=SlaveConnection),
                Deferred(
                    lambda: LogCopy(
                        self.role, self.store, BrokerSettings, commit=None, clock=self.clock
                    )
                ),
            ).status,
            RequestCode.GET_ALL_DELAY_OFFSET: DelayOffsetsHandler(self.delay_offsets).all,
            RequestCode.GET_TOPIC_STATS_INFO: topics.stats_of_topic,
            RequestCode.GET_CONSUME_STATS: groups.consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: groups.all_consume_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: groups.time_spans,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: groups.groups_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: groups.topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: groups.subscription,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: connections.of_consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: connections.of_producers,
            RequestCode.GET_ALL_PRODUCER_INFO: connections.of_all_producers,
            RequestCode.GET_CONSUMER_RUNNING_INFO: relay.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: relay.consume_directly,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: relay.consumer_status,
        }

    def delay_offsets(self) -> tuple[dict[int, int], DataVersion]:
        """What was delivered of each delay level, as a slave gets it."""
        numbers = {level: place.delivered for level, place in self.delay_levels.items()}
        return numbers, DataVersion(counter=7, timestamp=self.clock.now_ms())

    # --- what happened before -----------------------------------------------------------------

    def make_topic(self, name: str = "T", queues: int = 1, **changes: Any) -> str:
        """Create a topic."""
        config = TopicConfig(
            topic_name=name, read_queue_nums=queues, write_queue_nums=queues, **changes
        )
        self.topics.put_now([config])
        return name

    def put(self, topic: str, body: bytes, *, queue_id: int = 0, **properties: str) -> int:
        """Store a message one second after the last one; returns its place in the log."""
        self.clock.advance(1000)
        born_ms = self.clock.now_ms()
        stored = put(self.store, body, topic, queue_id, properties, born_time_ms=born_ms)
        self.stats.put(topic, queue_id, 1, stored.size_bytes)
        return int(stored.log_offset)

    def join(
        self,
        group: str,
        client_id: str,
        *subscriptions: str,
        handlers: Mapping[int, RequestHandler] | None = None,
    ) -> Connection:
        """Bring a consumer online; returns its side of the connection."""
        server, client = link(client=handlers, on_close=self.consumers.connection_closed)
        server.language, server.version = "JAVA", 479
        self.consumers.register(
            server,
            client_id,
            group,
            kind="CONSUME_PASSIVELY",
            model="CLUSTERING",
            consume_from="CONSUME_FROM_LAST_OFFSET",
            subscriptions=[Subscription(_subscription(topic)) for topic in subscriptions],
        )
        return client

    def produce(self, group: str, client_id: str) -> None:
        """Bring a producer online."""
        server, _ = link(on_close=self.producers.connection_closed)
        server.language, server.version = "JAVA", 479
        self.producers.register(server, client_id, group)

    # --- requests -----------------------------------------------------------------------------

    async def ask(self, code: int, **fields: object) -> Command:
        """Send a request over a connection of its own; returns the answer."""
        _, client = link(self.handlers)
        texts = {name: _text(value) for name, value in fields.items()}
        return await client.call(code, fields=texts, timeout=60.0)

    async def ask_json(self, code: int, **fields: object) -> Any:
        """The body of a request's answer, which must be a success."""
        answer = await self.ask(code, **fields)
        assert answer.code == 0, answer
        return fastjson.loads(answer.body)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _subscription(expression: str) -> SubscriptionData:
    """``T`` for all messages of a topic, ``T:a`` for those with tag a."""
    topic, _, tag = expression.partition(":")
    return SubscriptionData(
        topic=topic,
        sub_string=tag or "*",
        tags_set=[tag] if tag else [],
        code_set=[java_hash(tag)] if tag else [],
        sub_version=1,
    )
