"""Archive a broker's log into a Delta table, each record once, and query the table without a jar.

Tasks decode ranges of the log and write a Parquet file for each, which is faster than rows that go
through Spark's own writer. Then the driver commits the files together with the log's physical
offset. The next run continues at the offset that the table has, wherever a run was killed. Of two
runs at the same time one fails. The broker may run or not.

Run: ``python examples/spark/archive_log.py [store folder] [archive folder] [broker name] [topic]``.
"""

import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cometmq.spark.batches import RecordDecoder
from cometmq.spark.compat import exempt_loaded_modules
from cometmq.spark.errors import BadRecordError, DataLossError, PlaceError, SourceError
from cometmq.spark.logs import (
    ByteRange,
    Follower,
    Log,
    Reading,
    missing,
    open_log,
    plan,
    read_range,
)
from cometmq.spark.logs.files import filesystem_of
from cometmq.spark.schema import arrow_schema, log_columns
from cometmq.spark.sessions import local_session

MIB = 1 << 20
RANGE_BYTES = 64 * MIB
"""Most bytes of the log that a task holds in memory and writes to one file."""
RANGE_BYTES_MIN = 16 * MIB
RANGES_PER_CORE = 4
"""For one commit: a killed run loses no more."""
COLUMNS = log_columns(properties=True, validate=False)
IDENTITY = ("topic", "broker_name", "queue_id", "queue_offset", "store_timestamp", "phy_offset")
FEW_VALUES = ["topic", "broker_name", "tags", "queue_id", "properties.key_value.key"]
"""Columns that are written with a dictionary."""


class DataFile(NamedTuple):
    """One written file."""

    name: str
    rows: int
    bytes: int
    newest_ms: int
    first: int
    """The physical offset of its first record."""
    last: int


