"""What is measured of Spark: each subject does its work once and says how fast that was.

A rate counts the rows that the query returned or wrote, after the clock has stopped. Another count
than that of the messages that were made is a `CountError`, and there is no rate. Scans of our
formats and of Spark's own are counted alike, by Spark, where their rows arrive.
"""

from __future__ import annotations

import json
import random
import runpy
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from pathlib import Path
from statistics import median
from typing import Any

import machine
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from spark_data import JSON_SCHEMA, TOPICS, made_source, messages_of, save_rows

ARCHIVE = Path(__file__).resolve().parents[1] / "examples/spark/archive_log.py"
FEW = "queue_id int, queue_offset bigint, store_timestamp timestamp, store_size int, topic string"
JSON_COLUMNS = f"queue_id int, queue_offset bigint, value STRUCT<{JSON_SCHEMA}>, value_error string"
WARM_BATCHES, BATCHES = 15, 30
BATCHES_WITHIN_S = 900.0
CPU_LOADS = 2
"""How often the query whose processor time is measured reads all messages."""
CPU_ROWS = 2_000_000
KAFKA_WITHIN_MS = 900_000
EVENT_GAPS_S = 0.2, 0.6
"""Least and most time between two messages whose way to a row is timed."""
ROWS_METRIC = "number of output rows"
QUEUES_FILLED_WITHIN_S = 10.0
"""Queues are filled shortly after a message is acknowledged."""


class CountError(Exception):
    """A query returned or wrote another number of rows than it had to."""


@dataclass
class Bench:
    """What subjects work with."""

    spark: Any
    folder: Path
    messages: int
    name_servers: str = ""
    topic: str = ""
    """A topic with all messages."""
    writes: str = ""
    """A topic to write to."""
    batches: str = ""
    """A topic whose first queue has a message for each micro-batch."""
    events: str = ""
    """A topic of one queue for messages that are sent while a stream reads it."""
    kafka: str = ""
    """Where Kafka listens."""
    dropped: tuple[Path, list[int]] | None = None
    """The broker's store and processes, while there is one: what a cold read finds on the disk."""
    topic_count: Callable[[str], int] = lambda _: 0
    """How many messages the broker's queues of a topic hold."""
    numbers: dict[str, int] = field(default_factory=dict)

    @property
    def store(self) -> str:
        """The store of the messages."""
        return str(self.folder / "store")

    @property
    def json_store(self) -> str:
        """The store of the messages whose bodies are JSON."""
        return str(self.folder / "json-store")

    @property
    def stores(self) -> tuple[str, str]:
        """Both stores of messages."""
        return self.store, self.json_store

    @property
    def parquet(self) -> str:
        """The messages as Parquet."""
        return str(self.folder / "parquet")

    def some_parquet(self) -> tuple[list[str], int]:
        """Two files of the Parquet copy, one for each core, and how many rows they have."""
        paths = [str(path) for path in sorted(Path(self.parquet).glob("*.parquet"))[:2]]
        if "some" not in self.numbers:
            self.numbers["some"] = self.spark.read.parquet(*paths).count()
        return paths, self.numbers["some"]

    def fresh(self, name: str) -> Path:
        """A folder that does not exist yet."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        return path


@dataclass(frozen=True)
class Subject:
    """One line of the table."""

    name: str
    title: str
    measure: Callable[[Bench], float] | None = None
    """None where figures are not taken in the session alone."""
    target: float | None = None
    """A ratio to the twin if there is one, else a value."""
    unit: str = "k rows/s"
    more_is_better: bool = True
    twin: str = ""
    """The subject that does the same by Spark's own means; the ratio to it is shown."""
    ours: str = ""
    """The subject that does the same on our broker, for one of another kind of broker. The ratio of
    our figure to this one is shown, and is what the target means."""
    value: float | None = None
    """A target for the value, beside one for the ratio."""


def _rate(expected: int, work: Callable[[], object], count: Callable[[], int]) -> float:
    """Time the work and count what it did, which is no part of the time.

    Raises:
        CountError: it did not do all, or too much.
    """
    began = time.perf_counter()
    work()
    took_s = time.perf_counter() - began
    return _checked(count(), expected, "rows returned or written") / took_s / 1e3


def _checked(count: int, expected: int, what: str) -> int:
    if count != expected:
        raise CountError(f"met {count} {what}, expected {expected}")
    return count


def _scan_rate(bench: Bench, expected: int, load: Callable[[], Any]) -> float:
    """Time a query whose rows are discarded, and ask Spark how many the sink got."""
    return _rate(expected, lambda: _discard(load()), lambda: _rows_at_sink(bench.spark))


