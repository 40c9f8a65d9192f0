"""The metrics of servers, which show what RocketMQ's tools show."""

from __future__ import annotations

import asyncio
import json
import re
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from cometmq.broker.app import Broker
from cometmq.broker.stats import metrics
from cometmq.cli.configurations import broker_configuration, namesrv_configuration
from cometmq.cli.server_options import ServerOptions
from cometmq.cli.servers import Standalone
from cometmq.client import (
    AdminClient,
    LocalState,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    StartFrom,
    TransactionProducer,
)
from cometmq.metrics.config import MetricsSettings
from cometmq.model.errors import ConfigError, ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.topic import TopicConfig
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.namesrv import BrokerHeartbeatRequest
from cometmq.remoting import RemotingClient
from cometmq.remoting.slices import Slices
from support.brokers.pairs import SLAVE, running_pairs
from support.checks.stopwatch import Stopwatch, slowness
from support.checks.waiting import until
from support.controllers.etcd_model import EtcdStore, Link, ModelEtcd
from support.controllers.memory_controllers import listening_controller
from support.processes.collector import collecting, labels_of, points_of
from support.wire.metrics_page import Scraped, http, readiness, scrape
from tools.generate import pages

TOPICS = 10_000
SERIES = 500
MESSAGES = 30
LAG = 5
STEP_S = 0.05
SAME = {
    "putmessage_times_total": "putMessageTimesTotal",
    "put_message_size_total": "putMessageSizeTotal",
    "msg_put_total_today_now": "msgPutTotalTodayNow",
    "commitlog_maxoffset": "commitLogMaxOffset",
    "commitlog_disk_ratio": "commitLogDiskRatio",
    "send_threadpoolqueue_capacity": "sendThreadPoolQueueCapacity",
    "earliest_message_timestamp": "earliestMessageTimeStamp",
}
"""Metrics of the exporter, and the keys of the runtime information with the same value."""
_SUFFIXES = """
    pmdt_0ms pmdt_0to10ms pmdt_10to50ms pmdt_50to100ms pmdt_100to200ms pmdt_200to500ms
    pmdt_500to1s pmdt_1to2s pmdt_2to3s pmdt_3to4s pmdt_4to5s pmdt_5to10s pmdt_10stomore
    msg_put_total_today_now msg_gettotal_today_now msg_puttotal_todaymorning
    msg_puttotal_yesterdaymorning msg_gettotal_todaymorning msg_gettotal_yesterdaymorning
    put_tps10 put_tps60 put_tps600 getfound_tps10 getfound_tps60 getfound_tps600
    getmiss_tps10 getmiss_tps60 getmiss_tps600 gettotal_tps10 gettotal_tps60 gettotal_tps600
    gettransfered_tps10 gettransfered_tps60 gettransfered_tps600
    put_message_size_total put_message_average_size putmessage_times_total
    putmessage_entire_time_max getmessage_entire_time_max put_latency_99 put_latency_999
    pagecache_lock_time_mills dispatch_behind_bytes dispatch_maxbuffer
    send_threadpoolqueue_capacity send_threadpool_queue_size
    send_threadpoolqueue_headwait_timemills pull_threadpoolqueue_capacity
    pull_threadpoolqueue_size pull_threadpoolqueue_headwait_timemills
    query_threadpool_queue_capacity query_threadpoolqueue_size
    query_threadpoolqueue_headwait_timemills
    commitlog_disk_ratio consumequeue_disk_ratio commitlogdir_capacity_free
    commitlogdir_capacity_total commitlog_minoffset commitlog_maxoffset
    remain_howmanydata_toflush remain_transientstore_buffer_numbs
    earliest_message_timestamp start_accept_sendrequest_time
"""
RUNTIME = "rocketmq_brokeruntime_"
RUNTIME_NAMES = {f"{RUNTIME}{suffix}" for suffix in _SUFFIXES.split()}
"""The metrics of the exporter's runtime information."""
COMMON = {"cluster", "node_type", "node_id"}
GROUP = COMMON | {"consumer_group", "topic", "is_retry", "is_system"}
STORE = COMMON | {"storage_type", "storage_medium"}
EXPECTED = {
    "rocketmq_processor_watermark": ("gauge", COMMON | {"processor"}),
    "rocketmq_broker_permission": ("gauge", COMMON),
    "rocketmq_topic_number": ("gauge", COMMON),
    "rocketmq_consumer_group_number": ("gauge", COMMON),
    "rocketmq_producer_connections": (
        "gauge",
        COMMON | {"language", "version", "protocol_type"},
    ),
    "rocketmq_consumer_connections": (
        "gauge",
        COMMON
        | {"consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"},
    ),
    "rocketmq_messages_in_total": ("counter", COMMON | {"topic", "message_type", "is_system"}),
    "rocketmq_throughput_in_total": ("counter", COMMON | {"topic", "message_type", "is_system"}),
    "rocketmq_messages_out_total": ("counter", GROUP),
    "rocketmq_throughput_out_total": ("counter", GROUP),
    "rocketmq_consumer_lag_messages": ("gauge", GROUP),
    "rocketmq_consumer_lag_latency": ("gauge", GROUP),
    "rocketmq_consumer_inflight_messages": ("gauge", GROUP),
    "rocketmq_consumer_ready_messages": ("gauge", GROUP),
    "rocketmq_consumer_queueing_latency": ("gauge", GROUP),
    "rocketmq_half_messages": ("gauge", COMMON),
    "rocketmq_message_size": ("histogram", COMMON | {"topic", "message_type", "is_system"}),
    "rocketmq_rpc_latency": (
        "histogram",
        COMMON | {"protocol_type", "request_code", "response_code", "is_long_polling", "result"},
    ),
    "rocketmq_topic_create_execution_time": (
        "histogram",
        COMMON | {"invocation_status", "is_system"},
    ),
    "rocketmq_consumer_group_create_execution_time": (
        "histogram",
        COMMON | {"invocation_status", "is_system"},
    ),
    "rocketmq_storage_size": ("gauge", STORE),
    "rocketmq_storage_flush_behind_bytes": ("gauge", STORE),
    "rocketmq_storage_dispatch_behind_bytes": ("gauge", STORE),
    "rocketmq_storage_message_reserve_time": ("gauge", STORE),
}
"""Type and labels of each metric of RocketMQ 5.3 that a broker shows."""
BROKER = COMMON | {"broker"}
OF_EXPORTER = {
    "rocketmq_producer_count": BROKER | {"group"},
    "rocketmq_group_count": COMMON | {"caddr", "localaddr", "group"},
    "rocketmq_producer_offset": BROKER | {"topic"},
    "rocketmq_topic_retry_offset": BROKER | {"topic"},
    "rocketmq_producer_tps": BROKER | {"topic"},
    "rocketmq_producer_message_size": BROKER | {"topic"},
    "rocketmq_consumer_tps": BROKER | {"topic", "group"},
    "rocketmq_consumer_message_size": BROKER | {"topic", "group"},
    "rocketmq_broker_tps": BROKER | {"brokerIP"},
    "rocketmq_broker_qps": BROKER | {"brokerIP"},
    "rocketmq_group_diff": COMMON | {"group", "topic", "countOfOnlineConsumers", "msgModel"},
    "rocketmq_consumer_offset": BROKER | {"topic", "group"},
    "rocketmq_group_get_latency_by_storetime": BROKER | {"topic", "group"},
}
"""Labels of each gauge of RocketMQ's exporter that a broker with one group shows."""


