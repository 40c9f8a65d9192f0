"""The audit: finds missing, doubled and damaged messages of one source, or compares two sources.

Checks queues for gaps, repeats and damage, topics for ids that come twice, transactions for halves
without an end, groups for offsets outside of their queues; and, if another source is given,
compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cometmq.model.errors import ConfigError
from cometmq.model.topic import HALF_TOPIC, OP_HALF_TOPIC
from cometmq.spark.pipelines.audit import (
    comparison,
    offset_checks,
    queue_checks,
    transaction_checks,
)
from cometmq.spark.pipelines.audit.report import report_of
from cometmq.spark.pipelines.findings.analysis import Analysis, AnalysisSettings, planned, total
from cometmq.spark.pipelines.findings.inputs import BROKERS, LOG, Source, Topics
from cometmq.spark.pipelines.findings.rows import Findings
from cometmq.spark.pipelines.running.folders import open_folder
from cometmq.spark.pipelines.running.progress import Progress, silent
from cometmq.spark.pipelines.running.registry import Pipeline, Result
from cometmq.system.settings import setting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUES, DUPLICATES, TRANSACTIONS, OFFSETS = "queues", "duplicates", "transactions", "offsets"
CHECKS = (QUEUES, DUPLICATES, TRANSACTIONS, OFFSETS)
_AS_STORED = {"decompress": "false"}


@dataclass(frozen=True)
class AuditSettings(AnalysisSettings):
    """What to check."""

    topics: tuple[str, ...] = setting(())
    """Topics to audit. Default: all except system topics."""
    checks: tuple[str, ...] = setting(CHECKS)
    """Checks to run: ``queues``, ``duplicates``, ``transactions``, ``offsets``."""
    settle_s: int = setting(60, unit="s", low=0)
    """Half messages younger than this are reported as notes only."""
    lag_max: int = setting(0, unit="messages", low=0)
    """Maximum lag of a group in one queue; 0 for no limit."""
    other: str = setting("")
    """A second source, which should have the same messages."""
    other_options: tuple[str, ...] = setting(())
    """Further options of the second source's format, each ``name=value``."""
    compare: str = setting(comparison.OFFSET, choices=(comparison.OFFSET, comparison.KEY))
    """``offset`` compares by queue offset, for a replica or an archive; ``key`` by message id, for
    another cluster.
    """
    ignore: tuple[str, ...] = setting(())
    """Columns that may differ when compared by offset, for example ``store_timestamp``."""
    match_brokers: bool = setting(False)
    """Whether queues with the same number at brokers with different names are different queues."""
    map_topics: tuple[str, ...] = setting(())
    """Topics with another name in the second source, each ``here=there``; only with
    ``compare=key``.
    """

    def check(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            ConfigError: a check or a column is not known, or a mapping has no ``=``.
        """
        _known("checks", self.checks, CHECKS)
        _known("ignore", self.ignore, comparison.COMPARED)
        if self.map_topics and self.compare != comparison.KEY:
            raise ConfigError("map_topics: topics are mapped when compared by key only")
        _ = self.mapping

    @property
    def wanted(self) -> Topics:
        """The topics to audit."""
        return Topics(frozenset(self.topics))

    @property
    def mapping(self) -> dict[str, str]:
        """The names in the second source of topics with another name there."""
        pairs = [text.partition("=") for text in self.map_topics]
        if bad := [text for (here, found, there), text in zip(pairs, self.map_topics, strict=True)
                   if not (here and found and there)]:  # fmt: skip
            raise ConfigError(f"map_topics={bad[0]}: expected here=there")
        return {here.strip(): there.strip() for here, _, there in pairs}

    @property
    def second(self) -> Source | None:
        """The second source, if there is one."""
        return Source.parse(self.other, self.other_options) if self.other else None


class _Auditor:
    """The frames of one run, each made when it is first needed."""

    def __init__(self, spark: SparkSession, settings: AuditSettings) -> None:
        self._spark = spark
        self._settings = settings
        self._source = settings.messages
        self._kept: list[DataFrame] = []

    def steps(self) -> dict[str, Callable[[], DataFrame | pa.Table]]:
        """The tables of this run, in order, and what makes each."""
        checks = self._settings.checks
        steps: dict[str, Callable[[], DataFrame | pa.Table]] = {}
        if QUEUES in checks:
            steps["queues"] = lambda: queue_checks.queues(self._checked)
            steps["queue_findings"] = lambda: queue_checks.queue_findings(self._checked)
        if DUPLICATES in checks:
            steps["duplicates"] = lambda: self._copies
            steps["duplicate_findings"] = lambda: queue_checks.duplicate_findings(self._copies)
        if TRANSACTIONS in checks:
            steps["transaction_findings"] = self._transactions
            steps["commit_findings"] = self._commits
        if OFFSETS in checks and self._source.kind == BROKERS:
            steps["offsets"] = self._offsets
        if self._settings.other:
            steps |= self._compared()
        return steps

    def close(self) -> None:
        """Let go of what is kept in memory."""
        for frame in self._kept:
            frame.unpersist()

    def _read(self, topics: Topics, columns: Iterable[str], **more: str) -> DataFrame:
        return self._source.messages(
            self._spark,
            topics,
            tuple(columns),
            span=self._settings.span,
            past_damage=True,
            **more,
        )

    @cached_property
    def _checked(self) -> DataFrame:
        valid = ("record_valid",) if self._source.kind == LOG else ()
        columns = (*queue_checks.AUDIT_COLUMNS, *valid)
        messages = self._read(self._settings.wanted, columns, **_AS_STORED)
        return self._keep(queue_checks.checked(messages))

    @cached_property
    def _copies(self) -> DataFrame:
        return queue_checks.duplicates(self._checked)

    def _transactions(self) -> DataFrame:
        topics = Topics(frozenset({HALF_TOPIC, OP_HALF_TOPIC}))
        messages = self._read(topics, transaction_checks.TRANSACTION_COLUMNS)
        return transaction_checks.transactions(messages, settle_s=self._settings.settle_s)

    def _commits(self) -> DataFrame:
        columns = ("topic", "broker_name", "queue_id", "queue_offset", "msg_id", "sys_flag",
                   "prepared_offset")  # fmt: skip
        return transaction_checks.commits(self._read(self._settings.wanted, columns))

    def _offsets(self) -> DataFrame:
        reader = self._spark.read.format("rocketmq-meta").options(**self._source.connection)
        if self._settings.topics:
            reader = reader.option("subscribe", ",".join(self._settings.topics))
        return reader.load()

    def _compared(self) -> dict[str, Callable[[], DataFrame | pa.Table]]:
        if self._settings.compare == comparison.OFFSET:
            return {
                "compared": lambda: self._queues,
                "differences": lambda: self._differences,
                "difference_findings": lambda: comparison.offset_findings(self._differences),
            }
        return {
            "compared": lambda: self._parts,
            "differences": lambda: self._key_differences,
            "difference_findings": lambda: comparison.key_findings(self._key_differences),
        }

    @cached_property
    def _sides(self) -> tuple[DataFrame, DataFrame]:
        there = self._settings.second
        assert there is not None, "asked only if there is a second source"
        topics = Topics(frozenset(self._settings.mapping.get(t, t) for t in self._settings.topics))
        here = self._read(self._settings.wanted, comparison.COMPARE_COLUMNS)
        span, columns = self._settings.span, comparison.COMPARE_COLUMNS
        return here, there.messages(self._spark, topics, columns, span=span, past_damage=True)

    @cached_property
    def _by_offset(self) -> comparison.Comparison:
        settings = self._settings
        here, there = self._sides
        return comparison.Comparison(
            here, there, ignored=settings.ignore, brokers=settings.match_brokers
        )

    @cached_property
    def _queues(self) -> DataFrame:
        return self._keep(self._by_offset.queues())

    @cached_property
    def _differences(self) -> DataFrame:
        return self._keep(self._by_offset.differences(self._queues))

    @cached_property
    def _parts(self) -> DataFrame:
        return self._keep(comparison.key_parts(*self._sides, self._settings.mapping))

    @cached_property
    def _key_differences(self) -> DataFrame:
        found = comparison.key_differences(*self._sides, self._parts, self._settings.mapping)
        return self._keep(found)

    def _keep(self, frame: DataFrame) -> DataFrame:
        self._kept.append(frame.persist())
        return frame


def audit(
    spark: SparkSession,
    settings: AuditSettings,
    *,
    progress: Progress = silent,
    dry_run: bool = False,
) -> Result:
    """Check that messages are all there, once and whole, and that two sources hold the same.

    Args:
        spark: a session that knows our formats.
        settings: the source, the topics, the checks, the output folder, and another source.
        progress: is told of each step.
        dry_run: say what would be read and written, only.

    Returns:
        The run record and the tables ``findings``, ``queues``, ``duplicates``, ``offsets``,
        ``lag_history``, ``compared`` and ``differences``, as far as they were asked for; the same
        are in the output folder, with a report. ``good`` is whether nothing was found that is
        worse than a note.

    Raises:
        ConfigError: there is no source or no output, settings contradict each other, or there is
            nothing to go on with.
    """
    settings.check()
    if dry_run:
        steps = _Auditor(spark, settings).steps()
        tables = [name for name in steps if not name.endswith("_findings")]
        others = [settings.second] if settings.second else []
        return planned("audit", settings, settings.wanted, tables, others)
    auditor = _Auditor(spark, settings)
    steps = auditor.steps()
    analysis = Analysis("audit", settings, progress, len(steps))
    with analysis.recorded():
        try:
            for name, make in steps.items():
                analysis.table(name, make)
        finally:
            auditor.close()
        _take_findings(analysis, settings)
        page = report_of(settings, settings.other, analysis.tables, analysis.findings)
        return analysis.finish(page, _counts(analysis.tables))


def _take_findings(analysis: Analysis, settings: AuditSettings) -> None:
    """Put the findings of all checks together."""
    for name in [name for name in analysis.tables if name.endswith("_findings")]:
        analysis.findings.add(*Findings.from_table(analysis.tables.pop(name)))
    offsets = analysis.tables.get("offsets")
    if offsets is not None:
        found = offset_checks.offset_findings(offsets, lag_max=settings.lag_max)
        folder = open_folder(open_folder(settings.output).path("_lags"))
        name = analysis.run.record.id.removeprefix("audit-")
        history = analysis.tables["lag_history"] = offset_checks.keep(folder, name, offsets)
        analysis.findings.add(*found, *offset_checks.growing(history))


def _counts(tables: dict[str, pa.Table]) -> dict[str, int]:
    counts: dict[str, int] = {}
    if "queues" in tables:
        queues = tables["queues"]
        counts = {"queues": queues.num_rows, "messages": total(queues, "messages")}
        counts |= {name: total(queues, name) for name in ("missing", "repeated", "crc_wrong")}
    if "duplicates" in tables:
        counts["duplicates"] = tables["duplicates"].num_rows
    if "compared" in tables:
        same: list[Any] = tables["compared"].column("same").to_pylist()
        counts |= {"compared": len(same), "different": same.count(False)}
    return counts


def _known(name: str, given: Iterable[str], known: Iterable[str]) -> None:
    for each in given:
        if each not in known:
            raise ConfigError(f"{name}={each}: expected some of {', '.join(known)}")


PIPELINE = Pipeline(
    "audit",
    "Check that messages are complete and stored once; compare two sources.",
    AuditSettings,
    audit,
)
