"""The rows of the comparison: which load, which of its figures count, and what is good enough.

Targets are ratios to RocketMQ 5.3.3 in the same round, or, where the figure hardly depends on the
machine (memory, start, idle), values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loadgen import Load

Values = Mapping[str, Any]

REFERENCE = "rocketmq-5.3.3"
OURS, INTERPRETED = "cometmq", "cometmq-interpreted"
SMALL_HEAP = "rocketmq-5.3.3-512m"
ROCKETMQ = (OURS, "rocketmq-4.9.7", REFERENCE)
NEWEST = (OURS, REFERENCE)


@dataclass(frozen=True)
class Metric:
    """One figure of a row."""

    name: str
    unit: str
    read: Callable[[Values], float]
    target: float | None = None
    """What a release must reach."""
    later: float | None = None
    """What a later release is to reach."""
    more_is_better: bool = False
    is_ratio: bool = True
    """Whether the targets are ratios to the reference, and not values."""


@dataclass(frozen=True)
class Row:
    """One line of the table: a load on a server that was started a certain way."""

    name: str
    title: str
    flush: str
    """``async`` or ``sync``; ``idle`` if it is measured without any load."""
    metrics: tuple[Metric, ...]
    servers: tuple[str, ...] = ROCKETMQ
    load: Load | None = None
    fill: Load | None = None
    """Load that fills the topic before the measured one."""
    beside: Load | None = None
    """Load of another topic while the measured one runs."""
    cold: bool = False
    """Whether what ``fill`` stored leaves the page cache first."""
    seconds: float = 0.0
    """What the row takes beside warm-up and measurement, for the plan of a run."""


def _rate(target: float | None = None, later: float | None = None) -> Metric:
    def read(values: Values) -> float:
        return float(values["msg_s"]) / 1e3

    return Metric("rate", "k/s", read, target, later, more_is_better=True)


def _latency(
    name: str, target: float | None = None, later: float | None = None, *, of: str = "lat_us"
) -> Metric:
    key = name.replace(".", "")
    return Metric(name, "ms", lambda values: values[of][key] / 1e3, target, later)


def _cpu(target: float | None = None, later: float | None = None) -> Metric:
    return Metric("CPU", "s/M", lambda values: values["server"]["cpu_per_million"], target, later)


def _cpu_share(target: float, later: float) -> Metric:
    def read(values: Values) -> float:
        return 100 * float(values["server"]["cpu"]) / float(values["seconds"])

    return Metric("CPU", "% of a core", read, target, later)


def _memory(target: float | None = None, later: float | None = None) -> Metric:
    def read(values: Values) -> float:
        return float(values["server"]["anon_mb"])

    return Metric("memory under load", "MiB", read, target, later, is_ratio=False)


def _of_start(
    name: str, unit: str, key: str, target: float | None = None, later: float | None = None
) -> Metric:
    return Metric(name, unit, lambda values: values[key], target, later, is_ratio=False)


def _beside() -> Metric:
    return Metric(
        "p99 of the producer", "ms", lambda values: values["beside"]["lat_us"]["p99"] / 1e3
    )


BATCHES = Load(batch=32, window=4)
PULLS = Load(mode="pull", conns=4, window=1)


def _frames(client: str, title: str, times: float) -> Row:
    return Row(
        f"frames-{client}",
        f"send 16x32, 128 B, shared, frames of {title}",
        "async",
        (_rate(), _latency("p99"), _cpu(times)),
        NEWEST,
        Load(frame=client),
    )


ROWS = (
    Row(
        "send-shared",
        "send 16x32, 128 B, shared",
        "async",
        (_rate(), _latency("p99"), _cpu(12), _memory(150, 100)),
        (*ROCKETMQ, INTERPRETED, SMALL_HEAP, "nats", "kafka"),
        Load(),
    ),
    Row(
        "send-split",
        "send 16x32, 128 B, split",
        "async",
        (_rate(3.4, 6.8), _latency("p99", 8), _cpu(12)),
        NEWEST,
        Load(split=True),
    ),
    Row(
        "send-16x1",
        "send 16x1, 128 B, split",
        "async",
        (_rate(), _latency("p50"), _latency("p99", 2.4, 6), _cpu(4.5)),
        ROCKETMQ,
        Load(window=1, split=True),
    ),
    Row(
        "send-1x1",
        "send 1x1, 128 B, split",
        "async",
        (_rate(), _latency("p50", 1.2, 1.7), _latency("p99", 2, 4.2), _cpu(2.5, 3.5)),
        (*ROCKETMQ, "nats", "kafka"),
        Load(conns=1, window=1, split=True),
    ),
    Row(
        "send-1k",
        "send 16x32, 1 KiB, shared",
        "async",
        (_rate(), _latency("p99"), _cpu(3, 8)),
        (*ROCKETMQ, "nats", "kafka"),
        Load(body=1024),
    ),
    Row(
        "tail",
        "send 16x1, 1 KiB, shared",
        "async",
        (_rate(), _latency("p99"), _latency("p99.9", 2.4, 9.5), _cpu()),
        NEWEST,
        Load(window=1, body=1024),
    ),
    Row(
        "batch",
        "batch of 32 x 128 B, 16x4, shared",
        "async",
        (_rate(), _latency("p99"), _cpu(8, 11.4)),
        (*ROCKETMQ, "kafka"),
        BATCHES,
    ),
    _frames("java", "the Java client", 12),
    _frames("java-binary", "the Java client with binary headers", 10),
    _frames("go", "the Go client", 10),
    _frames("cpp", "the C++ client", 10),
    _frames("node", "the Node.js client", 10),
    Row(
        "topics",
        "send 16x32, 128 B, shared, 1,000 topics of one queue",
        "async",
        (_rate(), _latency("p99"), _cpu(), _memory()),
        NEWEST,
        Load(topics=1000, queues=1),
        fill=Load(topics=1000, queues=1, conns=4, window=1, count=2000),
        seconds=4.0,
    ),
    Row(
        "connections",
        "send 1000x1, 128 B, shared",
        "async",
        (_rate(), _latency("p99"), _cpu(), _memory()),
        NEWEST,
        Load(conns=1000, window=1),
        seconds=0.5,
    ),
    Row(
        "pull-shared",
        "pull of 32, 4 connections, 128 B, shared",
        "async",
        (_rate(), _latency("p99"), _cpu(5)),
        (*ROCKETMQ, SMALL_HEAP, "nats", "kafka"),
        PULLS,
        fill=BATCHES,
    ),
    Row(
        "pull-split",
        "pull of 32, 4 connections, 128 B, split",
        "async",
        (_rate(1.7, 4.3), _latency("p99"), _cpu(5)),
        NEWEST,
        Load(mode="pull", conns=4, window=1, split=True),
        fill=BATCHES,
    ),
    Row(
        "pull-tag",
        "pull of 32 with one of four tags, 4 connections, 128 B, shared; returned messages count",
        "async",
        (_rate(), _latency("p99"), _cpu(5)),
        NEWEST,
        Load(mode="pull", conns=4, window=1, expression="TagC"),
        fill=Load(batch=32, window=4, tags=4),
    ),
    Row(
        "lag",
        "lagging consumer: cold backlog of 1 KiB messages, 4 connections, beside 2,000 sends/s",
        "async",
        (_rate(), _latency("p99"), _cpu(), _beside()),
        NEWEST,
        Load(mode="pull", conns=4, window=1, queues=4, once=True),
        fill=Load(batch=32, window=4, body=1024, queues=4, count=320_000),
        beside=Load(rate=2000, conns=4, queues=4),
        cold=True,
        seconds=8.0,
    ),
    Row(
        "latency",
        "send to consume at 1000/s, shared",
        "async",
        (
            _latency("p50", 1.6, 3.9, of="e2e_us"),
            _latency("p99", 1.8, 5.4, of="e2e_us"),
            _cpu_share(3.2, 7.6),
        ),
        (*ROCKETMQ, SMALL_HEAP),
        Load(mode="e2e", conns=1, window=1, rate=1000),
        seconds=0.5,
    ),
    Row(
        "sync-64x1",
        "send 64x1, 128 B, shared, synchronous flush",
        "sync",
        (_rate(1.8, 2.8), _latency("p99", 2, 4), _cpu(4)),
        (*ROCKETMQ, "nats", "kafka"),
        Load(conns=64, window=1),
    ),
    Row(
        "sync-1x1",
        "send 1x1, 128 B, shared, synchronous flush",
        "sync",
        (_rate(2.5, 3.5), _latency("p50", 1.9), _latency("p99"), _cpu()),
        (*ROCKETMQ, "nats", "kafka"),
        Load(conns=1, window=1),
    ),
    Row(
        "sync-16x32",
        "send 16x32, 128 B, shared, synchronous flush",
        "sync",
        (_rate(1.7, 4.3), _latency("p99"), _cpu(8, 8.5)),
        (*ROCKETMQ, INTERPRETED, "nats", "kafka"),
        Load(),
    ),
    Row(
        "start",
        "start on an empty store",
        "idle",
        (
            _of_start("first acknowledged send", "s", "first_send_s", 1, 0.4),
            _of_start("route visible", "s", "route_s", 1, 0.4),
        ),
    ),
    Row(
        "idle",
        "idle, no connections",
        "idle",
        (
            _of_start("memory", "MiB", "anon_mb", 80, 60),
            _of_start("CPU", "% of a core", "cpu_percent", 1, 0.2),
        ),
    ),
)
