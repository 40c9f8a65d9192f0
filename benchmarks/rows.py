"""The rows of the comparison: which load, which of its figures count, and what is good enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loadgen import Load

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Metric:
    """One figure of a row."""

    name: str
    unit: str
    read: Callable[[Figures], float]
    bar: float | None = None
    """What a first release must reach."""
    goal: float | None = None
    more_is_better: bool = False
    java: float | None = None
    """What RocketMQ 5.3.3 took on the machine where bar and goal were set."""

    def better_by(self, ours: float, other: float) -> float:
        """How many times better our figure is than the other one."""
        if not ours or not other:
            return float("nan")
        return ours / other if self.more_is_better else other / ours

    def reaches(self, value: float, mark: float) -> bool:
        """Whether a value is at least as good as the mark."""
        return value >= mark if self.more_is_better else value <= mark

    def scaled(self, ours: float, java: float) -> float | None:
        """What ours would be where bar and goal were set, given what 5.3.3 took in the same run."""
        return ours * self.java / java if self.java and java else None


@dataclass(frozen=True)
class Row:
    """One line of the table: a load on a broker that was started a certain way."""

    name: str
    title: str
    start: str
    """``async`` or ``sync``: how the broker flushes; ``idle``: measured without any load."""
    metrics: tuple[Metric, ...]
    load: Load | None = None
    fill: Load | None = None
    """Load that fills the topic before the measured one."""


def _rate(
    bar: float | None = None, goal: float | None = None, *, java: float | None = None
) -> Metric:
    def read(figures: Figures) -> float:
        return float(figures["msg_s"]) / 1e3

    return Metric("rate", "k/s", read, bar, goal, more_is_better=True, java=java)


def _latency(
    name: str,
    bar: float | None = None,
    goal: float | None = None,
    *,
    of: str = "lat_us",
    java: float | None = None,
) -> Metric:
    return Metric(name, "ms", lambda f: f[of][name.replace(".", "")] / 1e3, bar, goal, java=java)


def _cpu(
    bar: float | None = None, goal: float | None = None, *, java: float | None = None
) -> Metric:
    return Metric("CPU", "s/M", lambda f: f["server"]["cpu_per_million"], bar, goal, java=java)


def _cpu_share(bar: float, goal: float, *, java: float) -> Metric:
    def read(figures: Figures) -> float:
        return 100 * float(figures["server"]["cpu"]) / float(figures["seconds"])

    return Metric("CPU", "%", read, bar, goal, java=java)


def _memory(bar: float, goal: float) -> Metric:
    return Metric("memory under load", "MiB", lambda f: f["server"]["anon_mb"], bar, goal)


def _measured(
    name: str, unit: str, key: str, bar: float | None = None, goal: float | None = None
) -> Metric:
    return Metric(name, unit, lambda f: f[key], bar, goal)


ROWS = (
    Row(
        "send-shared",
        "send 16x32, 128 B, shared",
        "async",
        (_rate(), _latency("p99"), _cpu(5, 3.3, java=20), _memory(150, 100)),
        Load(),
    ),
    Row(
        "send-split",
        "send 16x32, 128 B, split",
        "async",
        (_rate(150, 300, java=44), _latency("p99", 12, 5, java=36), _cpu()),
        Load(split=True),
    ),
    Row(
        "send-16x1",
        "send 16x1, 128 B, split",
        "async",
        (_rate(), _latency("p50"), _latency("p99", 1, 0.4, java=2.4), _cpu(16, 12, java=48)),
        Load(window=1, split=True),
    ),
    Row(
        "send-1x1",
        "send 1x1, 128 B, split",
        "async",
        (
            _rate(),
            _latency("p50", 0.1, 0.07, java=0.12),
            _latency("p99", 0.25, 0.12, java=0.499),
            _cpu(45, 32, java=112),
        ),
        Load(conns=1, window=1, split=True),
    ),
    Row(
        "send-1k",
        "send 16x32, 1 KiB, shared",
        "async",
        (_rate(), _latency("p99"), _cpu(8, 3, java=24)),
        Load(body=1024),
    ),
    Row(
        "tail",
        "send 16x1, 1 KiB, shared",
        "async",
        (_rate(), _latency("p99"), _latency("p99.9", 8, 2, java=19), _cpu()),
        Load(window=1, body=1024),
    ),
    Row(
        "batch",
        "batch of 32 x 128 B, 16x4, shared",
        "async",
        (_rate(), _latency("p99"), _cpu(1, 0.35, java=4)),
        Load(window=4, batch=32),
    ),
    Row(
        "pull-shared",
        "pull of 32, 4 connections, 128 B, shared",
        "async",
        (_rate(), _latency("p99"), _cpu(1, 0.5, java=2.3)),
        Load(mode="pull", conns=4, window=1),
        fill=Load(batch=32, window=4),
    ),
    Row(
        "pull-split",
        "pull of 32, 4 connections, 128 B, split",
        "async",
        (_rate(800, 2000, java=462), _latency("p99"), _cpu()),
        Load(mode="pull", conns=4, window=1, split=True),
        fill=Load(batch=32, window=4),
    ),
    Row(
        "latency",
        "send to consume at 1000/s, shared",
        "async",
        (
            _latency("p50", 0.5, 0.2, of="e2e_us", java=0.78),
            _latency("p99", 1.5, 0.5, of="e2e_us", java=2.7),
            _cpu_share(12, 5, java=38),
        ),
        Load(mode="e2e", conns=1, window=1, rate=1000),
    ),
    Row(
        "sync-64x1",
        "sync flush, send 64x1, 128 B, shared",
        "sync",
        (_rate(40, 60, java=21.7), _latency("p99", 4, 2, java=8), _cpu()),
        Load(conns=64, window=1),
    ),
    Row(
        "sync-1x1",
        "sync flush, send 1x1, 128 B, shared",
        "sync",
        (
            _rate(2.5, 3.5, java=1),
            _latency("p50", 0.4, java=0.75),
            _latency("p99"),
            _cpu(),
        ),
        Load(conns=1, window=1),
    ),
    Row(
        "sync-16x32",
        "sync flush, send 16x32, 128 B, shared",
        "sync",
        (_rate(120, 300, java=69), _latency("p99"), _cpu(7, 3, java=25.6)),
        Load(),
    ),
    Row(
        "start",
        "start on an empty store",
        "idle",
        (
            _measured("first acknowledged send", "s", "first_send_s", 1, 0.4),
            _measured("route visible", "s", "route_s", 1, 0.4),
        ),
    ),
    Row(
        "idle",
        "idle, broker and name server",
        "idle",
        (
            _measured("memory", "MiB", "anon_mb", 80, 60),
            _measured("CPU of one core", "%", "cpu_percent", 1, 0.2),
        ),
    ),
)