def _cpu_s(bench: Bench, load: Callable[[], Any]) -> float:
    """Return the CPU time of one query of so many rows: of Spark, its workers and the broker."""
    used = machine.FamilyCpu()
    _discard(reduce(DataFrame.unionAll, [load() for _ in range(CPU_LOADS)]))
    used_s = used.seconds()
    rows = CPU_LOADS * bench.messages
    _checked(_rows_at_sink(bench.spark), rows, "rows returned or written")
    return used_s * CPU_ROWS / rows


def _rows_at_sink(spark: Any) -> int:
    """Return how many rows the last query wrote, by a metric that Spark always counts.

    Raises:
        CountError: this version of Spark has no such metric.
    """
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    store = spark._jsparkSession.sharedState().statusStore()
    executions = store.executionsList()
    # Spark's Kafka source runs a query of its own within the one that reads it.
    query = executions.apply(executions.size() - 1).rootExecutionId()
    sink = store.planGraph(query).allNodes().apply(0)
    metrics = sink.metrics()
    for metric in (metrics.apply(at) for at in range(metrics.size())):
        if metric.name() == ROWS_METRIC:
            value = store.executionMetrics(query).apply(metric.accumulatorId())
            return int(value.replace(",", ""))
    raise CountError(f"met no metric {ROWS_METRIC!r} at {sink.name()}, expected Spark 4.2 or newer")


def _group_rate(expected: int, load: Callable[[], Any]) -> float:
    """Time a count by tag, and add up the counts."""
    groups: list[Any] = []
    return _rate(
        expected,
        lambda: groups.extend(load().groupBy("tags").count().collect()),
        lambda: sum(group["count"] for group in groups),
    )


def _files_rate(expected: int, to: Path, write: Callable[[], object]) -> float:
    """Time a query that writes Parquet, and add up what the files' footers say."""
    return _rate(
        expected,
        write,
        lambda: sum(
            pq.read_metadata(path).num_rows
            for path in to.rglob("*.parquet")
            if "_delta_log" not in path.parts
        ),
    )


