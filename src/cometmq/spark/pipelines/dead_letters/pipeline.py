"""Analyses dead letters: why and when messages were dead-lettered, and for which group.

Reads ``%DLQ%`` and ``%RETRY%`` topics, and with them, as far as the source has them, the topics the
letters were sent to at first and the traces of their consumers. A selection can be exported as an
archive, repaired, and sent again by the replay pipeline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cometmq.model.topic import DLQ_PREFIX, RETRY_PREFIX, TRACE_TOPIC, dlq_topic, retry_topic
from cometmq.spark.pipelines.dead_letters import tables as letter_tables
from cometmq.spark.pipelines.dead_letters.export import EXPORT_COLUMNS, Selection, export
from cometmq.spark.pipelines.dead_letters.letters import LETTER_COLUMNS, letters, retries
from cometmq.spark.pipelines.findings import charts
from cometmq.spark.pipelines.findings.analysis import (
    Analysis,
    AnalysisSettings,
    counted,
    new_report,
    planned,
    total,
)
from cometmq.spark.pipelines.findings.figures import Unit, count, duration, share
from cometmq.spark.pipelines.findings.inputs import Topics
from cometmq.spark.pipelines.findings.report import (
    Report,
    Section,
    severity_figures,
    spread_rows,
    top_rows,
)
from cometmq.spark.pipelines.findings.rows import Finding, Findings, Severity
from cometmq.spark.pipelines.running.progress import Progress, silent
from cometmq.spark.pipelines.running.registry import Pipeline, Result
from cometmq.spark.pipelines.trace.records import MESSAGE_COLUMNS, records, repeated_removed
from cometmq.spark.pipelines.trace.tables import deliveries
from cometmq.system.settings import setting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLES = ("groups", "patterns", "facts", "reasons", "retried", "timeline", "letters")
_UNITS = {
    **{f"waited_{name}": Unit.MS for name in ("p50", "p90", "p99", "max")},
    "waited_ms": Unit.MS,
    "share": Unit.SHARE,
    "share_of_all": Unit.SHARE,
}
_OF_GROUP = ("group", "origin_topic")


@dataclass(frozen=True)
class DeadLetterSettings(AnalysisSettings):
    """Whose dead letters, and what to do with them."""

    groups: tuple[str, ...] = setting(())
    """Consumer groups. Default: all."""
    originals: bool = setting(True)
    """Whether the topics to which the dead letters were first sent are read too. Needed for the
    time from first delivery to dead letter and for ``share_of_all`` and ``lift``.
    """
    trace_topic: tuple[str, ...] = setting((TRACE_TOPIC,))
    """Topics of traces, which record how handlers failed."""
    share_min: float = setting(0.1, low=0.0, high=1.0)
    """Minimum share of a group's dead letters for which a fact is true, to be reported."""
    lift_min: float = setting(1.5, low=1.0)
    """Minimum factor by which a fact is more frequent than among all messages of the topic."""
    export: str = setting("")
    """Folder for an archive of dead letters, to be sent again with the replay pipeline."""
    export_topics: tuple[str, ...] = setting(())
    """Export only dead letters that were first sent to these topics."""
    export_tags: tuple[str, ...] = setting(())
    """Export only dead letters with these tags."""
    export_matching: str = setting("")
    """Export only dead letters whose body matches this regular expression."""

    def topics(self, prefix: str, name: Callable[[str], str]) -> Topics:
        """The dead-letter or retry topics of the groups."""
        if self.groups:
            return Topics(frozenset(map(name, self.groups)))
        return Topics(prefixes=(prefix,))

    @property
    def selection(self) -> Selection:
        """What is exported."""
        return Selection(self.groups, self.export_topics, self.export_tags, self.export_matching)


