"""The OpenTelemetry Collector takes the metrics that a broker sends."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import kit
import pytest
import toolchain
from processes import Process, accepts
from servers import SMALL_FILES, CometStandalone, connect, wait_for_route

from cometmq.remoting.ports import free_port

READY_SECONDS_MAX = 60.0
MESSAGES = 5
CONFIG = """
receivers:
  otlp:
    protocols:
      grpc:
        endpoint: 127.0.0.1:{port}
exporters:
  debug:
    verbosity: detailed
service:
  telemetry:
    metrics:
      level: none
  pipelines:
    metrics:
      receivers: [otlp]
      exporters: [debug]
"""


class Collector:
    """A running collector, which prints what it takes."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        config = folder / "collector.yaml"
        config.write_text(CONFIG.format(port=self.port))
        arguments = [str(toolchain.otel_collector()), "--config", str(config)]
        self.process = Process(arguments, folder / "collector.log", env=dict(os.environ))
        self.process.wait_until(lambda: accepts(self.port), "its port", READY_SECONDS_MAX)

    def last(self, name: str) -> list[str]:
        """The lines that it has printed of a metric last; none before it has one."""
        printed = self.process.log.read_text(errors="replace")
        parts = re.split(r"\nMetric #\d+\n", printed)
        last = next((part for part in reversed(parts) if f"-> Name: {name}\n" in part), "")
        return [line.strip() for line in last.splitlines()]


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    running = Collector(tmp_path)
    yield running
    running.process.stop()


@pytest.mark.long
def test_a_collector_takes_the_metrics_of_a_broker(collector: Collector, tmp_path: Path) -> None:
    server = CometStandalone(
        tmp_path / "server",
        store=tmp_path / "store",
        settings=SMALL_FILES
        | {
            "metricsExporterType": "OTLP_GRPC",
            "metricsGrpcExporterTarget": f"http://127.0.0.1:{collector.port}",
            "metricGrpcExporterIntervalInMills": 1000,
        },
    )
    server.start()
    broker = connect(server.address)
    kit.ok(kit.create_topic(broker, "Orders"))
    wait_for_route(server.namesrv, "Orders")
    for number in range(MESSAGES):
        kit.store(broker, "Orders", b"order %d" % number)
    kit.eventually(
        lambda: f"Value: {MESSAGES}" in collector.last("rocketmq_messages_in_total"),
        timeout=READY_SECONDS_MAX,
    )
    broker.close()
    server.stop()

    counter = collector.last("rocketmq_messages_in_total")
    for expected in (
        "-> DataType: Sum",
        "-> IsMonotonic: true",
        "-> AggregationTemporality: Cumulative",
        "-> topic: Str(Orders)",
        "-> node_type: Str(broker)",
    ):
        assert expected in counter
    sizes = collector.last("rocketmq_message_size")
    assert "-> DataType: Histogram" in sizes
    assert f"Count: {MESSAGES}" in sizes
    assert "-> DataType: Gauge" in collector.last("rocketmq_storage_size")
