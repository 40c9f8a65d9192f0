"""Metrics of streaming queries for Prometheus and OpenTelemetry: sources and sink on one page.

    cometmq_spark_batches_total{query}                          micro-batches
    cometmq_spark_rows_total{query}                             rows that they had
    cometmq_spark_source_lag_messages{query,topic,broker}       messages that are not read
    cometmq_spark_source_lag_seconds{query,topic,broker}        age of the oldest one of them
    cometmq_spark_source_lag_bytes{query,broker}                the same of logs
    cometmq_spark_source_away_seconds{query,topic,broker}       how long the broker is away
    cometmq_spark_source_lost_messages_total{query,topic,broker}
    cometmq_spark_sink_…{job}                                   see `SINK_COUNTERS`

Spark's progress of a query has the offsets of every source as documents; sources in Python have no
metrics of their own. So the newest offset has members beside the offsets of queues, and the end of
a batch names the queues whose broker is away (see `cometmq.spark.offsets`):

    "$away"    since when the brokers of queues do not respond (in the end of the batch)
    "$lost"    messages that were lost since the query started
    "$next"    the store times of the next messages to read

The lag is the end of the queues at Spark's last look, less what is processed:

    topics   messages by queue (offsets, so those that a filter leaves out count too)
    logs     bytes by broker

The values of sources are those of the last progress of each active query; ages grow between two
of them. PySpark 4.1 has no newest offset, so there are no lags and losses there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from cometmq.client.blocking.portal import Portal, acquire_portal, release_portal
from cometmq.metrics.config import MetricsSettings
from cometmq.metrics.exporter import Exporter, start_exporter
from cometmq.metrics.page import Page
from cometmq.spark.compat import passes_limits
from cometmq.spark.errors import SourceError
from cometmq.spark.offsets import (
    AWAY,
    LOST,
    NEXT,
    QueueKey,
    from_json,
    log_from_json,
    positions_in,
    without_start,
)
from cometmq.spark.sink.counts import SinkCounts, sink_counts
from cometmq.system.clock import Clock
from cometmq.system.configuration import Configuration
from cometmq.system.failure_log import FailureLog

log = logging.getLogger(__name__)

QUERIES_MAX: Final = 1_000
"""Limit on queries; above it the one without progress for the longest time is dropped."""
LABELS: Final = {"node_type": "spark"}
"""The labels of every metric beside those of the settings."""
START_S: Final = 30.0
"""The time to start or stop the exporter."""
SINK_COUNTERS: Final = {
    "rows": "Rows that brokers have acknowledged",
    "bytes": "Bytes of bodies and properties that brokers have acknowledged",
    "requests": "Requests that brokers have acknowledged",
    "retries": "Requests that failed and were sent again",
    "commits": "Committed writes",
}
"""The counters of writes, and what they count."""


@dataclass(frozen=True)
class Lag:
    """How far a query was behind when it ended a batch."""

    query: str
    """The query's name, else its id."""
    batch: int
    queues: Mapping[QueueKey, int] = field(default_factory=dict)
    """Messages still to be read of each queue."""
    logs: Mapping[str, int] = field(default_factory=dict)
    """Bytes still to be read of each broker's log."""
    next_ms: Mapping[QueueKey, int] = field(default_factory=dict)
    """The store times of the next messages to read, in ms since 1970, as far as known."""
    away: Mapping[QueueKey, int] = field(default_factory=dict)
    """Since when the brokers of queues do not respond, in ms since 1970. The lag of such a queue
    is the last known one."""
    lost: Mapping[QueueKey, int] = field(default_factory=dict)
    """Messages of each queue that were lost since the query started, with
    ``failOnDataLoss=false``. Messages that expire while a task reads them are only in its log."""
    rows: int = 0
    """The rows of the batch."""

    @property
    def messages(self) -> int:
        """Messages of all queues."""
        return sum(self.queues.values())

    @property
    def bytes(self) -> int:
        """Bytes of all logs."""
        return sum(self.logs.values())

    def seconds(self, now_ms: int) -> float:
        """Return the lag in time: the age of the oldest message that is not read.

        Args:
            now_ms: the time in ms since 1970.
        """
        return max([0, *(now_ms - at for at in self.next_ms.values())]) / 1000