def documented() -> set[str]:
    """The metrics that the reference page lists."""
    page = (pages.ROOT / "docs/reference/metrics.md").read_text()
    return set(re.findall(r"`([a-z_]+)`", page.partition("## What RocketMQ has")[0]))


class Scene:
    """A name server and a broker with metrics, messages and a group that has a lag."""

    def __init__(self, servers: Standalone) -> None:
        assert servers.broker is not None
        assert servers.name_server is not None
        self.broker = servers.broker
        self.address = self.broker.address
        self.name_servers = servers.name_server.address

        self.port = self.broker.configuration[MetricsSettings].port


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    names = namesrv_configuration(ServerOptions(port=0), home=tmp_path)
    parts = broker_configuration(ServerOptions(port=0, store=tmp_path))
    parts.set({"fastPortEnable": "false", "metricsExporterType": "PROM"})
    parts.set({"metricsPromExporterPort": "0", "metricsSeriesMax": str(SERIES)})
    servers = Standalone(names, parts, None)
    try:
        await servers.start()
        yield Scene(servers)
    finally:
        await servers.stop()


async def test_a_broker_shows_what_tools_are_shown(scene: Scene) -> None:
    async with (
        Producer(scene.name_servers, group="shop") as producer,
        AdminClient(scene.name_servers) as admin,
        asyncio.timeout(90),
    ):
        await admin.create_topic("orders", queues=1, attributes={"message.type": "NORMAL"})
        await admin.create_group("billing")
        for number in range(MESSAGES):
            await producer.send(Message("orders", b"%d" % number))
        async with PullConsumer(
            scene.name_servers,
            group="billing",
            start_from=StartFrom.FIRST,
            subscriptions={"orders": "*"},
        ) as consumer:
            got: list[StoredMessage] = []
            while len(got) < MESSAGES:
                got += await consumer.poll()
            await consumer.commit()
            for number in range(LAG):
                await producer.send(Message("orders", b"%d" % number))
            found = await scrape(scene.port)
            stats = await admin.consume_stats("billing", "orders")
            connections = await admin.consumer_connections("billing")
            info = await admin.broker_runtime_info(scene.address)

    for name, (kind, labels) in EXPECTED.items():
        assert (name, found.kinds.get(name)) == (name, kind)
        assert (name, found.labels(name)) == (name, labels)
    assert {name for name in found.kinds if not name.startswith(RUNTIME)} <= documented()
    for name, labels in OF_EXPORTER.items():
        assert (name, found.kinds.get(name)) == (name, "gauge")
        assert (name, found.labels(name)) == (name, labels)
    shown = {"group": "billing", "topic": "orders"}
    assert found.value("rocketmq_producer_offset", topic="orders") == MESSAGES + LAG
    assert found.value("rocketmq_consumer_offset", **shown) == MESSAGES
    assert found.value("rocketmq_group_diff", **shown, countOfOnlineConsumers="1") == LAG
    assert 0 <= found.value("rocketmq_group_get_latency_by_storetime", **shown) < 60_000
    assert found.value("rocketmq_producer_count", group="shop") == 1
    of_topic = {"topic": "orders"}
    of_group = {"topic": "orders", "consumer_group": "billing", "is_retry": "false"}
    sent = found.value("rocketmq_messages_in_total", **of_topic, message_type="normal")
    assert sent == MESSAGES + LAG
    assert found.value("rocketmq_messages_out_total", **of_group) >= MESSAGES
    (offsets,) = stats.values()
    assert offsets.broker_offset - offsets.consumer_offset == LAG
    assert found.value("rocketmq_consumer_lag_messages", **of_group) == LAG
    ready = found.value("rocketmq_consumer_ready_messages", **of_group)
    assert ready + found.value("rocketmq_consumer_inflight_messages", **of_group) == LAG
    assert 0 <= found.value("rocketmq_consumer_lag_latency", **of_group) < 60_000
    (member,) = connections.connection_set
    language = str(member.language).lower()
    of_member = {"consumer_group": "billing", "language": language, "consume_mode": "pull"}
    assert found.value("rocketmq_consumer_connections", **of_member) == 1
    assert found.value("rocketmq_producer_connections", language=language) == 1
    of_member = {"caddr": member.client_addr, "localaddr": member.client_id, "group": "billing"}
    assert found.value("rocketmq_group_count", **of_member) == 1
    assert found.value("rocketmq_broker_permission") == 6
    assert found.value("cometmq_broker_is_master") == 1
    assert found.value("cometmq_store_failed") == 0
    assert found.value("cometmq_store_disk_full") == 0
    assert found.value("cometmq_producer_sessions_used_ratio") == 0
    assert found.value("cometmq_producer_sessions_full_total") == 0

    of_runtime = {name for name in found.kinds if name.startswith(RUNTIME)}
    assert of_runtime <= RUNTIME_NAMES
    assert len(RUNTIME_NAMES - of_runtime) <= 10  # the rates of 60 and 600 s are not known yet
    for suffix, key in SAME.items():
        assert found.value(f"rocketmq_brokeruntime_{suffix}") == float(info[key]), key


