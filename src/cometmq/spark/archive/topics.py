"""Archives the new messages of topics into a table, through the brokers.

It is for programs that cannot reach the brokers' disks. It is slower than an archive of the log,
and without the addresses of senders. A streaming query ends when it has all messages; a scheduler
starts it again and again. Its offsets are in Spark's checkpoint. The table stores its newest batch
under the id of the query. A batch that Spark repeats after a kill is recognized by that and not
read again: its messages may have expired since.
"""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

from cometmq.model.errors import ConfigError
from cometmq.spark.archive.data_files import COLUMNS, Create, DataFile, Form, write_files
from cometmq.spark.archive.log import ArchiveResult, ArchiveSettings, application_of
from cometmq.spark.archive.newest_rows import newest_rows_of_queues
from cometmq.spark.archive.tables import ArchiveTable, Chosen, open_table
from cometmq.spark.brokers import connect
from cometmq.spark.compat import passes_limits, runs_of_available_now
from cometmq.spark.errors import DataLossError, PlaceError
from cometmq.spark.logs.files import filesystem_of
from cometmq.spark.offsets import Positions, QueueKey, QueueRange, from_json, to_json, without_start
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.options.topics import TopicReadOptions
from cometmq.spark.schema import arrow_schema
from cometmq.spark.sources.ranges import Connect, RangeReader
from cometmq.system.settings import setting

log = logging.getLogger(__name__)

ROWS_PER_FILE = 200_000
"""Rows of a task that are sorted and written together."""
_POLL_SECONDS = 0.5
_COMPARED = ("queue_offset", "store_timestamp", "body_crc")
_STARTS = frozenset({"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"})


@dataclass(frozen=True)
class ArchiveTopicsSettings(ArchiveSettings):
    """What is archived, where to and how."""

    name_servers: str = setting("")
    """Name servers of the source: ``host:port;host:port``."""
    name: str = setting("topics")
    """Name of the checkpoint in the archive's folder; use another name for other topics."""
    checkpoint: str = setting("")
    """Path or address of the checkpoint. Default: ``_checkpoint`` and the name, in the archive's
    folder. Required for a table of a catalog.
    """
    batch_rows: int = setting(1_000_000, unit="rows", low=1, high=1 << 40)
    """Maximum messages of a micro-batch."""
    options: tuple[str, ...] = setting(())
    """Options of the format ``rocketmq``, each ``name=value``, for example of an account."""


def archive_topics(
    spark: Any,
    settings: ArchiveTopicsSettings,
    *,
    dry_run: bool = False,
    connect: Connect = connect,
) -> ArchiveResult:
    """Archive what topics have beyond the archive.

    Args:
        spark: the session.
        settings: what, where to and how.
        dry_run: only count what topics hold, archived or not.
        connect: gives the session with the brokers that the archive is compared with.

    Returns:
        What was archived; ``lost`` has the ranges of queues that expired since the last run.

    Raises:
        ConfigError: a setting is missing, the folder is another kind of archive, the checkpoint and
            the table do not belong together, or the topics are not the archived ones.
        UnreachableError: servers did not answer.
        pyspark.errors.StreamingQueryException: brokers or the disk failed, or another run archives
            with the same checkpoint; the next run continues.
    """
    if not (settings.name_servers and settings.topics):
        raise ConfigError("archive-topics: expected name_servers and topics")
    if dry_run:
        return ArchiveResult(_count(spark, settings), 0, 0, None, None)
    table = open_table(settings, create=True)
    checkpoint = Checkpoint(_place_of_checkpoint(settings))
    positions = checkpoint.positions(table, settings)
    lost = check_queues(table, settings, positions, connect)
    written: list[DataFile] = []
    _stream(spark, settings, checkpoint, written)
    end = checkpoint.positions(table, settings)
    return ArchiveResult.of(written, to_json(positions), to_json(end), lost)