@dataclass
class _Query:
    """The newest figures of a query, and its totals since the listener was added."""

    lag: Lag
    batches: int = 0
    rows: int = 0


class StreamMetrics(StreamingQueryListener):
    """Serves or sends the metrics of all queries of a session that read or write our formats.

    Args:
        settings: how, with the settings of a broker's metrics: by default an endpoint for
            Prometheus on 127.0.0.1, port 5557. ``exporter="OTLP_GRPC"`` sends to a collector of
            OpenTelemetry, ``"LOG"`` to the log.
        counts_folder: the option ``countsFolder`` of the writes, for the metrics of sinks.
        tell: called with the figures at each progress of a query, also if this is not started. It
            runs in Spark's own thread: be quick, and raise nothing.
        clock: the time of ages.

    Example:
        ``with StreamMetrics(MetricsSettings(port=9404)) as metrics:``
        ``spark.streams.addListener(metrics)``
    """

    def __init__(
        self,
        settings: MetricsSettings | None = None,
        *,
        counts_folder: str | Path = "",
        tell: Callable[[Lag], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._configuration = Configuration.of(settings or MetricsSettings())
        self._counts_folder = str(counts_folder)
        self._tell = tell
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}
        self._portal: Portal | None = None
        self._exporter: Exporter | None = None
        self._failures = FailureLog(
            log, fails="cannot read counts", works="counts are read again", name="folder"
        )

    def __enter__(self) -> StreamMetrics:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        """The TCP port of the endpoint, also if the settings let the system choose one."""
        return self._configuration[MetricsSettings].port

    def start(self) -> None:
        """Start to serve or send.

        Raises:
            ConfigError: the endpoint's address cannot be bound, or a package is not installed.
        """
        self._portal = acquire_portal()
        try:
            starting = start_exporter(self._configuration, LABELS, self.collect)
            self._exporter = self._portal.run(starting, START_S)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop; what was not sent yet is dropped."""
        portal, self._portal = self._portal, None
        exporter, self._exporter = self._exporter, None
        if portal is None:
            return
        try:
            if exporter is not None:
                portal.run(exporter.stop(), START_S)
        finally:
            release_portal(portal)

    # --- Spark calls ------------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Remember the figures of a query that reads one of our formats."""
        lag = lag_of_progress(event.progress)
        if lag is not None:
            self.note(str(event.progress.runId), lag)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Forget the query."""
        with self._lock:
            self._queries.pop(str(event.runId), None)

    # --- the page ---------------------------------------------------------------------------------

    def note(self, run: str, lag: Lag) -> None:
        """Remember the figures of a query.

        Args:
            run: the id of its run.
            lag: the figures of its last progress.
        """
        with self._lock:
            query = self._queries.pop(run, None) or _Query(lag)
            query.lag = lag
            query.batches += 1
            query.rows += lag.rows
            self._queries[run] = query
            if len(self._queries) > QUERIES_MAX:
                del self._queries[next(iter(self._queries))]
        if self._tell is not None:
            self._tell(lag)

    async def collect(self, page: Page) -> None:
        """Fill a page."""
        with self._lock:
            queries = list(self._queries.values())
        batches = page.counter("cometmq_spark_batches_total", "Micro-batches")
        rows = page.counter("cometmq_spark_rows_total", "Rows of micro-batches")
        for query in queries:
            batches.set(query.batches, query=query.lag.query)
            rows.set(query.rows, query=query.lag.query)
        self._collect_sources(page, [query.lag for query in queries])
        if self._counts_folder:
            _collect_sinks(page, await self._sink_counts())

    def _collect_sources(self, page: Page, lags: list[Lag]) -> None:
        now_ms = self._clock.now_ms()
        prefix = "cometmq_spark_source_"
        away = page.gauge(f"{prefix}away_seconds", "Time since the broker does not respond", max)
        messages = page.gauge(f"{prefix}lag_messages", "Messages that are not read")
        seconds = page.gauge(f"{prefix}lag_seconds", "Age of the oldest unread message", max)
        size = page.gauge(f"{prefix}lag_bytes", "Bytes of logs that are not read")
        lost = page.counter(f"{prefix}lost_messages_total", "Messages lost before they were read")
        for lag in lags:
            for (topic, broker), keys in _by_broker(lag.queues.keys() | lag.lost.keys()).items():
                labels = {"query": lag.query, "topic": topic, "broker": broker}
                away.set(_age_s(now_ms, lag.away, keys), **labels)
                if passes_limits():
                    messages.set(sum(lag.queues.get(key, 0) for key in keys), **labels)
                    seconds.set(_age_s(now_ms, lag.next_ms, keys), **labels)
                    lost.set(sum(lag.lost.get(key, 0) for key in keys), **labels)
            if passes_limits():
                for broker, unread in lag.logs.items():
                    size.set(unread, query=lag.query, broker=broker)

    async def _sink_counts(self) -> list[SinkCounts]:
        try:
            found = await asyncio.to_thread(sink_counts, self._counts_folder)
        except (OSError, ValueError) as error:
            self._failures.failed(self._counts_folder, error)
            return []
        self._failures.succeeded(self._counts_folder)
        return found


def _collect_sinks(page: Page, found: list[SinkCounts]) -> None:
    prefix = "cometmq_spark_sink_"
    for name, text in SINK_COUNTERS.items():
        metric = page.counter(f"{prefix}{name}_total", text)
        for each in found:
            values = each.sent._asdict() | {"commits": each.commits}
            metric.set(values[name], job=each.job)
    last = page.gauge(f"{prefix}last_commit_seconds", "Time of the last commit, since 1970", max)
    for each in found:
        last.set(each.last_commit, job=each.job)


def _by_broker(keys: Iterable[QueueKey]) -> dict[tuple[str, str], list[QueueKey]]:
    """Return queues by topic and broker."""
    found: dict[tuple[str, str], list[QueueKey]] = {}
    for key in sorted(keys):
        found.setdefault((key.topic, key.broker), []).append(key)
    return found


def _age_s(now_ms: int, times_ms: Mapping[QueueKey, int], keys: list[QueueKey]) -> float:
    """Return the age of the oldest of these times, 0 without any."""
    return max([0, *(now_ms - times_ms[key] for key in keys if key in times_ms)]) / 1000


def lag_of_progress(progress: StreamingQueryProgress) -> Lag | None:
    """Return the figures of a query's progress; None if no source is one of ours."""
    sources = [(each.latestOffset, each.endOffset) for each in progress.sources]
    found = lag_of(progress.name or str(progress.id), progress.batchId, sources)
    return None if found is None else replace(found, rows=progress.numInputRows)


def lag_of(query: str, batch: int, sources: list[tuple[Any, Any]]) -> Lag | None:
    """Return how far a query is behind; None if no source is one of ours.

    Args:
        query: its name.
        batch: the batch it ended last.
        sources: of each source the newest and the last offset, as texts of Spark's progress.
    """
    queues: dict[QueueKey, int] = {}
    logs: dict[str, int] = {}
    more: dict[str, dict[QueueKey, int]] = {AWAY: {}, LOST: {}, NEXT: {}}
    ours = 0
    for newest, done in (map(_parsed, texts) for texts in sources):
        with contextlib.suppress(SourceError):
            queues.update(_between(from_json, newest, done))
            for name, figures in more.items():
                figures.update(positions_in(done if name == AWAY else newest, name))
            ours += 1
        with contextlib.suppress(SourceError):
            logs.update(_between(log_from_json, newest, done))
            ours += 1
    if not ours:
        return None
    return Lag(query, batch, queues, logs, more[NEXT], more[AWAY], more[LOST])


def _between(read: Callable[[Any], dict[Any, int]], newest: Any, done: Any) -> dict[Any, int]:
    """Return what lies between two documents; all from 0 on of what the last batch did not know."""
    ends, places = read(without_start(newest)), read(without_start(done))
    return {key: max(end - places.get(key, 0), 0) for key, end in ends.items()}


def _parsed(text: Any) -> Any:
    """Return the document of an offset; None if it is no JSON, and so of another source."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return None