def randbytes(count: int) -> bytes:
    """Bytes that no client compresses to fewer."""
    return Random(1).randbytes(count)


async def test_clients_make_no_series_by_the_numbers_of_their_versions(scene: Scene) -> None:
    host, _, port = scene.address.rpartition(":")
    writers = []
    try:
        for version in (-1, -7, -(2**31)):
            reader, writer = await asyncio.open_connection(host, int(port))
            writers.append(writer)
            body = b'{"clientID":"c","producerDataSet":[{"groupName":"shop"}]}'
            head = {"code": RequestCode.HEART_BEAT, "flag": 0, "opaque": 1, "version": version}
            header = json.dumps(head).encode()
            writer.write(struct.pack(">ii", 4 + len(header) + len(body), len(header)))
            writer.write(header + body)
            assert await reader.readexactly(4)
        found = await scrape(scene.port)
    finally:
        for writer in writers:
            writer.close()
    assert found.value("rocketmq_producer_connections", version="other") == 3


async def test_sizes_are_counted_by_rocketmqs_buckets(scene: Scene) -> None:
    sizes = [0, 500, 2000, 600_000, 1_500_000, 3_000_000]
    async with Producer(scene.name_servers, group="shop") as producer:
        for size in sizes:
            await producer.send(Message("orders", randbytes(max(size, 1))))
        await producer.send_batch([Message("orders", randbytes(3000)) for _ in range(3)])
    found = await scrape(scene.port)

    counts = found.buckets("rocketmq_message_size", topic="orders")
    assert counts == [2, 2 + 1 + 3, 6, 7, 8, 9, 9]
    of_topic = found.value("rocketmq_throughput_in_total", topic="orders")
    assert found.value("rocketmq_message_size_sum", topic="orders") == of_topic


