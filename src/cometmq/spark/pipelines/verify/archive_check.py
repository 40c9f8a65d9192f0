"""Compares an archive with its log: reads every range again on both sides.

A range that is equal is marked in the manifest; only what is marked may be deleted from the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cometmq.model.errors import ConfigError
from cometmq.spark.errors import BadRecordError, DataLossError, PlaceError
from cometmq.spark.logs import LogPlace, log_end, missing
from cometmq.spark.pipelines.archive.log_identity import check_log
from cometmq.spark.pipelines.archive.manifest import Entry, Manifest
from cometmq.spark.pipelines.archive.parquet import Form, Part, describe, parts_of
from cometmq.spark.pipelines.archive.pipeline import RangeJob, read_rows
from cometmq.spark.pipelines.archive.reading import COLUMNS
from cometmq.spark.pipelines.findings.rows import Finding, Findings, Severity
from cometmq.spark.pipelines.running.folders import Folder, open_folder
from cometmq.spark.pipelines.running.progress import Progress
from cometmq.spark.pipelines.running.work import waves
from cometmq.spark.schema import arrow_schema
from cometmq.system.clock import Clock


@dataclass(frozen=True)
class Compared:
    """What comparing one range came to."""

    entry: Entry
    with_log: bool
    """Whether the log still had the range; otherwise files and manifest were compared."""
    problems: tuple[str, ...]


def check_archive(
    spark: Any,
    place: str,
    log: LogPlace,
    findings: Findings,
    progress: Progress,
    clock: Clock | None = None,
) -> dict[str, int]:
    """Compare the ranges that are not marked yet, mark those that are equal, count both.

    Args:
        spark: the session.
        place: the archive's folder.
        log: the log.
        findings: what differs is added to them; another log is one finding, and nothing is marked.
        progress: is told of every range.
        clock: for the marks.
    """
    manifest = Manifest(open_folder(place))
    job = _job(manifest, place, log)
    entries = manifest.entries(log.name)
    due = [entry for entry in entries if entry.verified_ms is None]
    counts = {"archive_ranges": len(due), "archive_verified": 0, "archive_rows": 0}
    try:
        check_log(log, log_end(log), entries, topics=manifest.kind()["topics"])
    except PlaceError as problem:
        findings.add(
            Finding("archive-of-another-log", Severity.ERROR, str(problem), broker_name=log.name)
        )
        return counts
    now_ms = (clock or Clock()).now_ms()
    progress.start(len(due), "ranges", "verify archive")
    for wave in waves(spark, partial(compare, job), due):
        for compared in wave:
            findings.add(*_findings(compared))
            counts["archive_rows"] += compared.entry.rows
            if compared.with_log and not compared.problems:
                manifest.mark(compared.entry, now_ms)
                counts["archive_verified"] += 1
        progress.step(len(wave))
    progress.end()
    return counts


def compare(job: RangeJob, entry: Entry) -> Compared:
    """Read a range in the log and in the archive and say how they differ; on an executor."""
    folder = open_folder(job.root)
    with_log = not missing(job.place, entry.start, entry.end)
    problems = list(_against_manifest(folder, entry))
    if with_log and not problems:
        problems = list(_against_log(folder, job, entry))
    return Compared(entry, with_log, tuple(problems))


def _against_manifest(folder: Folder, entry: Entry) -> Iterator[str]:
    for file in entry.files:
        try:
            rows = _rows_of(folder, file.name)
        except (OSError, pa.ArrowException) as problem:
            yield f"{file.name}: cannot be read: {problem}"
            continue
        met = describe(Part(file.topic, file.date, rows), file.name, file.bytes)
        if met != file:
            yield f"{file.name}: met {met}, expected {file}"


def _against_log(folder: Folder, job: RangeJob, entry: Entry) -> Iterator[str]:
    try:
        parts, queues = parts_of(read_rows(job, entry.range))
    except (BadRecordError, DataLossError) as problem:
        yield str(problem)
        return
    if tuple(queues) != entry.queues:
        yield f"met {len(queues)} queues in the log, expected those of the manifest"
    names = {(file.topic, file.date): file.name for file in entry.files}
    if {(part.topic, part.date) for part in parts} != set(names):
        yield f"met topics and days in the log other than {sorted(names)}"
        return
    for part in parts:
        name = names[part.topic, part.date]
        if not _rows_of(folder, name).equals(part.rows.cast(_schema())):
            yield f"{name}: rows differ from those of the log"


def _rows_of(folder: Folder, name: str) -> pa.Table:
    with folder.reading(name) as source:
        return pq.ParquetFile(source).read().cast(_schema())


def _schema() -> pa.Schema:
    return arrow_schema(column._replace(nullable=True) for column in COLUMNS)


def _findings(compared: Compared) -> Iterator[Finding]:
    entry = compared.entry
    for problem in compared.problems:
        yield Finding(
            "archive-differs",
            Severity.ERROR,
            f"{entry.range}: {problem}",
            broker_name=entry.broker,
            count=entry.rows,
        )
    if not compared.with_log:
        yield Finding(
            "archive-alone",
            Severity.NOTE,
            f"{entry.range}: the log no longer has it, so it cannot be verified",
            broker_name=entry.broker,
            count=entry.rows,
        )


def _job(manifest: Manifest, place: str, log: LogPlace) -> RangeJob:
    kind = manifest.kind()
    if "decompress" not in kind:
        raise ConfigError(f"{place} was not archived from a log, so it cannot be compared with one")
    topics = frozenset(topic.encode() for topic in kind["topics"]) or None
    return RangeJob(log, place, topics, kind["decompress"], Form())
