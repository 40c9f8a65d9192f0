"""Fills topics for Spark to read, and reads them: batches, and streams into Parquet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cometmq.client import Message, MessageQueue
from cometmq.client.blocking import AdminClient, Producer
from cometmq.spark.compat import passes_limits
from support.checks.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[str, int, int]
ENDS_S = 600.0
"""A query that is still running then hangs."""
SCHEMA = "topic STRING, queue_id INT, queue_offset BIGINT"


def fill(
    name_servers: str,
    topic: str,
    counts: Mapping[int, int],
    *,
    broker: str = "broker-a",
    message: Callable[[int], Message] | None = None,
) -> None:
    """Append messages to queues of a topic, and wait until readers can see them.

    Args:
        name_servers: of the cluster.
        topic: the topic.
        counts: by queue, how many messages.
        broker: of the queues.
        message: makes the message of a number, which counts on from queue to queue.
    """
    make = message or (lambda number: Message(topic=topic, body=b"body-%d" % number))
    number = 0
    with Producer(name_servers, group="filler") as producer:
        last = {}
        for queue_id, count in counts.items():
            queue = MessageQueue(topic, broker, queue_id)
            for _ in range(count):
                last[queue] = producer.send(make(number), queue=queue).queue_offset
                number += 1
    with AdminClient(name_servers) as admin:
        wait_until(lambda: _are_there(admin, topic, last), f"messages of {topic}")


def _are_there(admin: AdminClient, topic: str, last: Mapping[MessageQueue, int]) -> bool:
    bounds = admin.queue_bounds(topic)
    return all(bounds[queue].max_offset > offset for queue, offset in last.items())


def rows(topic: str, counts: Mapping[int, int], start: int = 0) -> list[Row]:
    """The rows of so many messages in each queue."""
    return [
        (topic, queue_id, offset)
        for queue_id, count in sorted(counts.items())
        for offset in range(start, start + count)
    ]


def found_in(frame: DataFrame) -> list[Row]:
    """Topic, queue and offset of every row, sorted; a row that is there twice is there twice."""
    return sorted(tuple(row) for row in frame.select("topic", "queue_id", "queue_offset").collect())


class Stream:
    """A streaming query from topics to Parquet that can be run again and again.

    Args:
        spark: the session.
        folder: for rows and checkpoint.
        options: of the source.
    """

    def __init__(self, spark: SparkSession, folder: Path, **options: Any) -> None:
        self.spark = spark
        self.out, self.checkpoint = folder / "rows", folder / "checkpoint"
        self.options = named(options)

    def source(self, **options: Any) -> DataFrame:
        """The stream, with some options changed."""
        source = self.spark.readStream.format("rocketmq").options(**self.options)
        return source.options(**named(options)).load()

    def begin(
        self, *, now: bool = False, every: str = "0 seconds", failing: str = "", **options: Any
    ) -> Any:
        """Start the query: until all there is now was read, or to go on.

        ``failing`` makes the sink of every batch fail with this text.
        """
        stream = self.source(**options).writeStream
        sink = stream.foreachBatch(_failing(failing)) if failing else stream.format("parquet")
        sink = sink.trigger(availableNow=True) if now else sink.trigger(processingTime=every)
        sink = sink.option("checkpointLocation", str(self.checkpoint))
        return sink.start() if failing else sink.start(str(self.out))

    def once(self, **options: Any) -> Any:
        """Run the query until all there is now was read; gives the ended query.

        On PySpark 4.1 each run has one batch, so runs are repeated until one has none.
        """
        while True:
            done = self._batches_done()
            query = self.begin(now=True, **options)
            try:
                assert query.awaitTermination(ENDS_S), "the query does not end"
            finally:
                query.stop()
            if passes_limits() or self._batches_done() == done:
                return query

    def _batches_done(self) -> int:
        return len(list((self.checkpoint / "commits").glob("[0-9]*")))

    def found(self) -> list[Row]:
        """What arrived at the sink."""
        if not self.out.exists():
            return []
        return found_in(self.spark.read.schema(SCHEMA).parquet(str(self.out)))

    def ends(self) -> list[str]:
        """The end of every batch, as the checkpoint has it."""
        files = sorted(
            (self.checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name)
        )
        return [file.read_text().splitlines()[-1] for file in files]


def _failing(text: str) -> Callable[[DataFrame, int], None]:
    def fail(frame: DataFrame, batch: int) -> None:
        raise RuntimeError(text)

    return fail


def named(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by their names: ``_`` stands for a point."""
    return {name.replace("_", "."): value for name, value in options.items() if value is not None}
