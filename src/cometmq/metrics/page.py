"""Pages of metrics: the metrics of one server at one time, with a limit of series for each metric.

Series beyond the limit are summed (for times: their maximum) in one series whose topic and group
are `OTHER`, so that a client that creates topics or groups without end does not fill Prometheus.

`TextPage` writes Prometheus' text format; `otlp` has a page of OpenTelemetry's format.

Source: Prometheus, "Text-based format", version 0.0.4.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from cometmq.remoting.latencies import Histogram

OTHER: Final = "_other"
"""The topic and group of what is beyond the limit."""
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
MILLISECONDS: Final = "milliseconds"
_UNBOUNDED: Final = frozenset(
    ("topic", "consumer_group", "group", "caddr", "localaddr", "countOfOnlineConsumers")
)
"""Labels whose values come from clients."""
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})

Number = int | float


class Buckets(NamedTuple):
    """The value of a series of a histogram."""

    counts: Sequence[int]
    """The count of each bucket; the last one is above all bounds."""
    sum: Number

    def plus(self, other: Buckets) -> Buckets:
        """Return the sum of both."""
        counts = [left + right for left, right in zip(self.counts, other.counts, strict=True)]
        return Buckets(counts, self.sum + other.sum)


def buckets(histogram: Histogram) -> Buckets:
    """Return what a histogram has counted."""
    return Buckets(histogram.counts(), histogram.sum)


def add(left: Number, right: Number) -> Number:
    """Add two values: how most series are summed."""
    return left + right


class Head(NamedTuple):
    """The common part of the series of a metric."""

    name: str
    kind: str
    """`GAUGE`, `COUNTER` or `HISTOGRAM`."""
    text: str
    """The meaning of the metric, in one line."""
    unit: str = ""
    """RocketMQ's unit, for formats that have one."""
    bounds: Sequence[Number] = ()
    """The upper bounds of a histogram's buckets."""


class Metric:
    """One metric, whose series a subclass writes.

    Args:
        series_max: how many series are kept apart.
        merge: makes one value of two that are beyond the limit.
    """

    def __init__(self, series_max: int, merge: Callable[[Number, Number], Number]) -> None:
        self._series_max = series_max
        self._merge = merge
        self._count = 0
        self._others: dict[tuple[tuple[str, str], ...], Number | Buckets] = {}

    def set(self, value: Number, **labels: str) -> None:
        """Add the series of a gauge or a counter with these labels."""
        if self._fits(labels):
            self.write(labels, value)
            return
        key = _others_of(labels)
        known = self._others.get(key)
        assert not isinstance(known, Buckets)
        self._others[key] = value if known is None else self._merge(known, value)

    def observe(self, value: Buckets, **labels: str) -> None:
        """Add the series of a histogram with these labels."""
        if self._fits(labels):
            self.write(labels, value)
            return
        key = _others_of(labels)
        known = self._others.get(key)
        self._others[key] = value.plus(known) if isinstance(known, Buckets) else value

    def finish(self) -> None:
        """Add the series of what is beyond the limit; nothing may be added afterwards."""
        for key, value in self._others.items():
            self.write(dict(key), value)
        self._others = {}

    def write(self, labels: dict[str, str], value: Number | Buckets) -> None:
        """Write one series."""
        raise NotImplementedError

    def _fits(self, labels: dict[str, str]) -> bool:
        if self._count >= self._series_max and not _UNBOUNDED.isdisjoint(labels):
            return False
        self._count += 1
        return True


class Page:
    """The metrics of one server at one time; a subclass has their format.

    Args:
        series_max: how many series of each metric are kept apart.
    """

    def __init__(self, series_max: int) -> None:
        self.series_max = series_max
        self._names: set[str] = set()

    def gauge(
        self,
        name: str,
        text: str,
        merge: Callable[[Number, Number], Number] = add,
        *,
        unit: str = "",
    ) -> Metric:
        """Add a metric that goes up and down."""
        return self._add(Head(name, GAUGE, text, unit), merge)

    def counter(self, name: str, text: str) -> Metric:
        """Add a metric that only grows, until the server starts again."""
        return self._add(Head(name, COUNTER, text), add)

    def histogram(
        self, name: str, text: str, bounds: Sequence[Number], *, unit: str = ""
    ) -> Metric:
        """Add a metric that counts values by upper bounds."""
        return self._add(Head(name, HISTOGRAM, text, unit, bounds), add)

    def make(self, head: Head, merge: Callable[[Number, Number], Number]) -> Metric:
        """Return a new metric."""
        raise NotImplementedError

    def _add(self, head: Head, merge: Callable[[Number, Number], Number]) -> Metric:
        assert head.name not in self._names, head.name
        self._names.add(head.name)
        return self.make(head, merge)


Collect = Callable[[Page], Awaitable[None]]
"""Fills a page with the metrics of one server; it pauses if that takes long."""


class TextMetric(Metric):
    """A metric in Prometheus' text format.

    Args:
        head: its name and kind.
        common: the labels of every series, written.
        series_max, merge: see `Metric`.
    """

    def __init__(
        self, head: Head, common: str, series_max: int, merge: Callable[[Number, Number], Number]
    ) -> None:
        super().__init__(series_max, merge)
        self._name, self._common = head.name, common
        self._head = f"# HELP {head.name} {head.text}\n# TYPE {head.name} {head.kind}\n"
        self._begin = f"{head.name}{{{common}"
        self._bounds = [*map(str, head.bounds), "+Inf"]
        self._lines: list[str] = []

    def write(self, labels: dict[str, str], value: Number | Buckets) -> None:
        """Write one series."""
        text = written(labels)
        if not isinstance(value, Buckets):
            self._lines.append(f"{self._begin}{text}}} {value}\n")
            return
        of = f"{self._common}{text}"
        totals = list(accumulate(value.counts))
        lines = [
            f'{self._name}_bucket{{{of},le="{bound}"}} {total}\n'
            for bound, total in zip(self._bounds, totals, strict=True)
        ]
        lines.append(f"{self._name}_sum{{{of}}} {value.sum}\n")
        lines.append(f"{self._name}_count{{{of}}} {totals[-1]}\n")
        self._lines.append("".join(lines))

    def parts(self) -> Iterator[bytes]:
        """Yield the text; nothing without series."""
        self.finish()
        if not self._lines:
            return
        yield self._head.encode()
        for line in self._lines:
            yield line.encode("utf-8", "replace")


class TextPage(Page):
    """A page in Prometheus' text format.

    Args:
        common: the labels of every series.
        series_max: how many series of each metric are kept apart.
    """

    def __init__(self, common: dict[str, str], series_max: int) -> None:
        super().__init__(series_max)
        self._common = written(common).removeprefix(",")
        self._metrics: list[TextMetric] = []

    def make(self, head: Head, merge: Callable[[Number, Number], Number]) -> Metric:
        """Return a new metric."""
        metric = TextMetric(head, self._common, self.series_max, merge)
        self._metrics.append(metric)
        return metric

    def parts(self) -> Iterator[bytes]:
        """Yield the text of all metrics, in the order in which they were added."""
        for metric in self._metrics:
            yield from metric.parts()


def written(labels: dict[str, str]) -> str:
    """Return labels as they are written, each with a comma before it."""
    return "".join(f',{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())


def _others_of(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, OTHER if name in _UNBOUNDED else value) for name, value in labels.items())