async def test_the_latencies_of_responses_are_counted_by_their_codes(scene: Scene) -> None:
    received: list[bytes] = []

    async def handle(message: StoredMessage) -> None:
        received.append(message.body)

    async with AdminClient(scene.name_servers) as admin:
        await admin.create_topic("orders", queues=1)
    async with (
        Producer(scene.name_servers, group="shop") as producer,
        PushConsumer(
            scene.name_servers,
            group="billing",
            handler=handle,
            start_from=StartFrom.FIRST,
            subscriptions={"orders": "*"},
        ),
        asyncio.timeout(90),
    ):
        for number in range(MESSAGES):
            await producer.send(Message("orders", b"%d" % number))
        held = scene.broker.features.pulling.held
        await until(lambda: len(received) == MESSAGES and "orders" in held.awaited)
        await producer.send(Message("orders", b"ends a held pull"))
        await producer.send_batch([Message("orders", b"%d" % number) for number in range(5)])
        await until(lambda: len(received) == MESSAGES + 1 + 5 and "orders" in held.awaited)
        assert len(held) > 0
        client = RemotingClient(name="test")
        try:
            for code in (RequestCode.GET_CONSUMER_CONNECTION_LIST, 31_999):
                await client.call(scene.address, code, timeout=60.0)
        finally:
            await client.close()
        found = await scrape(scene.port)

    def count(request: str, **labels: str) -> float:
        wanted = {"request_code": request, "protocol_type": "remoting", **labels}
        series = found.series["rocketmq_rpc_latency_count"].items()
        return sum(value for of, value in series if wanted.items() <= set(of))

    done = {"response_code": "success", "result": "success"}
    assert count("send_message_v2", **done, is_long_polling="false") == MESSAGES + 1
    assert count("send_batch_message", **done) == 1
    assert count("pull_message", **done, is_long_polling="true") >= 1
    assert count("get_consumer_connection_list", response_code="system_error") == 1
    assert count("_other") == 1
    # Tools take these figures for a backlog, and a held pull is none.
    assert found.value("rocketmq_processor_watermark", processor="pull") == 0
    assert found.value(f"{RUNTIME}pull_threadpoolqueue_size") == 0
    for request in ("send_message_v2", "send_batch_message"):
        buckets = found.buckets("rocketmq_rpc_latency", **done, request_code=request)
        assert len(buckets) == 10
        assert found.value("rocketmq_rpc_latency_sum", **done, request_code=request) > 0