class Checkpoint:
    """Spark's checkpoint of a query: its id, and the offsets of its batches.

    Args:
        place: its path or address.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self._filesystem, self._root = filesystem_of(place)

    def query(self) -> str | None:
        """Return the id of the query; None if there is no checkpoint."""
        met = self._read("metadata")
        return None if met is None else str(json.loads(met)["id"])

    def positions(self, table: ArchiveTable, settings: ArchiveTopicsSettings) -> Positions:
        """Return the offsets up to which the table has the messages; none before the first batch.

        Checkpoint and table must belong together, or the query would skip messages or archive them
        twice.
        """
        query = self.query()
        batch = None if query is None else table.committed(application_of(query))
        done, planned = self._newest("commits"), self._newest("offsets")
        if not done <= (-1 if batch is None else batch) <= planned:
            raise ConfigError(
                f"{table.place} has batch {batch} of query {query}, expected {done} to {planned} as"
                f" in its checkpoint at {self.place}, -1 for none: one of them was restored from a"
                " copy or belongs to another; use the right one, or a new checkpoint with"
                " startingOffsets among the options"
            )
        found = {} if batch is None else self._offsets(batch)
        known = {key.topic for key in found}
        new = [topic for topic in settings.topics if topic not in known]
        has_start = not _STARTS.isdisjoint(name.lower() for name in _given(settings))
        if new and not has_start and table.files(Chosen(new)):
            raise ConfigError(
                f"{table.place} has messages of {', '.join(new)}, which the checkpoint at"
                f" {self.place} does not: all messages would be archived again; restore the"
                " checkpoint, or add where to start to the options, as startingOffsets"
            )
        return found

    def _offsets(self, batch: int) -> Positions:
        name = f"offsets/{batch}"
        lines = (self._read(name) or "").splitlines()
        if len(lines) < 3 or lines[0] != "v1":
            raise PlaceError(f"{self.place}/{name}: met {lines[:1]}, expected v1 and two lines")
        return from_json(without_start(json.loads(lines[2])), name)

    def _newest(self, folder: str) -> int:
        selector = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
        names = (info.base_name for info in self._filesystem.get_file_info(selector))
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def _read(self, name: str) -> str | None:
        try:
            with self._filesystem.open_input_file(f"{self._root}/{name}") as file:
                return str(file.read().decode())
        except FileNotFoundError:
            return None


def check_queues(
    table: ArchiveTable,
    settings: ArchiveTopicsSettings,
    positions: Positions,
    connect: Connect,
) -> tuple[QueueRange, ...]:
    """Refuse topics that are not the archived ones; return what expired since the last run.

    A checkpoint names a queue by topic, broker and number, and another cluster may have a queue of
    that name. So a queue must hold the newest archived message, if it has not expired.
    """
    options = parse_options(TopicReadOptions, _options(settings))
    session = connect(options)
    keys = {*positions, *session.queues(settings.topics, gone=set())}
    bounds = session.bounds(keys, gone=set())
    rows = {
        key: row
        for topic in sorted({key.topic for key in keys})
        for key, row in newest_rows_of_queues(
            table, topic, [key for key in keys if key.topic == topic]
        ).items()
    }
    if rows and not rows.keys() & bounds.keys():
        raise _other_topics(table, settings, min(rows), rows[min(rows)], "there is no such queue")
    compared = 0
    for key, row in sorted(rows.items()):
        limits = bounds.get(key)
        if limits is None:
            continue
        if row["queue_offset"] >= limits.max and limits.master:
            what = f"the queue holds offsets {limits.min} to {limits.max}"
            raise _other_topics(table, settings, key, row, what)
        if not limits.min <= row["queue_offset"] < limits.max:
            continue
        met = _message_at(key, row["queue_offset"], options, connect)
        if met is not None and met != {name: row[name] for name in _COMPARED}:
            raise _other_topics(table, settings, key, row, f"the queue holds {_shown(met)}")
        compared += met is not None
    if rows and not compared:
        log.warning(
            "the topics cannot be compared with the archive: no queue holds an archived row"
        )
    return tuple(
        QueueRange(key, at, bounds[key].min)
        for key, at in sorted(positions.items())
        if key in bounds and bounds[key].master and bounds[key].min > at
    )


def _message_at(
    key: QueueKey, offset: int, options: TopicReadOptions, connect: Connect
) -> dict[str, Any] | None:
    """Return what identifies the message at an offset; None if there is none any more."""
    unfiltered = replace(
        options, filter_tags=None, filter_sql=None, filter_keys=None, fail_on_data_loss=True
    )
    columns = [column for column in COLUMNS if column.name in _COMPARED]
    reader = RangeReader(unfiltered, columns, connect)
    try:
        batches = list(reader.read(QueueRange(key, offset, offset + 1)))
    except DataLossError:
        return None
    rows: list[dict[str, Any]] = [row for batch in batches for row in batch.to_pylist()]
    return rows[0] if rows else None


def _other_topics(
    table: ArchiveTable,
    settings: ArchiveTopicsSettings,
    key: QueueKey,
    row: Mapping[str, Any],
    met: str,
) -> ConfigError:
    return ConfigError(
        f"{key}: {table.place} has {_shown(row)}; at name servers {settings.name_servers} {met}:"
        " these are topics of another cluster, or the topic was created again, or the broker lost"
        " the end of its log; use the name servers of the archived cluster, or archive into another"
        " table"
    )


def _shown(row: Mapping[str, Any]) -> str:
    return (
        f"offset {row['queue_offset']}, stored at {row['store_timestamp']}, with CRC-32"
        f" {(row['body_crc'] or 0) & 0xFFFFFFFF:08x} of the body"
    )


def _stream(
    spark: Any,
    settings: ArchiveTopicsSettings,
    checkpoint: Checkpoint,
    written: list[DataFile],
) -> None:
    """Run the query until it has all messages; add the files of its batches to a list."""

    def write_batch(rows: Any, batch: int) -> None:
        written.extend(archive_batch(settings, checkpoint.query() or "", rows, batch))

    options = _options(settings)
    if passes_limits():
        options["maxOffsetsPerTrigger"] = str(settings.batch_rows)
    source = spark.readStream.format("rocketmq").options(**options)
    for _ in range(runs_of_available_now()):
        query = (
            source.load()
            .writeStream.foreachBatch(write_batch)
            .option("checkpointLocation", checkpoint.place)
            .trigger(availableNow=True)
            .start()
        )
        try:
            while not query.awaitTermination(_POLL_SECONDS):
                pass
        finally:
            query.stop()


def archive_batch(
    settings: ArchiveTopicsSettings, query: str, rows: Any, batch: int
) -> list[DataFile]:
    """Write the files of a micro-batch and commit them; do nothing if the table has the batch."""
    table = open_table(settings, create=True)
    known = table.committed(application_of(query))
    if known is not None and known >= batch:
        log.info("the table has batch %d of query %s already", batch, query)
        return []
    write = partial(_write_rows, table.create, settings.form)
    found = rows.mapInArrow(write, "files BINARY").collect()
    files = [file for row in found for file in pickle.loads(row["files"])]
    table.commit(files, application_of(query), batch, known)
    log.info("archived rows=%d batch=%d", sum(file.rows for file in files), batch)
    return files


def _write_rows(
    create: Create, form: Form, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task; runs on an executor."""
    for table in _tables(batches):
        files = pickle.dumps(write_files(table, create, form))
        yield pa.record_batch([pa.array([files])], names=["files"])


