"""Archive: a broker's log as Parquet, by topic and day, with every record in it once.

Executors decode ranges of the log and write the files themselves, which is four times as fast as
rows that go through Spark's own writer. A run archives what came since the last one, so a scheduler
that starts it again and again keeps an archive up to date; a run that was killed is gone on with
by the next. Layout and promise are those of `cometmq.spark.pipelines.archive.manifest`.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from cometmq.model.errors import ConfigError
from cometmq.spark.batches import RecordDecoder
from cometmq.spark.errors import DataLossError
from cometmq.spark.logs import (
    ByteRange,
    LogPlace,
    Reading,
    log_end,
    missing,
    open_place,
    plan,
    read_range,
)
from cometmq.spark.pipelines.archive.log_identity import check_log, first_record
from cometmq.spark.pipelines.archive.manifest import ArchiveFile, Entry, Manifest, Plan, covered
from cometmq.spark.pipelines.archive.parquet import Form, parts_of, write_parts
from cometmq.spark.pipelines.archive.reading import COLUMNS
from cometmq.spark.pipelines.archive.tables import TABLES, table_of
from cometmq.spark.pipelines.running.folders import open_folder
from cometmq.spark.pipelines.running.progress import Progress, silent
from cometmq.spark.pipelines.running.registry import Pipeline, PipelineSettings, Result
from cometmq.spark.pipelines.running.runs import Run, RunRecord, Runs, recorded
from cometmq.spark.pipelines.running.work import cores_of, waves
from cometmq.system.settings import setting

log = logging.getLogger(__name__)

_MIB = 1024 * 1024
_RANGES_PER_CORE = 4
"""So many at least, where there is enough to do: else cores wait for the last ones."""
_RANGE_BYTES_MIN = 16 * _MIB
"""No range becomes smaller for that."""
_BATCH_ROWS = 100_000
_BATCH_BYTES = 32 * _MIB


@dataclass(frozen=True)
class ArchiveSettings(PipelineSettings):
    """What is archived, where to and how."""

    store: str = setting("")
    """The log: a store's directory, its ``commitlog``, or an address such as ``s3://…``."""
    broker_name: str = setting("")
    """Name of the broker that wrote the log. It is stored in a column, in file names and in the
    manifest. Required if the archive has several brokers.
    """
    to: str = setting("")
    """Folder of the archive: a directory that all executors see, or an address."""
    topics: tuple[str, ...] = setting(())
    """Topics to archive. Default: all."""
    range_bytes: int = setting(64 * _MIB, unit="bytes", low=4096, high=1 << 30)
    """Maximum bytes of the log that one task holds in memory and writes to files. With few such
    ranges per core, the ranges are smaller, down to 16 MiB.
    """
    closed: bool = setting(False)
    """Whether the broker crashed and does not run. The log is then archived to its end, including
    the last half messages, which have no consume-queue unit.
    """
    decompress: bool = setting(True)
    """Whether compressed bodies are decompressed."""
    codec: str = setting("zstd", choices=("zstd", "snappy", "none"))
    """Compression of the files."""
    row_group_rows: int = setting(131_072, unit="rows", low=1_000, high=10_000_000)
    """Maximum rows of a row group."""
    table: str = setting("parquet", choices=TABLES)
    """Table format: ``parquet`` (files and manifest only), ``delta`` or ``iceberg``."""
    catalog: str = setting("")
    """Address of Iceberg's SQL catalog. Default: an SQLite file in the archive's folder."""
    fail_on_data_loss: bool = setting(True)
    """Whether to fail if bytes of the log were deleted before they were archived."""


@dataclass(frozen=True)
class RangeJob:
    """What a task needs to archive a range."""

    place: LogPlace
    root: str
    topics: frozenset[bytes] | None
    decompress: bool
    form: Form