class _Reader:
    """The frames of one run, each made when it is first needed."""

    def __init__(self, spark: SparkSession, settings: DeadLetterSettings) -> None:
        self._spark = spark
        self._settings = settings
        self._source = settings.messages

    def table(self, name: str) -> DataFrame:
        """Give one of ``TABLES``."""
        settings = self._settings
        if name == "letters":
            return self.details.orderBy("died", "group", "queue_offset")
        if name == "retried":
            return letter_tables.retried(self.retries, self.details)
        if name == "facts":
            return letter_tables.telling_facts(
                self.letters,
                self.originals,
                share_min=settings.share_min,
                lift_min=settings.lift_min,
            )
        made: DataFrame = getattr(letter_tables, name)(self.details)
        return made

    @cached_property
    def letters(self) -> DataFrame:
        topics = self._settings.topics(DLQ_PREFIX, dlq_topic)
        return letters(self._read(topics, span=self._settings.span)).persist()

    @cached_property
    def retries(self) -> DataFrame:
        topics = self._settings.topics(RETRY_PREFIX, retry_topic)
        return retries(self._read(topics, span=self._settings.span))

    @cached_property
    def originals(self) -> DataFrame | None:
        if not self._settings.originals:
            return None
        found = self.letters.select("origin_topic").distinct().where("origin_topic IS NOT NULL")
        names = frozenset(row[0] for row in found.collect())
        return self._read(Topics(names)) if names else None

    @cached_property
    def calls(self) -> DataFrame | None:
        if not self._settings.trace_topic:
            return None
        topics = Topics(frozenset(self._settings.trace_topic))
        messages = self._source.messages(self._spark, topics, MESSAGE_COLUMNS)
        return deliveries(repeated_removed(records(messages)))

    @cached_property
    def details(self) -> DataFrame:
        known = letter_tables.Known(self.originals, self.calls, self.retries)
        return letter_tables.details(self.letters, known).persist()

    def export(self) -> dict[str, Any]:
        topics = self._settings.topics(DLQ_PREFIX, dlq_topic)
        messages = self._source.messages(
            self._spark, topics, EXPORT_COLUMNS, span=self._settings.span
        )
        return export(messages, self._settings.selection, self._settings.export)

    def close(self) -> None:
        """Let go of what is kept in memory."""
        for name in ("letters", "details"):
            if name in self.__dict__:
                getattr(self, name).unpersist()

    def _read(self, topics: Topics, **more: Any) -> DataFrame:
        return self._source.messages(self._spark, topics, LETTER_COLUMNS, **more)


def dead_letters(
    spark: SparkSession,
    settings: DeadLetterSettings,
    *,
    progress: Progress = silent,
    dry_run: bool = False,
) -> Result:
    """Find out why messages died, when, for which group, and what they have in common.

    Args:
        spark: a session that knows our formats.
        settings: the source, the groups, the output folder, and what to export.
        progress: is told of each step.
        dry_run: say what would be read and written, only.

    Returns:
        The run record and the tables ``findings``, ``groups``, ``patterns``, ``facts``,
        ``reasons``, ``retried``, ``timeline`` and ``letters``; the same are in the output folder,
        with a report.

    Raises:
        ConfigError: there is no source or no output, or nothing to go on with.
    """
    if dry_run:
        return _foretold(settings)
    steps = len(TABLES) + bool(settings.export)
    analysis = Analysis("dead-letters", settings, progress, steps)
    with analysis.recorded():
        reader = _Reader(spark, settings)
        try:
            for name in TABLES:
                analysis.table(name, lambda name=name: reader.table(name))  # type: ignore[misc]
            exported = analysis.once("export", reader.export) if settings.export else {}
        finally:
            reader.close()
        analysis.findings.add(*find(analysis.tables), *_homeless(exported))
        page = report_of(settings, analysis.tables, analysis.findings, exported)
        counts = {**_counts(analysis.tables), "exported": int(exported.get("rows", 0))}
        return analysis.finish(page, counts, _notes(settings, exported))


def _foretold(settings: DeadLetterSettings) -> Result:
    told = planned("dead-letters", settings, settings.topics(DLQ_PREFIX, dlq_topic), TABLES)
    if not settings.export:
        return told
    return replace(told, notes=(*told.notes, f"would export letters to {settings.export}"))


def find(tables: dict[str, pa.Table]) -> list[Finding]:
    """Say what the tables show."""
    found = [_dead(row) for row in tables["groups"].to_pylist()]
    found += [_reason(row) for row in tables["reasons"].to_pylist() if row["error_pattern"]]
    found += [_fact(row) for row in tables["facts"].slice(0, 20).to_pylist()]
    return found


def report_of(
    settings: DeadLetterSettings,
    tables: dict[str, pa.Table],
    findings: Findings,
    exported: Any = None,
) -> Report:
    """Make the report out of the tables."""
    report = new_report("Dead letters", settings)
    counts = _counts(tables)
    section = report.section("Overview").figures(
        {
            "dead letters": count(counts["letters"]),
            "groups": count(counts["groups"]),
            "handled later": count(counts["handled_later"]),
            "sent again": count(counts["sent_again"]),
        }
    )
    severity_figures(section, findings).findings(findings)
    if exported:
        section.say(f"{counted(exported['rows'], 'dead letter')} exported to {settings.export}.")
    _who(report.section("Which groups"), tables)
    _when(
        report.section(
            "When", "Dead letters per hour, and the time from first delivery to dead letter."
        ),
        tables,
    )
    _why(report.section("Why"), tables)
    patterns = report.section("What they look like", "Numbers, ids, times and texts are replaced.")
    patterns.table(tables["patterns"], _UNITS)
    report.section("Letters").table(tables["letters"], _UNITS)
    return report