def _tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows in tables of about `ROWS_PER_FILE` rows, with the columns of an archive."""
    taken: list[pa.RecordBatch] = []
    for batch in batches:
        taken.append(batch)
        if sum(each.num_rows for each in taken) >= ROWS_PER_FILE:
            yield _completed(taken)
            taken = []
    if taken:
        yield _completed(taken)


def _completed(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return the rows with all columns of an archive; null where brokers do not send them."""
    table = pa.Table.from_batches(batches)
    schema = arrow_schema(COLUMNS)
    columns = [
        table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _place_of_checkpoint(settings: ArchiveTopicsSettings) -> str:
    if settings.checkpoint:
        return settings.checkpoint
    folder = settings.to.removeprefix("file://")
    if not folder or "://" in folder or not settings.name.strip("."):
        raise ConfigError(
            f"archive-topics: met to={settings.to!r} and name={settings.name!r}, expected"
            " checkpoint, a path or address that Spark can write"
        )
    path = Path(folder).expanduser().absolute() / "_checkpoint" / quote(settings.name, safe="")
    return str(path)


def _given(settings: ArchiveTopicsSettings) -> dict[str, str]:
    return dict(pair.partition("=")[::2] for pair in settings.options)


def _options(settings: ArchiveTopicsSettings) -> dict[str, str]:
    return {
        "startingOffsets": "earliest",
        "brokerAway.failAfterMs": "0",  # a run that is done has archived all queues
        **_given(settings),
        "rocketmq.namesrv.addr": settings.name_servers,
        "subscribe": ",".join(settings.topics),
        "includeProperties": "true",
        "failOnDataLoss": str(settings.fail_on_data_loss).lower(),
    }


def _count(spark: Any, settings: ArchiveTopicsSettings) -> int:
    source = (
        spark.read.format("rocketmq").options(**_options(settings)).schema("queue_offset BIGINT")
    )
    return int(source.load().count())