def _stored(bench: Bench, topic: str, expected: int) -> int:
    """Count a topic's messages, once its queues are filled."""
    deadline = time.monotonic() + QUEUES_FILLED_WITHIN_S
    while (found := bench.topic_count(topic)) < expected and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _discard(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _log(bench: Bench, schema: str = "", **options: str) -> Any:
    reader = bench.spark.read.format("rocketmq-log").options(path=bench.store, **options)
    return (reader.schema(schema) if schema else reader).load()


def _topic(bench: Bench, **options: str) -> Any:
    reader = bench.spark.read.format("rocketmq").options(
        nameServer=bench.name_servers, subscribe=bench.topic, **options
    )
    return reader.load()


def _parquet(bench: Bench, *left_out: str) -> Any:
    return bench.spark.read.parquet(bench.parquet).drop(*left_out)


def log_scan(bench: Bench) -> float:
    """Scan the log, all columns but the properties."""
    return _scan_rate(bench, bench.messages, lambda: _log(bench))


def log_scan_properties(bench: Bench) -> float:
    """Scan the log with the map of properties."""
    return _scan_rate(bench, bench.messages, lambda: _log(bench, includeProperties="true"))


def log_scan_few(bench: Bench) -> float:
    """Scan five columns of the log, chosen by a schema."""
    return _scan_rate(bench, bench.messages, lambda: _log(bench, FEW))


def log_group(bench: Bench) -> float:
    """Count the log's messages by tag."""
    return _group_rate(bench.messages, lambda: _log(bench))


def log_one_topic(bench: Bench) -> float:
    """Find the 2 % of the messages that one topic has; only returned rows count."""
    frame = _log(bench, subscribe=TOPICS[-1])
    return _scan_rate(bench, messages_of(TOPICS[-1], bench.messages), lambda: frame)


def log_json(bench: Bench) -> float:
    """Decode small JSON objects, all of which fit their schema."""
    frame = _json(bench)
    rate = _scan_rate(bench, bench.messages, lambda: frame)
    if "json" not in bench.numbers:
        bench.numbers["json"] = frame.where("value_error IS NULL AND value IS NOT NULL").count()
    _checked(bench.numbers["json"], bench.messages, "rows that were decoded")
    return rate


def _json(bench: Bench) -> Any:
    reader = bench.spark.read.format("rocketmq-log").schema(JSON_COLUMNS)
    options = {"payload.format": "json", "payload.schema": JSON_SCHEMA}
    return reader.options(path=bench.json_store, **options).load()


def parquet_one_topic(bench: Bench) -> float:
    """The same by Spark's own source, which filters; only returned rows count."""
    frame = _parquet(bench, "properties").where(f"topic = '{TOPICS[-1]}'")
    return _scan_rate(bench, messages_of(TOPICS[-1], bench.messages), lambda: frame)


def parquet_scan_few(bench: Bench) -> float:
    """The same five columns by Spark's own source."""
    names = [column.split()[0] for column in FEW.split(", ")]
    return _scan_rate(bench, bench.messages, lambda: _parquet(bench).select(*names))


def parquet_scan(bench: Bench) -> float:
    """The same scan of a Parquet copy, by Spark's own source."""
    return _scan_rate(bench, bench.messages, lambda: _parquet(bench, "properties"))


def parquet_scan_properties(bench: Bench) -> float:
    """The same with the properties."""
    return _scan_rate(bench, bench.messages, lambda: _parquet(bench))


def parquet_group(bench: Bench) -> float:
    """The same count by Spark's own source."""
    return _group_rate(bench.messages, lambda: _parquet(bench))


def parquet_copy(bench: Bench) -> float:
    """Copy the Parquet files through Spark."""
    to = bench.fresh("parquet-copy")
    return _files_rate(bench.messages, to, lambda: _parquet(bench).write.parquet(str(to)))


def log_to_parquet(bench: Bench) -> float:
    """Write the log as Parquet through Spark's writer."""
    to, frame = bench.fresh("log-copy"), _log(bench, includeProperties="true")
    return _files_rate(bench.messages, to, lambda: frame.write.parquet(str(to)))


def archive(bench: Bench) -> float:
    """Archive the log into a Delta table, as the example does."""
    to, run = bench.fresh("archive"), runpy.run_path(str(ARCHIVE))["archive"]
    return _files_rate(bench.messages, to, lambda: run(bench.spark, bench.store, str(to)))


def topic_scan(bench: Bench) -> float:
    """Read the topic through its broker."""
    return _scan_rate(bench, bench.messages, lambda: _topic(bench))


def topic_scan_properties(bench: Bench) -> float:
    """Read the topic with the properties."""
    return _scan_rate(bench, bench.messages, lambda: _topic(bench, includeProperties="true"))


def topic_cpu(bench: Bench) -> float:
    """CPU time of reading the topic, all columns but the properties."""
    return _cpu_s(bench, lambda: _topic(bench))


def topic_cpu_properties(bench: Bench) -> float:
    """CPU time of reading the topic with the properties."""
    return _cpu_s(bench, lambda: _topic(bench, includeProperties="true"))


def made_cpu(bench: Bench) -> float:
    """CPU time of rows that a data source in Python has in memory: what Spark itself takes."""
    return _cpu_s(bench, lambda: _made(bench))


def made_cpu_properties(bench: Bench) -> float:
    """The same with the properties."""
    return _cpu_s(bench, lambda: _made(bench, properties=True))


def parquet_cpu(bench: Bench) -> float:
    """CPU time of a Parquet copy by Spark's own source, without Python."""
    return _cpu_s(bench, lambda: _parquet(bench, "properties"))


def _made(bench: Bench, *, properties: bool = False) -> Any:
    schema = _topic(bench, includeProperties="true" if properties else "false").schema
    rows = bench.folder / f"made-{len(schema)}.arrow"
    save_rows(Path(bench.parquet), rows, schema)
    bench.spark.dataSource.register(made_source())
    reader = bench.spark.read.format("made-rows").schema(schema)
    return reader.options(path=str(rows), rows=bench.messages).load()


def kafka_scan(bench: Bench) -> float:
    """Read the same messages from Kafka."""
    return _scan_rate(bench, bench.messages, lambda: _kafka(bench))


def kafka_cpu(bench: Bench) -> float:
    """CPU time of reading the same messages from Kafka, all columns but the headers."""
    return _cpu_s(bench, lambda: _kafka(bench))


def kafka_cpu_headers(bench: Bench) -> float:
    """CPU time of reading the same messages from Kafka with the headers."""
    return _cpu_s(bench, lambda: _kafka(bench, includeHeaders="true"))


def _kafka(bench: Bench, **options: str) -> Any:
    reader = bench.spark.read.format("kafka").option("kafka.bootstrap.servers", bench.kafka)
    return reader.options(subscribe=bench.topic, **options).load()


def fill_kafka(bench: Bench) -> None:
    """Write all messages to a topic of Kafka: keys as keys, tags and unique ids as headers."""
    frame = bench.spark.read.parquet(bench.parquet).selectExpr(
        "CAST(keys AS STRING) AS key",
        "body AS value",
        "array(struct('TAGS' AS key, CAST(tags AS BINARY) AS value),"
        " struct('UNIQ_KEY' AS key, CAST(msg_id AS BINARY) AS value)) AS headers",
    )
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", bench.kafka)
    writer.option("kafka.delivery.timeout.ms", KAFKA_WITHIN_MS)  # 2 minutes are short when busy
    writer.option("topic", bench.topic).save()


def topic_write(bench: Bench) -> float:
    """Write Parquet rows to a topic, all acknowledgements awaited."""
    paths, rows = bench.some_parquet()
    frame = bench.spark.read.parquet(*paths).select("body", "tags", "keys")
    before = bench.topic_count(bench.writes)
    return _rate(
        rows,
        lambda: _write(bench, frame, bench.writes),
        lambda: _stored(bench, bench.writes, before + rows) - before,
    )


def fill(bench: Bench) -> None:
    """Write all messages to the topic that is read later.

    Raises:
        CountError: the topic has another number of messages then.
    """
    frame = bench.spark.read.parquet(bench.parquet).select("body", "tags", "keys")
    _write(bench, frame, bench.topic)
    found = _stored(bench, bench.topic, bench.messages)
    _checked(found, bench.messages, f"messages in topic {bench.topic}")


def _write(bench: Bench, frame: Any, topic: str) -> None:
    writer = frame.write.format("rocketmq").option("nameServer", bench.name_servers)
    writer.option("topic", topic).mode("append").save()


def topic_batch(bench: Bench) -> float:
    """Time micro-batches of one message each, read through the broker."""
    queue = json.dumps({bench.batches: {"broker-a": [0]}})
    source = bench.spark.readStream.format("rocketmq").options(
        nameServer=bench.name_servers,
        assign=queue,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="1",
    )
    return _batch_ms(bench, source.load())


def log_batch(bench: Bench) -> float:
    """Time micro-batches of a few messages each, read from the log."""
    source = bench.spark.readStream.format("rocketmq-log").options(
        path=bench.store, startingOffsets="earliest", maxBytesPerTrigger="500"
    )
    return _batch_ms(bench, source.load())


def rate_batch(bench: Bench) -> float:
    """The same with Spark's own source of numbers."""
    source = bench.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1)
    return _batch_ms(bench, source.load())


