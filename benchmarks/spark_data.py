"""What the Spark figures are measured on: a store of ordinary messages, and the same as Parquet.

Bodies have 128 bytes; four topics get 60, 30, 8 and 2 % of the messages; each message has two keys,
a tag, a unique id and two properties of its own, about 366 bytes of log in all. A second store has
the same messages with small JSON objects as bodies.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cometmq.protocol.properties import encode_properties
from cometmq.protocol.record import MAGIC_BLANK, encode_host, encode_record
from cometmq.spark.batches import RecordDecoder
from cometmq.spark.schema import arrow_schema, log_columns
from cometmq.store import MessageStore, NewRecord, StoreSettings

BODY_BYTES = 128
TOPICS = ("orders", "payments", "shipments", "refunds")
WEIGHTS = (60, 30, 8, 2)
SEED = 5
JSON_SCHEMA = "id BIGINT, customer STRING, country STRING, amount DOUBLE, paid BOOLEAN"
"""Of the small JSON objects, about 85 bytes each."""
QUEUES = 8
BATCH_ROWS = 10_000
"""The rows of one batch of our sources, by default."""
COLUMNS = log_columns(properties=True, validate=False)
LARGE_BODIES = (128, 1024, 4096, 16_384, 131_072)
LARGE_FILE_BYTES = 1 << 30
BLANK = Struct(">ii")
PRODUCER, BROKER = encode_host("10.0.0.7", 40000), encode_host("10.0.0.1", 10911)


def make_store(root: Path, messages: int, *, json_bodies: bool = False) -> None:
    """Fill a store, unless it is there already."""
    done = root / f"filled-{messages}"
    if done.exists():
        return
    shutil.rmtree(root, ignore_errors=True)
    settings = StoreSettings(root=root, flush_disk_type="ASYNC_FLUSH")
    store = MessageStore(settings)
    store.open()
    for arguments, more in _messages(messages, json_bodies):
        store.append(NewRecord(*arguments, **more))
    store.close()
    done.touch()


def messages_of(topic: str, messages: int) -> int:
    """Count the messages that a topic has among those of a store."""
    return _topics(random.Random(SEED), messages).count(topic)


def _topics(chance: random.Random, count: int) -> list[str]:
    return chance.choices(TOPICS, WEIGHTS, k=count)


def _json_body(number: int) -> bytes:
    order = {
        "id": number,
        "customer": f"customer-{number % 5000}",
        "country": ("AT", "DE", "FR")[number % 3],
        "amount": number % 9973 / 100,
        "paid": number % 2 == 0,
    }
    return json.dumps(order).encode()


def _messages(
    count: int, json_bodies: bool
) -> Iterator[tuple[tuple[str, int, bytes, bytes], dict[str, Any]]]:
    chance = random.Random(SEED)
    topics = _topics(chance, count)
    body = chance.randbytes(4096)
    for number, topic in enumerate(topics):
        properties = encode_properties(
            {
                "KEYS": f"order-{number} customer-{number % 5000}",
                "UNIQ_KEY": f"0A000007{number:024X}",
                "WAIT": "true",
                "TAGS": ("paid", "sent", "lost", "new", "old")[number % 5],
                "region": ("north", "south", "east", "west")[number % 4],
                "attempt": str(number % 3),
            }
        )
        at = number % (4096 - BODY_BYTES)
        sent = _json_body(number) if json_bodies else body[at : at + BODY_BYTES]
        yield (
            (topic, number % QUEUES, sent, properties),
            {
                "born_time_ms": 1_700_000_000_000 + number,
                "born_host": PRODUCER,
                "store_host": BROKER,
            },
        )


def make_large_log(folder: Path, size_bytes: int) -> int:
    """Write log files of messages with random bodies of many sizes; return how many there are."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    chance = random.Random(7)
    bodies = chance.randbytes(2 * max(LARGE_BODIES))
    offset = count = 0
    while offset < size_bytes:
        with (folder / f"{offset:020d}").open("wb") as file:
            while True:
                size, at = chance.choice(LARGE_BODIES), chance.randrange(max(LARGE_BODIES))
                record = _large_record(bodies[at : at + size], count, offset + file.tell())
                left = LARGE_FILE_BYTES - file.tell()
                if len(record) + BLANK.size > left:
                    break
                file.write(record)
                count += 1
            file.write(BLANK.pack(left, MAGIC_BLANK))
            file.truncate(LARGE_FILE_BYTES)
        offset += LARGE_FILE_BYTES
    return count


def _large_record(body: bytes, number: int, offset: int) -> bytes:
    properties = encode_properties({"KEYS": f"order-{number}", "TAGS": "paid"})
    return encode_record(
        b"large",
        body,
        properties,
        queue_id=0,
        queue_offset=number,
        log_offset=offset,
        born_time_ms=1_700_000_000_000 + number,
        born_host=PRODUCER,
        store_time_ms=1_700_000_000_000 + number,
        store_host=BROKER,
    )


def segments(root: Path) -> list[Path]:
    """The log files of a store."""
    return sorted((root / "commitlog").iterdir())


def make_parquet(folder: Path, root: Path) -> None:
    """Write the log as Parquet, a file for each of its own, unless that was done."""
    done = folder / "_done"
    if done.exists() and done.stat().st_mtime > root.stat().st_mtime:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    decoder = RecordDecoder(COLUMNS, broker_name="broker-a", max_rows=100_000, max_bytes=64 << 20)
    for path in segments(root):
        data = path.read_bytes()
        batches = list(decoder.batches(data, 0, len(data)))
        if batches:
            table = pa.Table.from_batches(batches, arrow_schema(COLUMNS))
            pq.write_table(table, folder / f"{path.name}.parquet", compression="snappy")
    done.touch()


def save_rows(parquet: Path, to: Path, schema: Any) -> None:
    """Save the rows of one batch of our sources as Arrow, of the types of a schema of Spark."""
    from pyspark.sql.pandas.types import to_arrow_schema

    first = pq.ParquetFile(sorted(parquet.glob("*.parquet"))[0])
    batch = next(first.iter_batches(BATCH_ROWS, columns=schema.names))
    table = (
        pa.Table.from_batches([batch])
        .select(schema.names)
        .cast(to_arrow_schema(schema, timezone="UTC"))
    )
    with pa.ipc.new_file(str(to), table.schema) as writer:
        writer.write_table(table.combine_chunks())


def made_source() -> type:
    """Return a data source that reads nothing: its tasks yield the same rows again and again.

    Spark sends the classes to its workers, as they are defined in a function.
    """
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class MadeReader(DataSourceReader):
        def __init__(self, path: str, rows: int, tasks: int) -> None:
            self.path, self.rows, self.tasks = path, rows, tasks

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(self.tasks)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import pyarrow

            with pyarrow.memory_map(self.path) as file:
                batch = pyarrow.ipc.open_file(file).get_batch(0)
            left = self.rows // self.tasks
            while left > 0:
                yield batch.slice(0, left)
                left -= len(batch)

    class MadeSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "made-rows"

        def reader(self, schema: Any) -> DataSourceReader:
            return MadeReader(self.options["path"], int(self.options["rows"]), QUEUES)

    return MadeSource
