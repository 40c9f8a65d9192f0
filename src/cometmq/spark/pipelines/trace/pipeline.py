"""The trace analysis: latencies of messages, lost messages, repeated deliveries.

Reads the messages of a trace topic, which producers and consumers with traces on have written.
The records are those of RocketMQ's clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cometmq.model.topic import TRACE_TOPIC
from cometmq.spark.pipelines.findings import charts
from cometmq.spark.pipelines.findings.analysis import (
    Analysis,
    AnalysisSettings,
    counted,
    new_report,
    planned,
    total,
)
from cometmq.spark.pipelines.findings.figures import Unit, count, duration
from cometmq.spark.pipelines.findings.inputs import Topics
from cometmq.spark.pipelines.findings.report import (
    Report,
    severity_figures,
    spread_rows,
    top_rows,
)
from cometmq.spark.pipelines.findings.rows import Finding, Findings, Severity
from cometmq.spark.pipelines.running.progress import Progress, silent
from cometmq.spark.pipelines.running.registry import Pipeline, Result
from cometmq.spark.pipelines.trace import tables as trace_tables
from cometmq.spark.pipelines.trace.records import MESSAGE_COLUMNS, records, repeated_removed
from cometmq.system.settings import setting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLES = (
    "sends", "waits", "handlers", "timeline", "transactions", "not_consumed_counts",
    "not_consumed", "consumed_twice", "unreadable",
)  # fmt: skip
_LABELS = ("topic", "group", "client")
_COSTS = {f"{kind}_{name}": Unit.MS for kind in ("cost", "wait") for name in ("p50", "p90", "p99")}
_UNITS = {**_COSTS, "cost_max": Unit.MS, "wait_max": Unit.MS, "body_bytes": Unit.BYTES}


@dataclass(frozen=True)
class TraceSettings(AnalysisSettings):
    """What to find out from traces."""

    trace_topic: tuple[str, ...] = setting((TRACE_TOPIC,))
    """Topics of traces."""
    settle_s: int = setting(60, unit="s", low=0)
    """Messages sent less than this time before the last record are not yet expected to be consumed.
    """


class Traces:
    """The tables of one set of records.

    Args:
        found: what `cometmq.spark.pipelines.trace.records.records` gave; kept in memory until
            `close`.
        settle_s: as in the settings.
    """

    def __init__(self, found: DataFrame, settle_s: int = 60) -> None:
        self._records = found.persist()
        self._sent = trace_tables.sent(self._records)
        calls = trace_tables.with_topics(trace_tables.deliveries(self._records), self._sent)
        self._calls = calls.persist()
        self._missing = trace_tables.not_consumed(
            self._sent, self._calls, self._records, settle_s=settle_s
        ).persist()

    def close(self) -> None:
        """Let go of what is kept in memory."""
        for kept in (self._missing, self._calls, self._records):
            kept.unpersist()

    def table(self, name: str) -> DataFrame:
        """Give one of ``TABLES``; nothing is computed yet."""
        made: DataFrame = getattr(self, f"_{name}")()
        return made

    def _sends(self) -> DataFrame:
        return trace_tables.send_costs(self._sent)

    def _waits(self) -> DataFrame:
        return trace_tables.waits(self._calls)

    def _handlers(self) -> DataFrame:
        return trace_tables.handler_costs(self._calls)

    def _timeline(self) -> DataFrame:
        return trace_tables.timeline(self._sent, self._calls)

    def _transactions(self) -> DataFrame:
        return trace_tables.transactions(self._records)

    def _not_consumed(self) -> DataFrame:
        return self._missing

    def _not_consumed_counts(self) -> DataFrame:
        return trace_tables.not_consumed_counts(self._missing)

    def _consumed_twice(self) -> DataFrame:
        return trace_tables.consumed_twice(self._calls)

    def _unreadable(self) -> DataFrame:
        return trace_tables.unreadable(self._records)


def trace(
    spark: SparkSession,
    settings: TraceSettings,
    *,
    progress: Progress = silent,
    dry_run: bool = False,
) -> Result:
    """Measure latencies from traces, and find messages that were lost or handled twice.

    Args:
        spark: a session that knows our formats.
        settings: the source, the trace topics and the output folder.
        progress: is told of each step.
        dry_run: say what would be read and written, only.

    Returns:
        The run record and the tables ``findings``, ``sends``, ``waits``, ``handlers``,
        ``timeline``, ``transactions``, ``not_consumed_counts``, ``not_consumed``,
        ``consumed_twice`` and ``unreadable``; the same are in the output folder, with a report.

    Raises:
        ConfigError: there is no source or no output, or nothing to go on with.
    """
    topics = Topics(frozenset(settings.trace_topic))
    if dry_run:
        return planned("trace", settings, topics, TABLES)
    analysis = Analysis("trace", settings, progress, len(TABLES))
    with analysis.recorded():
        messages = settings.messages.messages(spark, topics, MESSAGE_COLUMNS, span=settings.span)
        traces = Traces(repeated_removed(records(messages)), settings.settle_s)
        try:
            for name in TABLES:
                analysis.table(name, lambda name=name: traces.table(name))  # type: ignore[misc]
        finally:
            traces.close()
        analysis.findings.add(*find(analysis.tables))
        return analysis.finish(
            report_of(settings, analysis.tables, analysis.findings), _counts(analysis.tables)
        )


def find(tables: dict[str, pa.Table]) -> list[Finding]:
    """Say what is wrong with what the tables show."""
    found = [_lost(row) for row in tables["not_consumed_counts"].to_pylist()]
    found += [_twice(row) for row in tables["consumed_twice"].to_pylist()]
    found += [_unread(row) for row in tables["unreadable"].to_pylist()]
    found += [_backwards(row) for row in tables["waits"].to_pylist() if row["backwards"]]
    found += [_failed(row) for row in tables["sends"].to_pylist() if row["failed"]]
    return found


def report_of(settings: TraceSettings, tables: dict[str, pa.Table], findings: Findings) -> Report:
    """Make the report out of the tables."""
    report = new_report("Latency and losses, from traces", settings)
    counts = _counts(tables)
    section = report.section("Overview").figures(
        {
            "messages sent": count(counts["sent"]),
            "deliveries": count(counts["deliveries"]),
            "never consumed": count(counts["not_consumed"]),
            "consumed twice": count(counts["consumed_twice"]),
        }
    )
    severity_figures(section, findings).findings(findings)
    section.plots(("Messages per minute", _per_minute(tables["timeline"])))
    _latency(report, tables["sends"], "Sending", "cost_", "What a send cost its producer.")
    _latency(report, tables["waits"], "Waiting", "wait_", "From the store to the first delivery.")
    _latency(report, tables["handlers"], "Handling", "cost_", "What a handler's call cost.")
    for name, title in _DETAILS.items():
        if tables[name].num_rows:
            report.section(title).table(tables[name], _UNITS)
    return report


_DETAILS = {
    "not_consumed": "Never consumed",
    "consumed_twice": "Consumed twice",
    "transactions": "Transactions",
    "unreadable": "Records that cannot be read",
}


def _latency(report: Report, table: pa.Table, title: str, prefix: str, text: str) -> None:
    section = report.section(title, text)
    if not table.num_rows:
        section.say("The traces contain no data about it.")
        return
    rows = spread_rows(table, _LABELS, prefix)
    number = table.column_names[3]
    section.plots(
        ("Slowest, by p99", charts.spreads(f"{title}, slowest by p99", rows)),
        (f"Most {number}", charts.bars(f"Most {number}", top_rows(table, _LABELS, number))),
    ).table(table, _UNITS)


def _per_minute(table: pa.Table) -> str:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in table.to_pylist():
        point = (row["minute"].timestamp() * 1000, float(row["messages"]))
        series.setdefault(row["what"], []).append(point)
    return charts.lines("Messages per minute", series)


def _counts(tables: dict[str, pa.Table]) -> dict[str, int]:
    return {
        "sent": total(tables["sends"], "sent"),
        "deliveries": total(tables["handlers"], "deliveries"),
        "not_consumed": total(tables["not_consumed_counts"], "messages"),
        "consumed_twice": tables["consumed_twice"].num_rows,
    }


def _lost(row: dict[str, Any]) -> Finding:
    group = f" by {row['group']}" if row["group"] else ""
    text = f"{counted(row['messages'], 'message')} sent and not consumed{group}: {row['reason']}"
    unseen = row["group"] is None
    severity = Severity.NOTE if unseen else Severity.ERROR
    return Finding.shown_by(row, "never-consumed", severity, text, count=row["messages"])


def _twice(row: dict[str, Any]) -> Finding:
    text = f"{row['group']} handled message {row['msg_id']} {row['times']} times"
    return Finding.shown_by(row, "consumed-twice", Severity.WARNING, text, count=row["times"])


def _unread(row: dict[str, Any]) -> Finding:
    place = row["queue_offset"]
    return Finding.shown_by(
        row, "unreadable-trace", Severity.WARNING, row["problem"], first=place, last=place
    )


def _backwards(row: dict[str, Any]) -> Finding:
    text = f"{counted(row['backwards'], 'delivery')} of {row['group']} before the store"
    text += f", by {duration(-min(row['wait_p50'], 0))} at the median: clocks differ"
    return Finding.shown_by(row, "clocks-differ", Severity.NOTE, text, count=row["backwards"])


def _failed(row: dict[str, Any]) -> Finding:
    text = f"{counted(row['failed'], 'send')} of {row['group']} failed"
    return Finding.shown_by(row, "failed-send", Severity.WARNING, text, count=row["failed"])


PIPELINE = Pipeline(
    "trace",
    "Compute latency percentiles and find unconsumed messages, from traces.",
    TraceSettings,
    trace,
)