def archive(
    spark: Any,
    settings: ArchiveSettings,
    *,
    progress: Progress = silent,
    dry_run: bool = False,
) -> Result:
    """Archive what a log has beyond the archive.

    Args:
        spark: the session; its executors must see the log and the archive.
        settings: what, where to and how.
        progress: is told of every range.
        dry_run: only say what would be archived.

    Returns:
        The run's record; ``counts`` has rows, bytes of log, files and their bytes.

    Raises:
        ConfigError: a setting is missing, or the folder is an archive of another kind.
        DataLossError: bytes that were never archived are in no file any more.
        RunError: another run archives the log at the same time.
        PlaceError: the log is not the one that was archived, as of a store that was made anew.
        BadRecordError: what stands in the log is no record.

    Killed or failed, every range that the manifest names is archived whole, and no other.
    """
    place = _opened(settings)
    folder = open_folder(settings.to)
    manifest = Manifest(folder)
    if not dry_run:
        manifest.settle(_kind(settings))
    due, number = _due(manifest, place, settings, cores_of(spark))
    if dry_run:
        return _foretold(place, due)
    runs = Runs(settings.runs or folder.path("_runs"))
    run = runs.begin_or_resume("archive", _inputs(settings), settings.resume)
    with recorded(run):
        if due:
            manifest.write_plan(place.name, Plan(number, due))
        progress.start(sum(each.size for each in due), "bytes", "archive")
        entries = _archive_all(spark, settings, place, manifest, due, run, progress)
        progress.end()
    return Result(_ended(run, folder.place, entries))


def _archive_all(
    spark: Any,
    settings: ArchiveSettings,
    place: LogPlace,
    manifest: Manifest,
    due: Sequence[ByteRange],
    run: Run,
    progress: Progress,
) -> list[Entry]:
    """Archive the ranges, wave by wave: files first, then the table, then the manifest."""
    job = _job(settings, place)
    table = table_of(settings.table, manifest.folder, settings.catalog)
    entries: list[Entry] = []
    for wave in waves(spark, partial(archive_range, job), due):
        manifest.check_free(place.name, (entry.range for entry in wave))
        table.commit(place.name, wave)
        for entry in wave:
            manifest.add(entry)
            progress.step(entry.range.size)
        entries += wave
        run.step(f"{wave[0].start}-{wave[-1].end}", rows=sum(entry.rows for entry in wave))
    return entries


def archive_range(job: RangeJob, part: ByteRange) -> Entry:
    """Write the files of one range and return its entry; runs on an executor."""
    rows = read_rows(job, part)
    parts, queues = parts_of(rows)
    files = tuple(write_parts(open_folder(job.root), part, parts, job.form))
    return Entry(
        part.broker,
        part.start,
        part.end,
        rows.num_rows,
        files,
        tuple(queues),
        first_record=first_record(job.place, part.start),
    )


def read_rows(job: RangeJob, part: ByteRange) -> pa.Table:
    """Return the records that begin in a range, in the order of the log."""
    decoder = RecordDecoder(
        COLUMNS,
        broker_name=job.place.broker,
        decompress=job.decompress,
        crc=True,
        max_rows=_BATCH_ROWS,
        max_bytes=_BATCH_BYTES,
    )
    reading = Reading(decoder, topics=job.topics)
    return pa.Table.from_batches(read_range(job.place, part, reading), schema=decoder.schema)


def _opened(settings: ArchiveSettings) -> LogPlace:
    if not settings.store or not settings.to:
        raise ConfigError("archive: expected store and to, the log and the folder of the archive")
    return open_place(settings.store, broker=settings.broker_name or None)


def _kind(settings: ArchiveSettings) -> dict[str, Any]:
    """What must be the same in all runs; logs without a name are told apart by their place."""
    unnamed = {} if settings.broker_name else {"store": settings.store}
    return unnamed | {
        "columns": [column.name for column in COLUMNS],
        "topics": sorted(settings.topics),
        "decompress": settings.decompress,
        "table": settings.table,
    }