async def test_transactions_are_counted_by_topic(scene: Scene) -> None:
    class Listener:
        async def execute(self, message: Message, argument: object) -> LocalState:
            return LocalState.COMMIT if message.body == b"yes" else LocalState.ROLLBACK

        async def check(self, message: StoredMessage) -> LocalState:
            return LocalState.UNKNOWN

    core = scene.broker.core
    async with TransactionProducer(
        scene.name_servers, group="shop", listener=Listener()
    ) as producer:
        for body in (b"yes", b"no", b"yes"):
            await producer.send_in_transaction(Message("orders", body))
        await until(
            lambda: (
                core.measures.timings.rollbacks["orders"] == 1
                and "orders" in core.measures.timings.commits
            )
        )
        await until(lambda: sum(core.measures.timings.commits["orders"].counts()) == 2)
    async with Producer(scene.name_servers, group="shop") as plain:
        await plain.send(Message("orders", b"later", delay_level=1))
    stats = core.stats
    scheduled = ("SCHEDULE_CONSUMER", "SCHEDULE_TOPIC_XXXX")
    await until(lambda: scheduled in dict(stats.topics_got()))
    stored = {
        topic: sum(cell.messages for cell in queues.values())
        for topic, queues in stats.topics_put()
    }
    assert stored == {
        "RMQ_SYS_TRANS_HALF_TOPIC": 3,
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": 3,
        "SCHEDULE_TOPIC_XXXX": 1,
        "orders": 3,
    }
    await scene.broker.features.transactions.half_queue.commit_offsets(3, Slices())
    got = {
        group: sum(cell.messages for cell in queues.values())
        for group, queues in stats.topics_got()
    }
    assert got[scheduled] == 1
    assert got["CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_OP_HALF_TOPIC"] == 3
    found = await scrape(scene.port)

    assert found.value("rocketmq_commit_messages_total", topic="orders") == 2
    assert found.value("rocketmq_rollback_messages_total", topic="orders") == 1
    assert found.buckets("rocketmq_finish_message_latency", topic="orders") == [2] * 7
    assert found.labels("rocketmq_finish_message_latency") == COMMON | {"topic"}
    assert found.value("rocketmq_half_messages") == 0


async def test_a_refused_creation_is_a_failure(scene: Scene) -> None:
    async with AdminClient(scene.name_servers) as admin:
        await admin.create_topic("orders", queues=1)
        with pytest.raises(ResponseError):
            await admin.create_topic("SCHEDULE_TOPIC_XXXX", queues=1)
    found = await scrape(scene.port)

    name = "rocketmq_topic_create_execution_time"
    assert found.buckets(name, invocation_status="success", is_system="false")[-1] == 1
    assert found.buckets(name, invocation_status="failure", is_system="true")[-1] == 1


async def test_retries_and_dead_letters_have_their_own_metrics(scene: Scene) -> None:
    core = scene.broker.core
    retry, dead = "%RETRY%billing", "%DLQ%billing"
    await core.topics.create_all(
        TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1)
        for name in ("orders", retry, dead)
    )
    async with Producer(scene.name_servers, group="shop") as producer:
        for name, count in ((retry, 2), (dead, 3)):
            queue = MessageQueue(name, core.settings().broker_name, 0)
            for _ in range(count):
                await producer.send(Message(name, b"1"), queue=queue)
            core.offsets.commit("billing", name, 0, 1)
    core.stats.sent_back("billing", "orders")
    found = await scrape(scene.port)

    of_retry, of_dead = ({"group": "billing", "topic": name} for name in (retry, dead))
    labels = COMMON | {"group", "topic", "countOfOnlineConsumers", "msgModel"}
    for metric, of, value in (
        ("rocketmq_group_retrydiff", of_retry, 1),
        ("rocketmq_group_dlqdiff", of_dead, 2),
    ):
        assert found.value(metric, **of, countOfOnlineConsumers="0", msgModel="1") == value
        assert found.labels(metric) == labels
    assert found.value("rocketmq_topic_retry_offset", topic=retry) == 2
    assert found.value("rocketmq_topic_dlq_offset", group="billing") == 3
    assert found.labels("rocketmq_topic_dlq_offset") == BROKER | {"group"}
    assert found.value("rocketmq_send_to_dlq_messages_total", consumer_group="billing") == 3
    assert (
        found.value("rocketmq_send_back_nums", group="billing", topic="orders") == 0
    )  # until the next sample
    assert found.labels("rocketmq_send_back_nums") == BROKER | {"topic", "group"}


