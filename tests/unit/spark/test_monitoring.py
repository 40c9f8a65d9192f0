"""Metrics of streaming queries on a page."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

from cometmq.metrics.config import MetricsSettings
from cometmq.metrics.page import TextPage
from cometmq.spark.compat import passes_limits
from cometmq.spark.monitoring import LABELS, Lag, StreamMetrics, lag_of
from cometmq.spark.offsets import QueueKey
from cometmq.spark.sink.counts import Sent, add_counts
from support.checks.manual_clock import ManualClock
from support.processes.collector import collecting, labels_of, points_of
from support.wire.metrics_page import Scraped

A, A1, B = QueueKey("t", "a", 0), QueueKey("t", "a", 1), QueueKey("t", "b", 0)


def page_of(metrics: StreamMetrics) -> Scraped:
    page = TextPage(LABELS, 100)
    asyncio.run(metrics.collect(page))
    return Scraped(b"".join(page.parts()).decode())


def test_a_page_has_lag_losses_and_brokers_that_are_away() -> None:
    clock = ManualClock()
    now_ms = clock.now_ms()
    metrics = StreamMetrics(clock=clock)
    first = Lag("q", 0, {A: 9, B: 1}, rows=3)
    second = Lag(
        "q",
        1,
        {A: 5, A1: 2, B: 1},
        next_ms={A: now_ms - 1_000, A1: now_ms - 4_000},
        away={B: now_ms - 60_000},
        lost={A: 7},
        rows=4,
    )
    metrics.note("run", first)
    metrics.note("run", second)
    clock.advance(500)
    page = page_of(metrics)

    assert page.value("cometmq_spark_batches_total", query="q") == 2
    assert page.value("cometmq_spark_rows_total", query="q") == 7
    on_a = {"query": "q", "topic": "t", "broker": "a"}
    on_b = on_a | {"broker": "b"}
    assert page.value("cometmq_spark_source_away_seconds", **on_b) == 60.5
    assert page.value("cometmq_spark_source_away_seconds", **on_a) == 0
    if passes_limits():
        assert page.value("cometmq_spark_source_lag_messages", **on_a) == 7
        assert page.value("cometmq_spark_source_lag_seconds", **on_a) == 4.5
        assert page.value("cometmq_spark_source_lag_seconds", **on_b) == 0
        assert page.value("cometmq_spark_source_lost_messages_total", **on_a) == 7


def test_a_page_has_the_counts_of_sinks(tmp_path: Path) -> None:
    add_counts(str(tmp_path), "job-1", Sent(10, 2_000, 3, 1))
    page = page_of(StreamMetrics(counts_folder=tmp_path))

    for name, value in {
        "rows": 10,
        "bytes": 2_000,
        "requests": 3,
        "retries": 1,
        "commits": 1,
    }.items():
        assert page.value(f"cometmq_spark_sink_{name}_total", job="job-1") == value


def test_counts_that_cannot_be_read_leave_the_other_metrics(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("strange")
    metrics = StreamMetrics(counts_folder=tmp_path)
    metrics.note("run", Lag("q", 0, {A: 9}, rows=3))

    assert page_of(metrics).value("cometmq_spark_rows_total", query="q") == 3


def test_the_endpoint_serves_while_the_listener_is_open() -> None:
    with StreamMetrics(MetricsSettings(exporter="PROM", port=0)) as metrics:
        metrics.note("run", Lag("q", 0, {A: 9}, rows=3))
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics") as response:
            text = response.read().decode()

    assert Scraped(text).value("cometmq_spark_rows_total", query="q", node_type="spark") == 3


def test_a_collector_of_opentelemetry_gets_the_metrics() -> None:
    with collecting() as (collector, port):
        target = f"http://127.0.0.1:{port}"
        settings = MetricsSettings(
            exporter="OTLP_GRPC",
            grpc_target=target,
            grpc_interval_ms=1_000,
            label_text="job_name:x",
        )
        with StreamMetrics(settings) as metrics:
            metrics.note("run", Lag("q", 0, {A: 9}, rows=3))
            collector.wait_for(1)

    (point,) = points_of(collector.metrics()["cometmq_spark_rows_total"])
    assert point.as_int == 3
    assert labels_of(point) == {"node_type": "spark", "job_name": "x", "query": "q"}


# --- lag ----------------------------------------------------------------------------------------


def topics(**queues: int) -> str:
    return json.dumps({"t": {"broker-a": {name[1:]: offset for name, offset in queues.items()}}})


def queue(number: int) -> QueueKey:
    return QueueKey("t", "broker-a", number)


def test_messages_behind_are_counted_by_queue() -> None:
    lag = lag_of("q", 7, [(topics(q0=10, q1=5), topics(q0=4, q1=5))])

    assert lag is not None
    assert (lag.query, lag.batch, lag.messages, lag.bytes) == ("q", 7, 6, 0)
    assert lag.queues == {queue(0): 6, queue(1): 0}


def test_a_queue_that_no_batch_has_touched_is_behind_by_all_of_it() -> None:
    lag = lag_of("q", 0, [(topics(q0=10, q2=3), topics(q0=10))])

    assert lag is not None
    assert lag.queues == {queue(0): 0, queue(2): 3}


def test_a_first_batch_whose_end_says_where_it_began_has_a_lag() -> None:
    first = {"$from": json.loads(topics(q0=1)), **json.loads(topics(q0=4))}

    lag = lag_of("q", 0, [(topics(q0=10), json.dumps(first))])

    assert lag is not None
    assert lag.queues == {queue(0): 6}


def test_bytes_behind_are_counted_by_log() -> None:
    places = (json.dumps({"broker-a": {"phy": place}}) for place in (4096, 1024))

    lag = lag_of("q", 0, [tuple(places)])  # type: ignore[list-item]

    assert lag is not None
    assert (lag.logs, lag.bytes, lag.messages) == ({"broker-a": 3072}, 3072, 0)


def test_sources_of_others_are_passed_over() -> None:
    strange: list[tuple[Any, Any]] = [("5", "3"), (None, None), ("x", "{"), ({"logOffset": 1}, {})]

    assert lag_of("q", 0, strange) is None
    lag = lag_of("q", 0, [*strange, (topics(q0=2), topics(q0=1))])
    assert lag is not None
    assert lag.messages == 1


def test_a_query_that_has_not_ended_a_batch_has_no_lag_yet() -> None:
    assert lag_of("q", 0, [(topics(q0=2), None)]) is None


def test_the_progress_names_losses_times_and_brokers_that_are_away() -> None:
    offsets = json.loads(topics(q0=10, q1=5))
    figures = {"$lost": json.loads(topics(q0=7)), "$next": json.loads(topics(q1=4_000))}
    end = {"$away": json.loads(topics(q1=3_000)), **json.loads(topics(q0=10, q1=4))}

    lag = lag_of("q", 0, [(json.dumps(figures | offsets), json.dumps(end))])

    assert lag is not None
    assert (lag.lost, lag.next_ms, lag.away) == (
        {queue(0): 7},
        {queue(1): 4_000},
        {queue(1): 3_000},
    )
    assert (lag.messages, lag.seconds(9_500), lag.seconds(3_999)) == (1, 5.5, 0.0)


def test_a_query_that_has_read_all_has_no_lag_in_time() -> None:
    lag = lag_of("q", 0, [(topics(q0=10), topics(q0=10))])

    assert lag is not None
    assert lag.seconds(9_500) == 0.0