def _batch_ms(bench: Bench, frame: Any) -> float:
    """Return the median time of a trigger, the first ones left out."""
    checkpoint = bench.fresh("checkpoint")
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        times = _trigger_times(query)
    finally:
        query.stop()
    return median(times[WARM_BATCHES:])


def topic_events(bench: Bench) -> float:
    """Time messages from the call of send until a stream has written their rows to its sink."""
    from cometmq.client.blocking import Producer

    source = bench.spark.readStream.format("rocketmq").options(
        nameServer=bench.name_servers, subscribe=bench.events, startingOffsets="latest"
    )
    checkpoint = bench.fresh("checkpoint")
    writer = source.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime="0 seconds").start()
    chance = random.Random(3)
    sent: dict[int, float] = {}
    try:
        with Producer(bench.name_servers, group="bench-events") as producer:
            _wait_for(query, lambda: query.lastProgress is not None)
            for _ in range(WARM_BATCHES + BATCHES):
                time.sleep(chance.uniform(*EVENT_GAPS_S))
                at = time.time()
                receipt = producer.send(bench.events, b"an event")
                sent[receipt.queue_offset] = 1e3 * at
        _wait_for(query, lambda: _end_offset(query.lastProgress, bench.events) > max(sent))
        batches = [each for each in query.recentProgress if each["numInputRows"]]
    finally:
        query.stop()
    ends = [(_end_offset(each, bench.events), _written_ms(each)) for each in batches]
    times = [
        next(written for end, written in ends if end > offset) - at for offset, at in sent.items()
    ]
    return median(times[WARM_BATCHES:])


