"""Archives a broker's log into a table, with every record in it once.

Tasks decode ranges of the log and write files, which is four times as fast as rows that go through
Spark's own writer. Then the driver commits the files together with the log's physical offset. The
next run continues at the offset that the table has, wherever a run was killed.
"""

from __future__ import annotations

import gc
import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from cometmq.model.errors import ConfigError
from cometmq.spark.archive.data_files import COLUMNS, Create, DataFile, Form, write_files
from cometmq.spark.archive.newest_rows import newest_row_of_log
from cometmq.spark.archive.tables import ArchiveTable, TableSettings, open_table
from cometmq.spark.batches import RecordDecoder
from cometmq.spark.errors import BadRecordError, DataLossError, PlaceError
from cometmq.spark.logs import (
    ByteRange,
    Follower,
    Log,
    Reading,
    log_end,
    missing,
    open_log,
    plan,
    read_range,
)
from cometmq.system.settings import setting

logger = logging.getLogger(__name__)

_MIB = 1024 * 1024
_RANGES_PER_CORE = 4
"""Minimum ranges per core where there is enough to do, so that no core waits for the last one. Also
the ranges per core of a Spark job: the driver commits after each job, so a killed run loses one.
"""
_RANGE_BYTES_MIN = 16 * _MIB
_BATCH_ROWS = 100_000
_BATCH_BYTES = 32 * _MIB


@dataclass(frozen=True)
class ArchiveSettings(TableSettings):
    """How messages are archived."""

    topics: tuple[str, ...] = setting(())
    """Topics to archive. Default: all topics of a log."""
    codec: str = setting("zstd", choices=("zstd", "snappy", "none"))
    """Compression of the files."""
    row_group_rows: int = setting(131_072, unit="rows", low=1_000, high=10_000_000)
    """Maximum rows of a row group."""
    fail_on_data_loss: bool = setting(True)
    """Whether to fail if messages were deleted before they were archived."""

    @property
    def form(self) -> Form:
        """How files are written."""
        return Form(self.codec, self.row_group_rows)


@dataclass(frozen=True)
class ArchiveLogSettings(ArchiveSettings):
    """What is archived, where to and how."""

    store: str = setting("")
    """The log: a store's directory, its ``commitlog``, or an address such as ``s3://…``."""
    broker_name: str = setting("")
    """Name of the broker that wrote the log, stored in a column. Required if the archive has
    several brokers.
    """
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


@dataclass(frozen=True)
class ArchiveResult:
    """What a run has archived."""

    rows: int
    files: int
    bytes: int
    """Bytes of the files."""
    start: Any
    """Where the run began: a physical offset, or the offsets of queues as in a checkpoint."""
    end: Any
    """How far the archive goes now."""
    lost: tuple[Any, ...] = ()
    """Ranges that were deleted before they were archived."""

    @classmethod
    def of(
        cls, files: Sequence[DataFile], start: Any, end: Any, lost: tuple[Any, ...]
    ) -> ArchiveResult:
        """Return the result of a run that wrote these files."""
        rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
        return cls(rows, len(files), size, start, end, lost)