async def test_a_master_shows_its_slaves_and_a_slave_its_master(tmp_path: Path) -> None:
    async with running_pairs(tmp_path) as pairs:
        served = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}
        master = await pairs.start("master", **served)
        address = f"127.0.0.1:{master.features.replication.master.port}"
        slave = await pairs.start("slave", **SLAVE, haMasterAddress=address, **served)
        async with Producer(pairs.name_server.address, group="shop") as producer:
            await producer.send(Message("orders", b"1"))
        end = master.core.store.written_to
        await until(
            lambda: [each.diff for each in master.features.replication.master.status()] == [0]
        )
        pages = [
            await scrape(broker.configuration[MetricsSettings].port) for broker in (master, slave)
        ]
        ports = [broker.configuration[MetricsSettings].port for broker in (master, slave)]
        states = [await readiness(port) for port in ports]
        await master.stop()
        async with asyncio.timeout(60):
            while (alone := await readiness(ports[1])) == "ready":
                await asyncio.sleep(0.01)

    assert states == ["ready", "ready"]
    assert alone == "the master sends nothing"
    (peer,) = (dict(of)["brokerIP"] for of in pages[0].series["cometmq_slave_in_sync"])
    assert pages[0].value("cometmq_slave_in_sync", brokerIP=peer, broker="pair") == 1
    assert pages[0].value("rocketmq_broker_commitlog_diff", brokerIP=peer) == 0
    assert "cometmq_slave_has_master" not in pages[0].kinds
    assert pages[1].value("cometmq_slave_has_master") == 1
    assert pages[1].value("cometmq_broker_is_master") == 0
    assert pages[1].value("rocketmq_brokeruntime_commitlog_maxoffset") == end
    assert "cometmq_slave_in_sync" not in pages[1].kinds


async def test_a_broker_shows_the_metrics_of_the_exporter_unless_told_otherwise(
    tmp_path: Path,
) -> None:
    async with running_pairs(tmp_path) as pairs:
        served = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}
        broker = await pairs.start("master", **served, metricsOfExporter="false")
        async with Producer(pairs.name_server.address, group="shop") as producer:
            await producer.send(Message("orders", b"1"))
        broker.core.offsets.commit("billing", "orders", 0, 0)
        found = await scrape(broker.configuration[MetricsSettings].port)

    assert OF_EXPORTER.keys().isdisjoint(found.kinds)
    assert [name for name in found.kinds if name.startswith(RUNTIME)] == []
    assert found.value("rocketmq_messages_in_total", topic="orders") == 1
    assert found.value("rocketmq_consumer_lag_messages", topic="orders") == 1


async def test_a_broker_sends_to_a_collector_what_it_shows_to_prometheus(tmp_path: Path) -> None:
    with collecting() as (received, port):
        async with running_pairs(tmp_path) as pairs:
            sent = {
                "metricsExporterType": "OTLP_GRPC",
                "metricsGrpcExporterTarget": f"http://127.0.0.1:{port}",
                "metricGrpcExporterIntervalInMills": "1000",
                "metricsLabel": "zone:a",
            }
            await pairs.start("master", **sent)
            async with Producer(pairs.name_server.address, group="shop") as producer:
                await producer.send(Message("orders", b"1"))
            known = len(received.requests)
            await asyncio.to_thread(received.wait_for, known + 2)
        newest = received.requests[-1]
    metrics = newest.resource_metrics[0].scope_metrics[0].metrics
    points = {metric.name: points_of(metric) for metric in metrics}
    assert {name for name in points if not name.startswith(RUNTIME)} <= documented()
    (stored,) = (
        point
        for point in points["rocketmq_messages_in_total"]
        if labels_of(point)["topic"] == "orders"
    )
    common = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "pair", "zone": "a"}
    assert common.items() <= labels_of(stored).items()
    assert stored.as_int == 1
    codes = {labels_of(point)["request_code"] for point in points["rocketmq_rpc_latency"]}
    assert "send_message_v2" in codes


async def test_a_broker_without_the_package_for_collectors_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    monkeypatch.delitem(sys.modules, "cometmq.metrics.otlp", raising=False)
    async with running_pairs(tmp_path) as pairs:
        with pytest.raises(ConfigError, match=r"pip install '\.\[otlp\]'"):
            await pairs.start(
                "master",
                metricsExporterType="OTLP_GRPC",
                metricsGrpcExporterTarget="http://127.0.0.1:1",
            )


