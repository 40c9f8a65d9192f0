"""The base of analysing pipelines: settings, steps, results.

An analysis is a row of steps, each of which computes one table and keeps it in the output folder
before the run record says it is done. A run that is gone on with takes those tables from there.
The report is made of the tables, so it is the same whichever run computed them.

    output := report.html | findings.parquet | <table>.parquet* | _runs/<id>.jsonl
              | _steps/<run id>/<table>.parquet*
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from cometmq.model.errors import ConfigError
from cometmq.model.nouns import noun_of
from cometmq.spark.pipelines.findings.figures import count, instant
from cometmq.spark.pipelines.findings.inputs import Source, Span, Topics
from cometmq.spark.pipelines.findings.report import Report
from cometmq.spark.pipelines.findings.rows import Findings
from cometmq.spark.pipelines.running.folders import Folder, open_folder
from cometmq.spark.pipelines.running.progress import Progress
from cometmq.spark.pipelines.running.registry import PipelineSettings, Result
from cometmq.spark.pipelines.running.runs import Run, RunRecord, Runs, recorded
from cometmq.system.settings import setting

REPORT, FINDINGS = "report.html", "findings"
_NOT_INPUTS = ("runs", "resume", "output", "options", "other_options")


@dataclass(frozen=True)
class AnalysisSettings(PipelineSettings):
    """What every analysis can be told."""

    source: str = setting("")
    """Source of the messages: ``brokers:HOST:PORT``, ``log:DIRECTORY``, ``archive:DIRECTORY`` or
    ``parquet:DIRECTORY``.
    """
    options: tuple[str, ...] = setting(())
    """Further options of the source's format, each ``name=value``."""
    since: str = setting("")
    """Only messages stored at or after this time: ``2026-11-21T18:00``, local without a zone."""
    until: str = setting("")
    """Only messages stored before this time."""
    output: str = setting("")
    """Folder for the report and the tables: a directory or an address such as ``s3://…``."""
    rows_max: int = setting(10_000, unit="rows", low=1, high=1_000_000)
    """Maximum rows of each table; further rows are only counted."""

    @property
    def messages(self) -> Source:
        """The source.

        Raises:
            ConfigError: it is not given, or of no known kind.
        """
        if not self.source:
            raise ConfigError("no source: give brokers:HOST:PORT, log:PLACE or archive:PLACE")
        return Source.parse(self.source, self.options)

    @property
    def span(self) -> Span:
        """From when to when."""
        return Span.parse(self.since, self.until)


class Analysis:
    """One run of an analysis.

    Args:
        name: of the pipeline.
        settings: what to do; output is where to.
        progress: is told of each step.
        steps: how many there will be.

    Raises:
        ConfigError: there is no output folder, or nothing to go on with.
    """

    def __init__(
        self, name: str, settings: AnalysisSettings, progress: Progress, steps: int
    ) -> None:
        if not settings.output:
            raise ConfigError("no output: give a folder for the report and the tables")
        self._folder: Folder = open_folder(settings.output)
        runs = Runs(settings.runs or self._folder.path("_runs"))
        self.run: Run = runs.begin_or_resume(name, inputs_of(settings), settings.resume)
        self.tables: dict[str, pa.Table] = {}
        self.findings = Findings()
        self.name = name
        self._rows_max = settings.rows_max
        self._progress = progress
        progress.start(steps, "steps", name)

    def table(self, name: str, make: Callable[[], DataFrame | pa.Table]) -> pa.Table:
        """Compute a table and keep it, or take the one that this run computed before."""
        path = f"_steps/{self.run.record.id}/{name}.parquet"
        if name in self.run.steps:
            with self._folder.reading(path) as file:
                found = pq.read_table(file)
        else:
            found = self._computed(make())
            with self._folder.writing(path) as file:
                pq.write_table(found, file)
            self.run.step(name, rows=found.num_rows)
        self.tables[name] = found
        self._progress.step()
        return found

    def once(self, name: str, act: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Do something that leaves no table, or give what it told when this run did it before."""
        if name not in self.run.steps:
            self.run.step(name, **act())
        self._progress.step()
        return self.run.steps[name]

    def finish(
        self, report: Report, counts: Mapping[str, int], notes: Iterable[str] = ()
    ) -> Result:
        """Write report and tables, end the run, and give what it found."""
        self.tables = {FINDINGS: self.findings.table(), **self.tables}
        outputs = [self._write(name, table) for name, table in self.tables.items()]
        outputs.insert(0, report.write(self._folder.path(REPORT)))
        for name in self._folder.names(f"_steps/{self.run.record.id}"):
            self._folder.remove(name)
        record = self.run.end(
            outputs=outputs,
            counts={**counts, "findings": len(self.findings)},
            checksum=checksum(self.tables),
        )
        self._progress.end()
        return Result(record, self.tables, tuple(notes), good=self.findings.clean)

    def recorded(self) -> Any:
        """Within this, a failure is noted in the run record."""
        return recorded(self.run)

    def _computed(self, made: DataFrame | pa.Table) -> pa.Table:
        if isinstance(made, pa.Table):
            return made
        return made.limit(self._rows_max).toArrow()

    def _write(self, name: str, table: pa.Table) -> str:
        path = f"{name}.parquet"
        with self._folder.writing(path) as file:
            pq.write_table(table, file)
        return self._folder.path(path)


def planned(
    name: str,
    settings: AnalysisSettings,
    topics: Topics,
    tables: Iterable[str],
    sources: Iterable[Source] = (),
) -> Result:
    """Give what a run would read and write; nothing is read but the list of topics."""
    notes = []
    for source in (settings.messages, *sources):
        there = source.topics(topics)
        told = topics.told if there is None else f"{len(there)} topics: {', '.join(there)}"
        notes.append(f"would read {source.told}, topics {told}")
    if not settings.output:
        raise ConfigError("no output: give a folder for the report and the tables")
    notes.append(f"would write {REPORT} and {', '.join(tables)} to {settings.output}")
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    record = RunRecord(
        f"{name}-dry-run", name, now_ms, status="dry run", inputs=inputs_of(settings)
    )
    return Result(record, {}, tuple(notes))


def new_report(title: str, settings: AnalysisSettings) -> Report:
    """Begin a report that says what was read, and when."""
    span = settings.span
    parts = [settings.messages.told]
    if span.since_ms is not None:
        parts.append(f"since {instant(span.since_ms)}")
    if span.until_ms is not None:
        parts.append(f"until {instant(span.until_ms)}")
    parts.append(f"made {instant(datetime.now(UTC))} UTC")
    return Report(title, " · ".join(parts))


def inputs_of(settings: AnalysisSettings) -> dict[str, Any]:
    """What a run read, for its record; options of formats are left out, for some are secrets."""
    return {key: value for key, value in asdict(settings).items() if key not in _NOT_INPUTS}


def checksum(tables: Mapping[str, pa.Table]) -> str:
    """A number that equal tables share, whatever the order of their rows."""
    total = 0
    for name in sorted(tables):
        for row in tables[name].to_pylist():
            text = json.dumps([name, row], default=str, sort_keys=True)
            total = (total + zlib.crc32(text.encode())) % (1 << 32)
    return f"{total:08x}"


def total(table: pa.Table, column: str) -> int:
    """The sum of a column; 0 for a table without rows."""
    return sum(int(value or 0) for value in table.column(column).to_pylist())


def counted(number: int, noun: str) -> str:
    """Write a count with its noun: ``1 message``, ``2 messages``."""
    return f"{count(number)} {noun_of(number, noun)}"
