"""Metrics that a server sends by itself: to a collector, which is a real gRPC server, and a log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cometmq.metrics import push
from cometmq.metrics.config import MetricsSettings
from cometmq.metrics.otlp import CHUNK_POINTS, POINTS_MAX, OtlpPage, OtlpPush
from cometmq.metrics.page import Buckets, Page
from cometmq.metrics.push import LogPush
from support.checks.manual_clock import ManualClock
from support.processes.collector import Collector, collecting, labels_of, points_of

NS = 1_000_000


async def collect(page: Page) -> None:
    page.gauge("temperature", "How warm it is").set(1.5, topic="T")
    page.counter("sends_total", "Sends").set(3, topic="T")
    times = page.histogram("times", "Times", (1, 10), unit="milliseconds")
    times.observe(Buckets([4, 0, 2], 50.5), topic="T")


@pytest.fixture
def collector() -> Iterator[tuple[Collector, int]]:
    with collecting() as running:
        yield running


def settings_of(port: int, **changes: Any) -> MetricsSettings:
    target = f"http://127.0.0.1:{port}"
    # Tests push pages themselves; this interval is longer than they are.
    values: dict[str, Any] = {"grpc_interval_ms": 3_600_000, "grpc_timeout_ms": 30_000} | changes
    return MetricsSettings(exporter="OTLP_GRPC", grpc_target=target, **values)


@asynccontextmanager
async def pushing(
    port: int, clock: ManualClock | None = None, **changes: Any
) -> AsyncIterator[OtlpPush]:
    running = OtlpPush(
        settings_of(port, **changes), {"cluster": "C"}, collect, clock or ManualClock()
    )
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


async def test_a_collector_gets_every_kind_of_metric(collector: tuple[Collector, int]) -> None:
    received, port = collector
    clock = ManualClock()
    began_ns = clock.now_ms() * NS
    async with pushing(port, clock, grpc_header_text="api-key:k1,site:a b") as running:
        clock.advance(5000)
        await running.push()

    found = received.metrics()
    assert list(found) == ["temperature", "sends_total", "times"]
    ((warm,), (sends,), (times,)) = (points_of(metric) for metric in found.values())
    for point in (warm, sends, times):
        assert labels_of(point) == {"cluster": "C", "topic": "T"}
        assert point.start_time_unix_nano == began_ns
        assert point.time_unix_nano == began_ns + 5000 * NS
    assert found["temperature"].WhichOneof("data") == "gauge"
    assert found["temperature"].description == "How warm it is"
    assert warm.as_double == 1.5
    assert found["sends_total"].sum.is_monotonic
    assert found["sends_total"].sum.aggregation_temporality == 2  # cumulative
    assert sends.as_int == 3
    assert found["times"].unit == "milliseconds"
    assert found["times"].histogram.aggregation_temporality == 2
    assert (list(times.bucket_counts), list(times.explicit_bounds)) == ([4, 0, 2], [1, 10])
    assert (times.count, times.sum) == (6, 50.5)
    assert {"api-key": "k1", "site": "a b"}.items() <= received.headers[0].items()


def test_a_large_page_is_sent_in_several_requests() -> None:
    page = OtlpPage({"cluster": "C"}, 100_000, 0, 1)
    large = page.gauge("large", "Large")
    small = page.gauge("small", "Small")
    for number in range(2 * POINTS_MAX + 7):
        large.set(number, topic=f"t{number}")
    small.set(1)

    requests = list(page.requests())
    assert [size for size in map(series_in, requests) if size > POINTS_MAX] == []
    assert len(requests) == 3
    assert sum(map(series_in, requests)) == 2 * POINTS_MAX + 8
    assert all(request.ByteSize() < 1 << 20 for request in requests)
    names = [
        labels_of(point)["topic"]
        for request in requests
        for metric in request.resource_metrics[0].scope_metrics[0].metrics
        if metric.name == "large"
        for point in points_of(metric)
    ]
    assert len(set(names)) == 2 * POINTS_MAX + 7
    assert CHUNK_POINTS <= POINTS_MAX


def series_in(request: Any) -> int:
    metrics = request.resource_metrics[0].scope_metrics[0].metrics
    return sum(len(points_of(metric)) for metric in metrics)


def test_series_beyond_the_limit_are_summed_for_a_collector_too() -> None:
    page = OtlpPage({}, 1, 0, 1)
    sends = page.counter("sends_total", "Sends")
    for number in range(4):
        sends.set(10, topic=f"t{number}")

    (request,) = page.requests()
    points = points_of(request.resource_metrics[0].scope_metrics[0].metrics[0])
    found = {labels_of(point)["topic"]: point.as_int for point in points}
    assert found == {"t0": 10, "_other": 30}


async def test_a_collector_that_is_gone_is_logged_once_and_so_is_its_return(
    collector: tuple[Collector, int], caplog: pytest.LogCaptureFixture
) -> None:
    with collecting() as (_, port):
        pass  # nothing listens here any more
    with caplog.at_level(logging.INFO, "cometmq.metrics"):
        async with pushing(port, grpc_timeout_ms=1000) as running:
            for _ in range(5):
                await running.push()
            with collecting(port) as (received, _):
                while not received.requests:  # gRPC connects again after a pause
                    await running.push()
    lines = [record.message for record in caplog.records]
    failed = [line for line in lines if line.startswith("cannot send metrics")]
    assert len(failed) == 1
    assert f"target=http://127.0.0.1:{port}" in failed[0]
    assert lines[-1] == f"metrics are sent again target=http://127.0.0.1:{port}"


async def test_a_collector_that_hangs_delays_one_page_until_the_timeout(
    collector: tuple[Collector, int], caplog: pytest.LogCaptureFixture
) -> None:
    received, port = collector
    received.hangs.set()
    async with pushing(port, grpc_timeout_ms=300) as running:
        await running.push()
    assert len(received.requests) == 1
    assert "DEADLINE_EXCEEDED" in caplog.text


async def test_a_stop_does_not_wait_for_a_collector_that_hangs(
    collector: tuple[Collector, int],
) -> None:
    received, port = collector
    received.hangs.set()
    async with pushing(port) as running, asyncio.timeout(30):
        sending = asyncio.create_task(running.push())
        await asyncio.to_thread(received.wait_for, 1)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert sending.cancelled()


async def test_series_that_a_collector_rejects_are_logged(
    collector: tuple[Collector, int], caplog: pytest.LogCaptureFixture
) -> None:
    received, port = collector
    received.rejected = 2
    async with pushing(port, grpc_header_text="api-key:secret") as running:
        await running.push()
    assert "the collector rejected 2 series: too many" in caplog.text
    assert "secret" not in caplog.text


async def test_pages_are_sent_at_intervals(collector: tuple[Collector, int]) -> None:
    received, port = collector
    async with pushing(port, grpc_interval_ms=1000):
        await asyncio.to_thread(received.wait_for, 2)


async def test_a_log_gets_the_series_up_to_a_limit(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = MetricsSettings(exporter="LOG")
    running = LogPush(settings, {"cluster": "C"}, collect)
    with caplog.at_level(logging.INFO, "cometmq.metrics.push"):
        await running.push()
        lines = [record.message for record in caplog.records]
        assert lines[:3] == [
            'temperature{cluster="C",topic="T"} 1.5',
            'sends_total{cluster="C",topic="T"} 3',
            'times_bucket{cluster="C",topic="T",le="1"} 4',
        ]
        assert len(lines) == 2 + 3 + 2
        caplog.clear()
        monkeypatch.setattr(push, "LINES_MAX", 4)
        await running.push()
    assert [record.message for record in caplog.records][4:] == ["3 further series are not logged"]
