"""Shows Spark for a minute: live totals, an archive, dead letters, an audit.

A shop sends orders to a separate server. Local Spark computes live totals, archives the log,
analyzes the dead letters and compares the archive with the topic. The demo compares the results
with what the shop sent. It stops all processes and keeps the archive and the dead letters.

Run: ``python examples/spark/pipeline_demo.py [--seconds 20] [--rate 200] [--folder FOLDER]``.
"""

from __future__ import annotations

import logging
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import typer
from archive_log import archive, read
from pipeline_shop import DESK, TOPIC, DemoError, Desk, Server, Shop
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

from cometmq.client import CometError
from cometmq.model.topic import dlq_topic
from cometmq.spark.checks import compare, gaps
from cometmq.spark.java import find_java
from cometmq.spark.sessions import local_session

ORDER = "order STRING, customer STRING, country STRING, amount DOUBLE, state STRING"
CATCH_UP_S = 60.0
SPARK_LOG = "ERROR"
BROKER = "broker-a"


def main(
    seconds: Annotated[
        float, typer.Option(min=2, max=600, help="Duration of the orders in seconds.")
    ] = 20.0,
    rate: Annotated[int, typer.Option(min=1, max=2_000, help="Orders per second.")] = 200,
    folder: Annotated[
        Path, typer.Option(help="Folder for the archive and the dead letters.")
    ] = Path("pipeline-demo"),
) -> None:
    """Show live totals, an archive, dead letters and an audit."""
    logging.getLogger("cometmq").addHandler(logging.NullHandler())
    console = Console(highlight=False, soft_wrap=True)
    kept = folder.absolute() / f"{datetime.now():%Y-%m-%dT%H-%M-%S}"
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, _end)
    try:
        find_java()
        with tempfile.TemporaryDirectory(prefix="cometmq-demo-") as own, _stopped_spark():
            kept.mkdir(parents=True)
            good = _Demo(console, Path(own), kept, rate).run(seconds)
    except CometError as error:
        console.print(f"the demo failed: {type(error).__name__}: {error}", style="red")
        raise typer.Exit(1) from None
    console.print(f"\nfinished in {time.monotonic() - begun:.0f} s; all processes have ended")
    raise typer.Exit(0 if good else 1)


def _end(number: int, frame: object) -> None:
    """End as Ctrl-C does, without leaving processes behind."""
    sys.exit(128 + number)


@contextmanager
def _stopped_spark() -> Iterator[None]:
    """End the session whatever happens; the JVM ends with this process."""
    try:
        yield
    finally:
        if (session := SparkSession.getActiveSession()) is not None:
            session.stop()