async def test_times_that_are_not_read_in_time_are_left_out(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Producer(scene.name_servers, group="shop") as producer:
        await producer.send(Message("orders", b"1"))
    scene.broker.core.offsets.commit("billing", "orders", 0, 0)
    found = await scrape(scene.port)
    assert "rocketmq_consumer_lag_latency" in found.kinds

    monkeypatch.setattr(metrics, "TIMES_S", 0.0)
    found = await scrape(scene.port)
    assert found.value("rocketmq_consumer_lag_messages", topic="orders") == 1
    assert "rocketmq_consumer_lag_latency" not in found.kinds


async def test_a_page_of_ten_thousand_topics_is_made_in_slices(scene: Scene) -> None:
    core = scene.broker.core
    names = [f"t{number:05}" for number in range(TOPICS)]
    await core.topics.create_all(TopicConfig(topic_name=name) for name in names)
    for number, name in enumerate(names):
        core.stats.put(name, 0, 1, 100)
        core.stats.got(f"g{number}", name, 0, 1, 100)
        core.offsets.commit(f"g{number}", name, 0, 0)

    stopwatch = Stopwatch()
    stopwatch.restart()
    with stopwatch.measures(threading.current_thread()):
        _, body = await http(scene.port, b"GET /metrics HTTP/1.1\r\n\r\n")

    assert stopwatch.longest_s < STEP_S * slowness(), stopwatch.longest
    found = Scraped(body.decode())
    for metric in ("rocketmq_messages_in_total", "rocketmq_messages_out_total"):
        series = found.series[metric]
        assert sum(series.values()) == TOPICS
        assert len(series) == SERIES + 1
        assert found.value(metric, topic="_other") == TOPICS - SERIES
    assert len(found.series["rocketmq_consumer_lag_messages"]) == SERIES + 1


async def test_a_name_server_shows_its_brokers(tmp_path: Path) -> None:
    names = namesrv_configuration(ServerOptions(port=0), home=tmp_path)
    names.set({"metricsExporterType": "PROM", "metricsPromExporterPort": "0"})
    parts = broker_configuration(ServerOptions(port=0, store=tmp_path))
    parts.set({"fastPortEnable": "false", "brokerClusterName": "C"})
    servers = Standalone(names, parts, None)
    try:
        await servers.start()
        found = await scrape(names[MetricsSettings].port)
    finally:
        await servers.stop()

    assert set(found.kinds.values()) == {"gauge"}
    assert found.value("cometmq_namesrv_brokers", cluster="C", node_type="namesrv") == 1
    assert found.value("cometmq_namesrv_broker_names_without_master", cluster="C") == 0
    assert found.value("cometmq_namesrv_topics") > 0


async def test_a_controller_shows_its_role_and_brokers() -> None:
    settings = MetricsSettings(exporter="PROM", port=0)
    etcd, client = ModelEtcd(EtcdStore(time.monotonic)), RemotingClient(name="broker")
    etcd.link = Link.NO_REQUEST
    async with (
        asyncio.timeout(60),
        listening_controller(etcd, metrics=settings, lease_s=2) as controller,
    ):
        port = controller.configuration[MetricsSettings].port
        without = await readiness(port)
        etcd.link = Link.UP
        header = BrokerHeartbeatRequest(
            cluster_name="C", broker_name="b", broker_addr="10.0.0.1:10911", broker_id=1
        )
        code = RequestCode.BROKER_HEARTBEAT
        response = await client.call(controller.address, code, header, timeout=60)
        assert response.code == ResponseCode.SUCCESS
        while not controller.active.is_active:
            await asyncio.sleep(0.01)
        found, state = await scrape(port), await readiness(port)
    await client.close()

    assert (state, without) == ("ready", "no controller of the group is active")

    assert found.value("role", group="cometmq", address=controller.address) == 3
    assert found.value("cometmq_controller_has_active") == 1
    heartbeat = {"request_type": "CONTROLLER_BROKER_HEARTBEAT"}
    assert found.value("request_total", **heartbeat, request_handle_status="success") == 1
    assert found.buckets("request_latency", **heartbeat)[-1] == 1
    assert found.value("request_latency_sum", **heartbeat) > 0
    assert found.value("active_broker_num", cluster="C", broker_set="b") == 1


async def test_a_port_in_use_stops_the_start(scene: Scene, tmp_path: Path) -> None:
    parts = broker_configuration(
        ServerOptions(port=0, store=tmp_path / "second", namesrv=scene.name_servers)
    )
    parts.set({"fastPortEnable": "false", "metricsExporterType": "PROM"})
    parts.set({"metricsPromExporterPort": str(scene.port)})
    second = Broker(parts)
    try:
        with pytest.raises(ConfigError, match="metricsPromExporterPort sets another port"):
            await second.start()
    finally:
        await second.stop()
