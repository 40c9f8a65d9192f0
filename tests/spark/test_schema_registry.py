"""Avro bodies with the schemas of a registry that speaks Confluent's interface."""

from __future__ import annotations

import io
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
import toolchain
from processes import Process, accepts

from cometmq.client import Message
from cometmq.remoting.ports import free_port
from support.spark.spark_topics import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
NEW = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "country", "type": "string", "default": "DE"},
    ],
}


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """The address of a registry without schemas."""
    address = f"127.0.0.1:{free_port()}"
    process = Process([str(toolchain.schema_registry()), address], tmp_path / "registry.log")
    process.wait_until(lambda: accepts(int(address.partition(":")[2])), "its port", 60.0)
    yield f"http://{address}"
    process.stop()


def register(registry: str, subject: str, schema: object) -> int:
    """Register a schema as producers do, and return its id."""
    request = urllib.request.Request(
        f"{registry}/subjects/{subject}/versions",
        json.dumps({"schema": json.dumps(schema)}).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return int(json.load(response)["id"])


def framed(number: int, schema: Any, values: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), values)
    return b"\0" + number.to_bytes(4, "big") + sink.getvalue()


@pytest.mark.only_on("comet")
def test_messages_of_old_and_new_producers_are_one_table(
    spark: SparkSession, registry: str, name_servers: str, topic: str
) -> None:
    old = register(registry, f"{topic}-value", OLD)
    new = register(registry, f"{topic}-value", NEW)
    bodies = [
        framed(old, OLD, {"id": 1}),
        framed(new, NEW, {"id": 2, "country": "FR"}),
        framed(99, OLD, {"id": 3}),
        b'{"id": 4}',
    ]
    fill(name_servers, topic, {0: len(bodies)}, message=lambda n: Message(topic, bodies[n]))
    reader = spark.read.format("rocketmq").option("nameServer", name_servers)
    reader = reader.option("subscribe", topic).option("payload.format", "avro")
    frame = reader.option("payload.registry", registry).load()
    rows = frame.orderBy("queue_offset").collect()
    assert [row.value and row.value.asDict() for row in rows] == [
        {"id": 1, "country": "DE"},
        {"id": 2, "country": "FR"},
        None,
        None,
    ]
    assert [row.value_error for row in rows] == [
        None,
        None,
        f"schema 99 is not in the registry {registry}",
        "met 7b 22 69 64 22, expected a zero byte and the id of a schema",
    ]
