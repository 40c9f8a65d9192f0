"""Bodies that are decoded while topics and logs are read, and those of a table."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from pyspark.errors import AnalysisException

from cometmq.client import Message
from cometmq.spark.payloads import decode_payloads
from support.spark.log_files import FilledStore
from support.spark.spark_logs import log
from support.spark.spark_topics import fill, named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "id BIGINT NOT NULL, items ARRAY<STRUCT<sku: STRING>>, at TIMESTAMP"
JSON = {"payload_format": "json", "payload_schema": COLUMNS}
BODIES = [
    b'{"id": 1, "items": [{"sku": "hat"}], "at": "2026-11-21T18:00:00Z"}',
    b'{"id": "2"}',
    b'{"id": 3, "new": "field"}',
]


def read(spark: SparkSession, stream: bool = False, schema: str = "", **options: Any) -> DataFrame:
    reader = spark.readStream if stream else spark.read
    reader = reader.format("rocketmq").options(**named({"startingOffsets": "earliest"} | options))
    return (reader.schema(schema) if schema else reader).load()


def send(name_servers: str, topic: str, bodies: list[bytes]) -> dict[str, str]:
    fill(name_servers, topic, {0: len(bodies)}, message=lambda n: Message(topic, bodies[n]))
    return {"nameServer": name_servers, "subscribe": topic}


def values(frame: DataFrame) -> list[Any]:
    rows = frame.orderBy("queue_offset").collect()
    return [(row.value and row.value.asDict(recursive=True), row.value_error) for row in rows]


EXPECTED = [({"id": 1, "sku": "hat"}, None), (None, "Expected `int`, got `str` - at `$.id`"),
            ({"id": 3, "sku": None}, None)]  # fmt: skip


def short(found: list[Any]) -> list[Any]:
    """The id and the first sku of each value, and its reason."""
    return [
        (value and {"id": value["id"], "sku": value["items"] and value["items"][0]["sku"]}, reason)
        for value, reason in found
    ]


def test_a_batch_has_values_and_reasons(spark: SparkSession, name_servers: str, topic: str) -> None:
    connection = send(name_servers, topic, BODIES)
    assert short(values(read(spark, **connection, **JSON))) == EXPECTED
    chosen = read(
        spark, schema=f"value STRUCT<{COLUMNS}>, queue_offset BIGINT", **connection, **JSON
    )
    assert [row.value and row.value.id for row in chosen.orderBy("queue_offset").collect()] == [
        1,
        None,
        3,
    ]


def test_a_stream_keeps_bad_rows_apart(
    spark: SparkSession, name_servers: str, topic: str, tmp_path: Path
) -> None:
    connection = send(name_servers, topic, BODIES)

    def divide(batch: DataFrame, _: int) -> None:
        batch.where("value_error IS NULL").select("queue_offset", "value.*").write.mode(
            "append"
        ).parquet(f"{tmp_path}/orders")
        batch.where("value_error IS NOT NULL").select(
            "queue_offset", "body", "value_error"
        ).write.mode("append").parquet(f"{tmp_path}/quarantine")

    query = (
        read(spark, stream=True, **connection, **JSON)
        .writeStream.foreachBatch(divide)
        .option("checkpointLocation", f"{tmp_path}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    orders = spark.read.parquet(f"{tmp_path}/orders").orderBy("id").collect()
    assert [(row.id, row.queue_offset) for row in orders] == [(1, 0), (3, 2)]
    (bad,) = spark.read.parquet(f"{tmp_path}/quarantine").collect()
    assert (bad.queue_offset, bytes(bad.body)) == (1, BODIES[1])
    assert "`$.id`" in bad.value_error


def test_avro_has_the_columns_of_its_schema(
    spark: SparkSession, name_servers: str, topic: str
) -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "tags", "type": ["null", "string"]}],
    }
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), {"id": 5, "tags": None})
    options = {"payload_format": "avro", "payload_schema": json.dumps(schema)}
    connection = send(name_servers, topic, [sink.getvalue(), b"\x80"])
    frame = read(spark, **connection, **options)
    assert frame.schema["value"].simpleString() == "value:struct<id:bigint,tags:string>"
    assert values(frame) == [
        ({"id": 5, "tags": None}, None),
        (None, "no Avro of this schema: IndexError: string index out of range"),
    ]


@pytest.mark.local_only
def test_a_log_and_a_table_have_values(spark: SparkSession, tmp_path: Path) -> None:
    store = FilledStore(tmp_path / "store")
    store.fill(3)
    store.close()
    options = {"payload.format": "json", "payload.schema": "id BIGINT"}
    frame = log(spark, tmp_path / "store", **options)
    reasons = [row.value_error for row in frame.collect()]
    assert len(reasons) == 3
    assert all("Expected `object`" in str(reason) for reason in reasons), reasons
    bodies = spark.createDataFrame([(b'{"id": 7}',), (b"",), (None,)], "body BINARY")
    rows = decode_payloads(bodies, options).collect()
    assert [(row.value and row.value.id, row.value_error) for row in rows] == [
        (7, None),
        (None, "the body is empty"),
        (None, "there is no body"),
    ]


@pytest.mark.local_only
def test_bad_options_are_refused_when_the_query_is_planned(spark: SparkSession) -> None:
    server = {"nameServer": "127.0.0.1:9", "subscribe": "orders"}
    with pytest.raises(AnalysisException, match=r"payload.format=json needs payload.schema"):
        read(spark, **server, payload_format="json")
    with pytest.raises(AnalysisException, match=r"met value.id INT, expected BIGINT"):
        read(
            spark,
            schema="value STRUCT<id INT>",
            **server,
            payload_format="avro",
            payload_schema=json.dumps(
                {"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}]}
            ),
        ).collect()