def _wait_for(query: Any, is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BATCHES_WITHIN_S
    while not is_done():
        if time.monotonic() > deadline or not query.isActive:
            raise RuntimeError(f"no progress: {query.exception() or query.lastProgress}")
        time.sleep(0.2)


def _written_ms(progress: Any) -> float:
    """When a micro-batch had written its rows, in ms since the epoch; then it notes that it did."""
    began = datetime.fromisoformat(progress["timestamp"]).timestamp()
    took = progress["durationMs"]
    return float(1e3 * began + took["triggerExecution"] - took.get("commitOffsets", 0))


def _end_offset(progress: Any, topic: str) -> int:
    """Where a micro-batch of a topic of one queue ended."""
    queues = json.loads(progress["sources"][0]["endOffset"])[topic]
    return sum(offset for offsets in queues.values() for offset in offsets.values())


def _trigger_times(query: Any) -> list[float]:
    times: dict[int, float] = {}

    def is_done() -> bool:
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                times[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
        return len(times) >= WARM_BATCHES + BATCHES

    _wait_for(query, is_done)
    return list(times.values())


def _in_ms(
    name: str, title: str, measure: Callable[[Bench], float], target: float | None, twin: str = ""
) -> Subject:
    return Subject(name, title, measure, target, "ms", more_is_better=False, twin=twin)


def _in_cpu_s(
    name: str,
    title: str,
    measure: Callable[[Bench], float],
    target: float | None = None,
    ours: str = "",
) -> Subject:
    title = f"{title}: CPU of Spark, its workers and the broker"
    unit = "CPU s per 2 M rows"
    return Subject(name, title, measure, target, unit, more_is_better=False, ours=ours)


SAME = "Spark's Parquet source, the same"
OF_FILES = (
    Subject("log", "`rocketmq-log`, all columns, noop sink", log_scan, 0.37, twin="parquet"),
    Subject("parquet", SAME, parquet_scan),
    Subject(
        "log-properties",
        "`rocketmq-log` with properties",
        log_scan_properties,
        twin="parquet-properties",
    ),
    Subject("parquet-properties", SAME, parquet_scan_properties),
    Subject(
        "log-few", "`rocketmq-log`, five columns by a schema", log_scan_few, twin="parquet-few"
    ),
    Subject("parquet-few", SAME, parquet_scan_few),
    Subject("log-group", "`rocketmq-log`, count by tag", log_group, twin="parquet-group"),
    Subject("parquet-group", SAME, parquet_group),
    Subject(
        "log-topic",
        "`rocketmq-log`, a topic with 2 % of the messages, returned rows",
        log_one_topic,
        twin="parquet-topic",
    ),
    Subject("parquet-topic", SAME, parquet_one_topic),
    Subject(
        "log-json",
        "`rocketmq-log`, small JSON objects decoded into five columns",
        log_json,
        400,
    ),
    Subject("archive", "archive of the log, zstd", archive, 4.4, twin="parquet-parquet", value=800),
    Subject(
        "log-parquet",
        "`rocketmq-log` through Spark's Parquet writer",
        log_to_parquet,
        twin="parquet-parquet",
    ),
    Subject("parquet-parquet", SAME, parquet_copy),
    _in_ms("log-batch", "micro-batch of a few messages of a log", log_batch, 0.4, "rate-batch"),
    _in_ms("rate-batch", "Spark's `rate-micro-batch`, one row", rate_batch, None),
)
OF_BROKERS = (
    Subject("topic", "`rocketmq` through one broker, all columns, noop sink", topic_scan, 250),
    Subject("topic-properties", "`rocketmq` with properties", topic_scan_properties),
    _in_cpu_s("topic-cpu", "`rocketmq`, all columns", topic_cpu, 2.7),
    _in_cpu_s("topic-cpu-properties", "`rocketmq` with properties", topic_cpu_properties, 4),
    _in_cpu_s("made-cpu", "rows in memory, by a data source in Python", made_cpu),
    _in_cpu_s(
        "made-cpu-properties",
        "rows in memory, by a data source in Python, with properties",
        made_cpu_properties,
    ),
    _in_cpu_s("parquet-cpu", "Parquet, by Spark's own source, without Python", parquet_cpu),
    Subject("write", "write to a topic", topic_write, 60),
    _in_ms("topic-batch", "micro-batch of one message of a topic", topic_batch, 200),
    _in_ms("topic-events", "from a send to the row at the sink", topic_events, 150),
)
OF_KAFKA = (
    Subject("kafka", "Spark's Kafka connector, all columns, noop sink", kafka_scan, ours="topic"),
    _in_cpu_s("kafka-cpu", "Spark's Kafka connector, all columns", kafka_cpu, 1, "topic-cpu"),
    _in_cpu_s(
        "kafka-cpu-headers",
        "Spark's Kafka connector with headers",
        kafka_cpu_headers,
        1,
        "topic-cpu-properties",
    ),
)
OF_ASYNC_BROKERS = (Subject("write-async", "write to a topic", topic_write),)
"""Those that the broker's flush mode changes."""
COLD = (
    *("log", "log-json", "archive", "topic", "topic-properties"),
    *("topic-cpu", "topic-cpu-properties", "kafka", "kafka-cpu", "kafka-cpu-headers"),
)
"""Subjects that are also measured with messages that are not in the page cache."""