def archive_log(
    spark: Any, settings: ArchiveLogSettings, *, dry_run: bool = False
) -> ArchiveResult:
    """Archive what a log has beyond the archive.

    Args:
        spark: the session; its executors must see the log and the archive.
        settings: what, where to and how.
        dry_run: only return from where to where the run would archive.

    Raises:
        ConfigError: a setting is missing, or the folder is an archive of another kind.
        ConflictError: another run archives into the table at the same time.
        DataLossError: bytes that were never archived are in no file any more.
        PlaceError: the log is not the archived one, as of a store that was created again.
        BadRecordError: the log is damaged.

    Whenever the run is killed, the archive has all records up to the offset in the table, once.
    """
    if not settings.store:
        raise ConfigError("archive: expected store, the log to archive")
    log = open_log(settings.store, broker=settings.broker_name or None)
    application = application_of(log.name)
    table = _table_for(settings, dry_run)
    at = begun = None if table is None else table.committed(application)
    end = log_end(log, closed=settings.closed)
    if table is not None and begun is not None:
        end = _checked_end(log, table, begun, end)
    start = log.min_offset if begun is None else begun
    if lost := tuple(missing(log, start, max(start, end))):
        _report_lost(log, lost, settings)
    if table is None or dry_run:
        return ArchiveResult.of([], start, end, lost)
    size = _RANGES_PER_CORE * _cores(spark)
    least = min(size, max(1, (end - start) // _RANGE_BYTES_MIN))
    parts = plan(log, start, end, settings.range_bytes, least=least)
    archive = partial(archive_range, log, settings, table.create)
    files: list[DataFile] = []
    for first in range(0, len(parts), size):
        some = parts[first : first + size]
        new = _written(spark, archive, some)
        table.commit(new, application, some[-1].end, at)
        at = some[-1].end
        files += new
        logger.info("archived rows=%d to=%d of=%d", sum(file.rows for file in new), at, end)
    return ArchiveResult.of(files, start, start if at is None else at, lost)


def archived_to(table: TableSettings, broker_name: str = "") -> int | None:
    """Return the physical offset up to which a broker's log is archived; None if it is not.

    Args:
        table: the table of the archive.
        broker_name: the broker's name, as in the archive.

    Raises:
        PlaceError: there is no table.
    """
    return open_table(table, create=False).committed(application_of(broker_name or "log"))


def application_of(name: str) -> str:
    """Return the name by which a table knows how far a log or a query is archived."""
    return f"cometmq.archived.{name}"


def archive_range(
    log: Log, settings: ArchiveLogSettings, create: Create, part: ByteRange
) -> list[DataFile]:
    """Write the files of one range; runs on an executor."""
    decoder = RecordDecoder(
        COLUMNS,
        broker_name=log.broker,
        decompress=settings.decompress,
        crc=True,
        max_rows=_BATCH_ROWS,
        max_bytes=_BATCH_BYTES,
    )
    topics = frozenset(topic.encode() for topic in settings.topics) or None
    batches = read_range(log, part, Reading(decoder, topics=topics))
    return write_files(pa.Table.from_batches(batches, schema=decoder.schema), create, settings.form)


def _written(
    spark: Any, archive: Callable[[ByteRange], list[DataFile]], parts: Sequence[ByteRange]
) -> list[DataFile]:
    """Archive ranges in one Spark job, without a session in this process; return the files."""
    if spark is None:
        return [file for part in parts for file in archive(part)]

    def archive_parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                files = pickle.dumps(archive(parts[number]))
                yield pa.record_batch([pa.array([number]), pa.array([files])], ["part", "files"])
        # Spark's worker collects garbage after every task. With all imported modules that takes as
        # long as a short task, so objects that exist after the first task are not looked at again.
        if not gc.get_freeze_count():
            gc.freeze()

    numbers = spark.range(0, len(parts), 1, len(parts))
    rows = numbers.mapInArrow(archive_parts, "part LONG, files BINARY").collect()
    return [file for row in sorted(rows) for file in pickle.loads(row["files"])]


def _cores(spark: Any) -> int:
    """Return how many tasks run at once."""
    if spark is None:
        return 1
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # a session of Spark Connect has no context, and says so in many ways
        return int(spark.conf.get("spark.default.parallelism", "8"))


def _table_for(settings: ArchiveLogSettings, dry_run: bool) -> ArchiveTable | None:
    """Return the table; None for a dry run if there is none yet."""
    try:
        return open_table(settings, create=not dry_run)
    except PlaceError:
        if not dry_run:
            raise
        return None


def _checked_end(log: Log, table: ArchiveTable, begun: int, end: int) -> int:
    """Return the end of the log, if it is the archived one.

    A store that was created again under the same broker name begins at byte 0 and holds other
    records, which would count as archived. So the log must reach as far as the archive, and hold
    the newest archived row that it still can.
    """
    if end < begun:  # queues do not lead to half messages, which a closed log was archived with
        end = max(end, Follower().of_closed(log))
    if end < begun:
        raise _another(
            log,
            table,
            f"it is archived to byte {begun}, the files hold {log.min_offset} to {end}",
        )
    row = newest_row_of_log(table, log.broker)
    if row is None or missing(log, row["phy_offset"], row["phy_offset"] + row["store_size"]):
        logger.warning(
            "the log cannot be compared with the archive broker=%s: it holds no archived row",
            log.name,
        )
        return end
    met = _record_at(log, row)
    if met != row:
        raise _another(log, table, f"the archive has {_shown(row)}, the log holds {_shown(met)}")
    return end


def _record_at(log: Log, row: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the log holds in the place of an archived row; None if it is no record."""
    columns = [column for column in COLUMNS if column.name in row]
    part = ByteRange(log.name, row["phy_offset"], row["phy_offset"] + row["store_size"])
    decoder = RecordDecoder(columns, broker_name=log.broker, decompress=False)
    try:
        batches = list(read_range(log, part, Reading(decoder)))
    except (BadRecordError, DataLossError):
        return None
    rows: list[dict[str, Any]] = [row for batch in batches for row in batch.to_pylist()]
    return rows[0] if rows else None


def _another(log: Log, table: ArchiveTable, met: str) -> PlaceError:
    return PlaceError(
        f"log of {log.name} at {', '.join(log.given)} is not the one that {table.place} has:"
        f" {met}; a store that was created again has another log: archive it into another table or"
        " under another broker_name; a replica that lags behind its master: start again when it has"
        " caught up"
    )


def _report_lost(log: Log, lost: Sequence[ByteRange], settings: ArchiveLogSettings) -> None:
    text = (
        f"{', '.join(map(str, lost))} were never archived and are in no file; the files hold"
        f" {log.min_offset} to {log.end_offset}"
    )
    if settings.fail_on_data_loss:
        raise DataLossError(f"{text}; fail_on_data_loss=false archives the rest")
    logger.warning("the archive continues after lost bytes: %s", text)


def _shown(row: dict[str, Any] | None) -> str:
    if row is None:
        return "no such record"
    return (
        f"offset {row['queue_offset']} of {row['topic']}, queue {row['queue_id']}, at byte"
        f" {row['phy_offset']}, stored at {row['store_timestamp']}"
    )