def archive(
    spark: SparkSession | None,
    store: str,
    folder: str,
    broker: str = "broker-a",
    *,
    range_bytes: int = RANGE_BYTES,
) -> int:
    """Archive what the log has beyond the table; return the number of messages.

    Args:
        spark: the session, whose executors must see the store and the folder; None to archive in
            this process.
        store: the log: a store's directory or its ``commitlog``.
        folder: the folder of the table.
        broker: the name of the broker that wrote the log; a table can have the logs of several.
        range_bytes: most bytes of the log in one file.
    """
    log = open_log(store, broker=broker)
    table = DeltaTable.create(folder, Schema.from_arrow(arrow_schema(COLUMNS)), mode="ignore")
    if partitions := table.metadata().partition_columns:
        raise PlaceError(f"{folder} is partitioned by {partitions}: use another folder")
    application = f"cometmq.archived.{broker}"
    begun = at = table.transaction_version(application)
    end = Follower().now(log)
    if begun is not None:
        check_same(log, table, begun, end)
    start = log.min_offset if begun is None else begun
    if lost := missing(log, start, end):
        raise DataLossError(f"{lost[0]} was never archived and is in no file of the log")
    some = RANGES_PER_CORE * (spark.sparkContext.defaultParallelism if spark else 1)
    least = min(some, max(1, (end - start) // RANGE_BYTES_MIN))
    parts = plan(log, start, end, range_bytes, least=least)
    archived = 0
    for first in range(0, len(parts), some):
        chosen = parts[first : first + some]
        files = write_all(spark, partial(write_range, log, folder), chosen)
        commit(table, files, Transaction(application, chosen[-1].end), at)
        at = chosen[-1].end
        archived += sum(file.rows for file in files)
    return archived


def write_all(
    spark: SparkSession | None, write: "partial[list[DataFile]]", parts: list[ByteRange]
) -> list[DataFile]:
    """Write ranges in one Spark job; return the files."""
    if spark is None:
        return [file for part in parts for file in write(part)]
    spark.sparkContext.addPyFile(__file__)  # executors need it if another program has imported it

    def write_some(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        exempt_loaded_modules()
        for batch in batches:
            files = [json.dumps(write(parts[n])) for n in batch.column(0).to_pylist()]
            yield pa.record_batch([pa.array(files, pa.string())], ["files"])

    numbers = spark.range(0, len(parts), 1, len(parts))
    rows = numbers.mapInArrow(write_some, "files STRING").collect()
    return [DataFile(*file) for row in rows for file in json.loads(row.files)]


def write_range(log: Log, folder: str, part: ByteRange) -> list[DataFile]:
    """Write the messages of one range to a new file, if there are any; runs on an executor."""
    decoder = RecordDecoder(
        COLUMNS, broker_name=log.broker, crc=True, max_rows=100_000, max_bytes=32 * MIB
    )
    rows = pa.Table.from_batches(read_range(log, part, Reading(decoder)), schema=decoder.schema)
    if not rows.num_rows:
        return []
    filesystem, root = filesystem_of(folder)
    name = f"message-{uuid4().hex}.parquet"
    with filesystem.open_output_stream(f"{root}/{name}") as file:
        pq.write_table(rows, file, compression="zstd", use_dictionary=FEW_VALUES)
        size = file.tell()
    newest_ms = pc.max(rows["store_timestamp"]).value // 1000
    offsets = rows["phy_offset"]
    return [DataFile(name, rows.num_rows, size, newest_ms, offsets[0].as_py(), offsets[-1].as_py())]


def commit(
    table: DeltaTable, files: list[DataFile], transaction: Transaction, expected: int | None
) -> None:
    """Add files to the table and store how far the log is archived, in one commit."""
    table.update_incremental()
    if (met := table.transaction_version(transaction.app_id)) != expected:
        raise SourceError(f"another run has archived to {met}, expected {expected}: start again")
    table.create_write_transaction(
        [
            AddAction(file.name, file.bytes, {}, file.newest_ms, True, statistics(file))
            for file in files
        ],
        mode="append",
        schema=table.schema(),
        commit_properties=CommitProperties(app_transactions=[transaction]),
    )


def statistics(file: DataFile) -> str:
    """Return what Delta needs to skip the file in queries by physical offset."""
    bounds = {"minValues": {"phy_offset": file.first}, "maxValues": {"phy_offset": file.last}}
    return json.dumps({"numRecords": file.rows, **bounds, "nullCount": {"phy_offset": 0}})


def check_same(log: Log, table: DeltaTable, begun: int, end: int) -> None:
    """Refuse another log than the archived one, whose records would count as archived.

    A store that was created again under the same broker name has other records from byte 0 on. So
    the log must reach as far as the archive, and hold the newest archived record that it still can.
    """
    problem = f"the log of {log.name} is not the archived one: "
    if end < begun:
        raise PlaceError(f"{problem}it ends at byte {end}, the archive goes to {begun}")
    at = pc.field("phy_offset")  # files have the bounds of this column only
    near = (at >= begun - RANGE_BYTES_MIN) & (at < begun)
    rows = table.to_pyarrow_dataset().to_table(columns=list(IDENTITY), filter=near).to_pylist()
    own = (row for row in rows if row["broker_name"] == log.broker)
    archived = max(own, key=lambda row: row["phy_offset"], default=None)
    if archived is None:
        return
    part = ByteRange(log.name, archived["phy_offset"], begun)
    if missing(log, part.start, part.end):
        return  # it has expired
    columns = [column for column in COLUMNS if column.name in IDENTITY]
    reading = Reading(RecordDecoder(columns, broker_name=log.broker))
    try:
        met = next(iter(read_range(log, part, reading))).to_pylist()[0]
    except (BadRecordError, DataLossError, StopIteration):
        met = None
    if met != archived:
        raise PlaceError(f"{problem}the archive has {archived}, the log holds {met}")


def read(spark: SparkSession, folder: str) -> DataFrame:
    """Read the files that the table names; with Delta's jar ``spark.read.format("delta")`` does."""
    return spark.read.parquet(*DeltaTable(folder).file_uris())


def main(
    store: str = "store",
    folder: str = "archive",
    broker: str = "broker-a",
    topic: str = "orders",
) -> None:
    spark = local_session()
    print(f"{archive(spark, store, folder, broker)} messages archived")
    orders: Any = read(spark, folder).where(f.col("topic") == topic)
    for row in orders.groupBy("tags").agg(f.count("*").alias("messages")).orderBy("tags").collect():
        print(f"{row.tags}: {row.messages} messages")


if __name__ == "__main__":
    main(*sys.argv[1:])
