"""A streaming program of its own, which may be killed like any driver: run as a script.

    spark_program.py to-topic FOLDER NAME_SERVERS TOPIC MASTER       text files become messages
    spark_program.py once FOLDER NAME_SERVERS TOPIC MASTER           shuffled lines, each one once
    spark_program.py again FOLDER NAME_SERVERS TOPIC MASTER          the same, at least once
    spark_program.py to-parquet FOLDER NAME_SERVERS TOPIC MASTER     messages become Parquet files

It streams until the file ``FOLDER/finish`` is there, then does what is left and ends with status 0.
Started again it goes on where its checkpoint stands. At the end of ``to-parquet`` it writes what
Spark finds in the Parquet files to ``FOLDER/seen.parquet``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.spark.sessions import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

ROWS_PER_TRIGGER = 1_000
LOOK_S = 0.2
SLOWLY = "if(java_method('java.lang.Thread', 'sleep', 1L) is null, null, {0}) as {0}"
"""One row in a millisecond: a batch takes its time, and a kill finds it under way."""


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.minTaskRuntime": "20ms",
    "spark.sql.shuffle.partitions": "4",
}
"""A second attempt of each task that takes a little longer than the fastest one."""
DELIVERY = {"once": "exactly-once", "again": "at-least-once"}


def main() -> None:
    """Run the program that the arguments name."""
    name, folder, name_servers, topic, master = sys.argv[1:]
    spark = local_session(
        memory="1g",
        master=master,
        **{
            "spark.sql.warehouse.dir": Path(folder) / "warehouse",
            "spark.log.level": "ERROR",
            "spark.sql.execution.arrow.maxRecordsPerBatch": 50,
            "spark.buffer.size": 256,  # else a worker gets its rows when all of them are there
            **(SPECULATION if name in DELIVERY else {}),
        },
    )
    program = {"to-topic": to_topic, "to-parquet": to_parquet}.get(name) or shuffled(name)
    query = program(spark, Path(folder), name_servers, topic)
    print("started", flush=True)
    while not (Path(folder) / "finish").exists():
        query.awaitTermination(LOOK_S)
    query.processAllAvailable()
    query.stop()
    if name == "to-parquet":
        _note_what_is_there(spark, Path(folder))
    spark.stop()


def to_topic(spark: SparkSession, folder: Path, name_servers: str, topic: str) -> StreamingQuery:
    """Lines ``key,text`` of files become messages; those of a key keep their order."""
    rows = (
        spark.readStream.option("maxFilesPerTrigger", 1)
        .text(str(folder / "source"))
        .selectExpr("value as body", "split_part(value, ',', 1) as sharding_key")
        .selectExpr("sharding_key", SLOWLY.format("body"))
    )
    return (
        rows.writeStream.format("rocketmq")
        .options(nameServer=name_servers, topic=topic, delivery="at-least-once")
        .option("send.batchBytes", 1024)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )


def shuffled(name: str) -> Callable[[SparkSession, Path, str, str], StreamingQuery]:
    """Return a program for which lines of files become messages behind a shuffle."""
    return partial(_shuffled, DELIVERY[name])


def _shuffled(
    delivery: str, spark: SparkSession, folder: Path, name_servers: str, topic: str
) -> StreamingQuery:
    rows = (
        spark.readStream.option("maxFilesPerTrigger", 1)
        .text(str(folder / "source"))
        .selectExpr("value as body")
        .repartition(4, "body")
        .selectExpr(SLOWLY.format("body"))
    )
    return (
        rows.writeStream.format("rocketmq")
        .options(nameServer=name_servers, topic=topic, delivery=delivery)
        .options(**{"send.batchBytes": 1024, "send.deliveryTimeoutMs": 60_000})
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )


def to_parquet(spark: SparkSession, folder: Path, name_servers: str, topic: str) -> StreamingQuery:
    """Messages become rows of Parquet files, exactly once."""
    rows = (
        spark.readStream.format("rocketmq")
        .options(nameServer=name_servers, subscribe=topic, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", ROWS_PER_TRIGGER)
        .load()
    )
    return (
        rows.selectExpr("queue_id", "queue_offset", SLOWLY.format("body"))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("path", str(folder / "out"))
        .start()
    )


def _note_what_is_there(spark: SparkSession, folder: Path) -> None:
    """Let Spark read its files, for files of failed tries lie beside those that count."""
    import pyarrow.parquet as pq

    ready = folder / "seen.part"
    pq.write_table(spark.read.parquet(str(folder / "out")).toArrow(), ready)
    ready.rename(folder / "seen.parquet")


if __name__ == "__main__":
    main()
