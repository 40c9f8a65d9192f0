"""A page of metrics in Prometheus' text format, with a limit of series for each metric.

Series beyond the limit are summed (for times: their maximum) in one series whose topic and group
are `OTHER`, so that a client that creates topics or groups without end does not fill Prometheus.

Source: Prometheus, "Text-based format", version 0.0.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

OTHER: Final = "_other"
"""The topic and group of what is beyond the limit."""
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_UNBOUNDED: Final = frozenset(
    ("topic", "consumer_group", "group", "caddr", "localaddr", "countOfOnlineConsumers")
)
"""Labels whose values come from clients."""
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})

Number = int | float


def add(left: Number, right: Number) -> Number:
    """Add two values: how most series are summed."""
    return left + right


class Metric:
    """One metric with its series.

    Args:
        name: its name.
        kind: ``gauge`` or ``counter``.
        text: what it means, in one line.
        common: the labels of every series, written.
        series_max: how many series are kept apart.
        merge: makes one value of two that are beyond the limit.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        text: str,
        common: str,
        series_max: int,
        merge: Callable[[Number, Number], Number],
    ) -> None:
        self._head = f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
        self._begin = f"{name}{{{common}"
        self._series_max = series_max
        self._merge = merge
        self._lines: list[str] = []
        self._others: dict[str, Number] = {}

    def set(self, value: Number, **labels: str) -> None:
        """Add the series with these labels."""
        if len(self._lines) < self._series_max or _UNBOUNDED.isdisjoint(labels):
            self._lines.append(f"{self._begin}{written(labels)}}} {value}\n")
            return
        key = written({name: OTHER if name in _UNBOUNDED else labels[name] for name in labels})
        known = self._others.get(key)
        self._others[key] = value if known is None else self._merge(known, value)

    def parts(self) -> Iterator[bytes]:
        """Yield the text; nothing without series."""
        if not self._lines:
            return
        yield self._head.encode()
        for line in self._lines:
            yield line.encode("utf-8", "replace")
        for labels, value in self._others.items():
            yield f"{self._begin}{labels}}} {value}\n".encode("utf-8", "replace")


class Page:
    """The metrics of one server at one time.

    Args:
        common: the labels of every series.
        series_max: how many series of each metric are kept apart.
    """

    def __init__(self, common: dict[str, str], series_max: int) -> None:
        self._common = written(common).removeprefix(",")
        self._series_max = series_max
        self._metrics: dict[str, Metric] = {}

    def gauge(
        self, name: str, text: str, merge: Callable[[Number, Number], Number] = add
    ) -> Metric:
        """Add a metric that goes up and down."""
        return self._add(name, "gauge", text, merge)

    def counter(self, name: str, text: str) -> Metric:
        """Add a metric that only grows, until the server starts again."""
        return self._add(name, "counter", text, add)

    def _add(
        self, name: str, kind: str, text: str, merge: Callable[[Number, Number], Number]
    ) -> Metric:
        assert name not in self._metrics, name
        made = Metric(name, kind, text, self._common, self._series_max, merge)
        self._metrics[name] = made
        return made

    def parts(self) -> Iterator[bytes]:
        """Yield the text of all metrics, in the order in which they were added."""
        for metric in self._metrics.values():
            yield from metric.parts()


def written(labels: dict[str, str]) -> str:
    """Return labels as they are written, each with a comma before it."""
    return "".join(f',{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