def _inputs(settings: ArchiveSettings) -> dict[str, Any]:
    known = {name: getattr(settings, name) for name in ("store", "broker_name", "to")}
    return {**known, **_kind(settings)}


def _job(settings: ArchiveSettings, place: LogPlace) -> RangeJob:
    topics = frozenset(topic.encode() for topic in settings.topics) or None
    form = Form(settings.codec, settings.row_group_rows)
    return RangeJob(place, settings.to, topics, settings.decompress, form)


def _due(
    manifest: Manifest, place: LogPlace, settings: ArchiveSettings, cores: int
) -> tuple[list[ByteRange], int]:
    """Return the ranges to archive, and the number of the plan that they are.

    They are what a run before left, then what came since. The plan is read before the entries: an
    entry that comes later belongs to it, or to a plan of the next number, which this run would not
    get.
    """
    before = manifest.plan(place.name)
    entries = manifest.entries(place.name)
    known = {entry.range for entry in entries}
    left = [part for part in before.ranges if part not in known]
    end = log_end(place, closed=settings.closed)
    check_log(place, end, entries, planned=left, topics=settings.topics)
    ends = [part.end for part in (*known, *left)]
    start = max(ends, default=place.min_offset)
    gone = [gap for part in left for gap in missing(place, part.start, part.end)]
    if entries or left:
        gone += missing(place, start, max(start, end))
    if gone:
        _report_lost(place, gone, settings)
        left = [each for part in left for each in plan(place, part.start, part.end, part.size)]
    least = min(_RANGES_PER_CORE * cores, max(1, (end - start) // _RANGE_BYTES_MIN))
    due = [*left, *plan(place, start, end, settings.range_bytes, least=least)]
    return due, before.number + 1


def _report_lost(place: LogPlace, gone: Sequence[ByteRange], settings: ArchiveSettings) -> None:
    """Say that bytes which were never archived are in no file any more."""
    text = (
        f"{gone[0]} were never archived and are in no file; the files hold"
        f" {place.min_offset} to {place.end_offset}"
    )
    if settings.fail_on_data_loss:
        raise DataLossError(
            f"{text}; --no-fail-on-data-loss (the setting fail_on_data_loss) archives the rest"
        )
    log.warning("archive continues after a gap: %s", text)


def _foretold(place: LogPlace, due: Sequence[ByteRange]) -> Result:
    size = sum(part.size for part in due)
    counts = {"ranges": len(due), "log_bytes": size}
    note = f"would archive {size:,} bytes of the log of {place.name} in {len(due)} ranges"
    record = RunRecord("", "archive", 0, status="dry run", counts=counts)
    return Result(record, notes=(note,))


def _ended(run: Run, place: str, entries: Sequence[Entry]) -> RunRecord:
    files: list[ArchiveFile] = [file for entry in entries for file in entry.files]
    counts = {
        "ranges": len(entries),
        "rows": sum(entry.rows for entry in entries),
        "log_bytes": sum(entry.range.size for entry in entries),
        "files": len(files),
        "file_bytes": sum(file.bytes for file in files),
    }
    return run.end(outputs=[place], counts=counts, checksum=checksum_of(entries))


def checksum_of(entries: Sequence[Entry]) -> str:
    """Return a checksum that is equal for equal rows, however they were cut into ranges."""
    sums: dict[str, int] = {}
    for entry in entries:
        for file in entry.files:
            sums[file.topic] = sums.get(file.topic, 0) + file.body_crc_sum
    return f"{zlib.crc32(repr(sorted(sums.items())).encode()):08x}"


def archived_to(manifest: Manifest, broker: str, start: int) -> int:
    """Return the log offset up to which a broker's log is archived without a gap."""
    return covered(manifest.entries(broker), start)


PIPELINE = Pipeline(
    "archive",
    "Archive the new records of a broker's log as Parquet, each record once.",
    ArchiveSettings,
    archive,
)