class _Demo:
    """One run: what it stands on, and what it found."""

    def __init__(self, console: Console, own: Path, kept: Path, rate: int) -> None:
        self._console = console
        self._own = own
        self._kept = kept
        self._rate = rate
        self._checks: list[tuple[str, object, object]] = []

    def run(self, seconds: float) -> bool:
        """Run all steps, print the results, and return whether they match what was sent."""
        with Server(self._own).serving() as server, Desk(server.name_servers).billing() as desk:
            self._say(f"a server is up, with a broker's files in {server.store}")
            with Shop(server.name_servers, self._rate).ordering() as shop:
                self._say(f"the shop sends {self._rate} orders per second; some cannot be billed")
                spark = self._spark()
                with _Totals(spark, server.name_servers, self._console) as totals:
                    threading.Event().wait(seconds)
                    shop.close()
                    counted = totals.finish(shop.acknowledged)
            desk.wait_until_done(shop.acknowledged)
            self._check("orders in the live totals", shop.acknowledged, sum(counted.values()))
            self._check("orders by country", dict(shop.by_country), counted)
            self._archive(spark, server, shop)
            self._dead_letters(spark, server, desk)
            self._audit(spark, server)
        return self._verdict()

    def _spark(self) -> SparkSession:
        self._say("Spark starts on two cores of this machine")
        conf: dict[str, Any] = {
            "spark.log.level": SPARK_LOG,
            "spark.local.dir": self._own / "spark",
            "spark.sql.warehouse.dir": self._own / "warehouse",
        }
        return local_session(**conf)

    def _archive(self, spark: SparkSession, server: Server, shop: Shop) -> None:
        count = archive(spark, str(server.store), self._archived, BROKER)
        rows = read(spark, self._archived).where(f.col("topic") == TOPIC)
        self._check("orders in the archive", shop.acknowledged, rows.count())
        self._say(f"archived {count:,} messages of all topics in {self._archived}")

    def _dead_letters(self, spark: SparkSession, server: Server, desk: Desk) -> None:
        topics = _reader(spark, server).option("subscribe", dlq_topic(DESK)).load()
        letters = topics.cache()
        error = f.regexp_replace(f.col("properties")["CONSUME_ERROR"], "[0-9]+", "<n>")
        for row in letters.groupBy(error.alias("error")).count().collect():
            self._say(f"{row['count']} dead letters of {DESK}: {row.error}")
        letters.write.parquet(str(self._kept / "dead-letters"))
        self._check("dead letters", len(desk.refused), letters.count())

    def _audit(self, spark: SparkSession, server: Server) -> None:
        topic = _reader(spark, server).option("subscribe", TOPIC).load()
        archived = read(spark, self._archived).where(f.col("topic") == TOPIC)
        self._check("faults in the queues of the topic", 0, gaps(topic).count())
        self._check("messages that the archive has otherwise", 0, compare(topic, archived).count())

    @property
    def _archived(self) -> str:
        return str(self._kept / "archive")

    def _say(self, text: str) -> None:
        self._console.print(text)

    def _check(self, what: str, sent: object, found: object) -> None:
        self._checks.append((what, sent, found))

    def _verdict(self) -> bool:
        table = Table("what", "sent", "found", "")
        for what, sent, found in self._checks:
            table.add_row(what, _text(sent), _text(found), "yes" if sent == found else "NO")
        self._console.print("")
        self._console.print(table)
        return all(sent == found for _, sent, found in self._checks)


def _reader(spark: SparkSession, server: Server) -> DataFrameReader:
    reader = spark.read.format("rocketmq").option("nameServer", server.name_servers)
    return reader.option("includeProperties", True)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name} {number}" for name, number in sorted(value.items()))
    return str(value)


class _Totals:
    """A query that adds orders up within ``with``, and prints the sums of every batch."""

    def __init__(self, spark: SparkSession, name_servers: str, console: Console) -> None:
        self._console = console
        self._counted: dict[str, int] = {}
        self._changed = threading.Condition()
        messages = (
            spark.readStream.format("rocketmq")
            .option("nameServer", name_servers)
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .load()
        )
        updates = _totals(messages).writeStream.outputMode("complete")
        trigger = updates.foreachBatch(self._show).trigger(processingTime="2 seconds")
        self._query: StreamingQuery = trigger.start()

    def _show(self, totals: DataFrame, batch: int) -> None:
        rows = totals.orderBy("country").collect()
        with self._changed:
            self._counted = {row.country: row.orders for row in rows}
            self._changed.notify_all()
        sums = "  ".join(f"{row.country} {row.orders} ({row.amount:,.0f} EUR)" for row in rows)
        self._console.print(f"live totals, batch {batch:>2}:  {sums}")

    def finish(self, orders: int) -> dict[str, int]:
        """Wait until all orders are counted and give the counts by country.

        Raises:
            DemoError: the query failed, or it takes too long.
        """
        deadline = time.monotonic() + CATCH_UP_S
        with self._changed:
            while sum(self._counted.values()) < orders and self._query.isActive:
                if not self._changed.wait(0.5) and time.monotonic() > deadline:
                    break
        if (problem := self._query.exception()) is not None:
            raise DemoError(f"the live totals ended: {problem}")
        return self._counted

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._query.stop()


def _totals(messages: DataFrame) -> DataFrame:
    order = f.from_json(f.col("body").cast("string"), ORDER).alias("order")
    return (
        messages.select(order)
        .groupBy("order.country")
        .agg(f.count("*").alias("orders"), f.sum("order.amount").alias("amount"))
    )


if __name__ == "__main__":
    typer.run(main)