def _who(section: Section, tables: dict[str, pa.Table]) -> None:
    rows = top_rows(tables["groups"], _OF_GROUP, "letters")
    section.plots(("Dead letters by group and topic", charts.bars("Dead letters by group", rows)))
    section.table(tables["groups"], _UNITS)
    if tables["retried"].num_rows:
        section.table(tables["retried"], caption="Redelivered messages")


def _when(section: Section, tables: dict[str, pa.Table]) -> None:
    spreads = spread_rows(tables["groups"], _OF_GROUP, "waited_")
    section.plots(
        ("Dead letters per hour", charts.lines("Dead letters per hour", _per_hour(tables))),
        ("From first delivery to death", charts.spreads("From first delivery to death", spreads)),
    )


def _why(section: Section, tables: dict[str, pa.Table]) -> None:
    facts = tables["facts"]
    if facts.num_rows:
        section.say("What is true for many dead letters and for few other messages of the topic.")
        section.table(facts, _UNITS, caption="Facts")
    else:
        section.say("No fact is more frequent among dead letters than among other messages.")
    reasons = tables["reasons"]
    section.table(reasons, _UNITS, caption="What handlers raised last, and how the call ended")


def _per_hour(tables: dict[str, pa.Table]) -> dict[str, list[tuple[float, float]]]:
    """One line per group, those of the largest; the others together."""
    largest = [label for label, _ in top_rows(tables["groups"], ("group",), "letters")]
    named = list(dict.fromkeys(largest))[: charts.SERIES_MAX - 1]
    sums: dict[str, dict[float, float]] = {}
    for row in tables["timeline"].to_pylist():
        name = row["group"] if row["group"] in named else "others"
        line = sums.setdefault(name, {})
        moment = row["hour"].timestamp() * 1000
        line[moment] = line.get(moment, 0.0) + row["letters"]
    return {name: sorted(line.items()) for name, line in sums.items()}


def _counts(tables: dict[str, pa.Table]) -> dict[str, int]:
    groups = tables["groups"]
    return {
        "letters": total(groups, "letters"),
        "groups": len(set(groups.column("group").to_pylist())),
        "handled_later": total(groups, "handled_later"),
        "sent_again": total(groups, "sent_again"),
    }


def _dead(row: dict[str, Any]) -> Finding:
    text = f"group {row['group']} dead-lettered {counted(row['letters'], 'message')}"
    text += f", half of them within {duration(row['waited_p50'])}"
    left = row["letters"] - row["handled_later"] - row["sent_again"]
    severity = Severity.WARNING if left > 0 else Severity.NOTE
    return Finding.shown_by(
        row, "dead-letters", severity, text, topic="origin_topic", count=row["letters"]
    )


def _reason(row: dict[str, Any]) -> Finding:
    number = counted(row["letters"], "dead letter")
    text = f"{number} of {row['group']} failed with {row['error_pattern']}"
    return Finding.shown_by(
        row, "last-error", Severity.NOTE, text, topic="origin_topic", count=row["letters"]
    )


def _fact(row: dict[str, Any]) -> Finding:
    text = f"{row['fact']}: {share(row['share'])} of the dead letters of {row['group']}"
    if row["share_of_all"] is not None:
        text += f", {share(row['share_of_all'])} of all messages"
    return Finding.shown_by(
        row, "telling-fact", Severity.NOTE, text, topic="origin_topic", count=row["letters"]
    )


def _homeless(exported: Any) -> list[Finding]:
    number = int(exported.get("homeless", 0))
    text = f"{counted(number, 'dead letter')} not exported: without the topic of the first send"
    return [Finding("no-origin", Severity.WARNING, text, count=number)] if number else []


def _notes(settings: DeadLetterSettings, exported: Any) -> list[str]:
    if not exported:
        return []
    number = counted(exported["rows"], "dead letter")
    return [f"{number} exported: cometmq pipeline replay --archive {settings.export} sends them"]


PIPELINE = Pipeline(
    "dead-letters",
    "Report dead letters: their groups, times, errors and common properties.",
    DeadLetterSettings,
    dead_letters,
)
