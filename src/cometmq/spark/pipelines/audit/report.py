"""The report of an audit."""

from __future__ import annotations

import pyarrow as pa

from cometmq.spark.pipelines.findings import charts
from cometmq.spark.pipelines.findings.analysis import AnalysisSettings, new_report, total
from cometmq.spark.pipelines.findings.figures import count
from cometmq.spark.pipelines.findings.report import Report, Section, severity_figures, top_rows
from cometmq.spark.pipelines.findings.rows import Findings

_QUEUE = ("topic", "broker_name", "queue_id")


def report_of(
    settings: AnalysisSettings, other: str, tables: dict[str, pa.Table], findings: Findings
) -> Report:
    """Make the report out of the tables.

    Args:
        settings: of the audit.
        other: the source that it has compared with; empty for none.
        tables, findings: what it has found.
    """
    report = new_report("Audit", settings)
    section = report.section("Overview")
    if findings.clean:
        section.say("Everything is as it should be.")
    _figures(section, tables)
    severity_figures(section, findings).findings(findings)
    if other:
        _comparison(report, tables, other)
    if "offsets" in tables:
        _offsets(report, tables)
    if tables.get("duplicates") is not None and tables["duplicates"].num_rows:
        report.section("More than once").table(tables["duplicates"])
    if "queues" in tables:
        rows = top_rows(tables["queues"], _QUEUE, "messages")
        queues = report.section("Queues")
        queues.plots(("Largest queues", charts.bars("Messages by queue", rows)))
        queues.table(tables["queues"])
    return report


def _figures(section: Section, tables: dict[str, pa.Table]) -> None:
    figures = {}
    if "queues" in tables:
        figures["messages"] = count(total(tables["queues"], "messages"))
        figures["queues"] = count(tables["queues"].num_rows)
        figures["missing"] = count(total(tables["queues"], "missing"))
    if "duplicates" in tables:
        figures["more than once"] = count(tables["duplicates"].num_rows)
    if figures:
        section.figures(figures)


def _comparison(report: Report, tables: dict[str, pa.Table], other: str) -> None:
    section = report.section("Compared", f"With {other}.")
    compared, differences = tables["compared"], tables["differences"]
    differing = compared.column("same").to_pylist().count(False)
    section.figures(
        {
            "parts compared": count(compared.num_rows),
            "that differ": count(differing),
            "messages that differ": count(differences.num_rows),
        },
        {"that differ": "error"} if differing else None,
    )
    shown = [name for name in compared.column_names if not name.startswith(("low_", "high_"))]
    if "queue_id" in shown:
        section.table(compared.select(shown), caption="Queues")
    if differences.num_rows:
        section.table(differences, caption="Differences")


def _offsets(report: Report, tables: dict[str, pa.Table]) -> None:
    offsets = tables["offsets"]
    section = report.section("Groups", "Where they stand, and how their lag went.")
    labels = ("consumer_group", "topic", "queue_id")
    rows = [row for row in top_rows(offsets, labels, "lag") if row[1] > 0]
    series = _lag_lines(tables["lag_history"])
    plots = [("Lag at each audit", charts.lines("Lag at each audit", series))] if series else []
    if rows:
        plots.insert(0, ("Largest lags", charts.bars("Largest lags", rows)))
    if plots:
        section.plots(*plots)
    section.table(offsets)


def _lag_lines(history: pa.Table) -> dict[str, list[tuple[float, float]]]:
    """The lag of the groups that are furthest behind now."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in history.to_pylist():
        if row["observed"] is not None:
            point = (row["observed"].timestamp() * 1000, float(row["lag"]))
            lines.setdefault(f"{row['consumer_group']} · {row['topic']}", []).append(point)
    furthest = sorted(lines, key=lambda name: -lines[name][-1][1])[: charts.SERIES_MAX]
    return {name: sorted(lines[name]) for name in furthest}
