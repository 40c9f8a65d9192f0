"""Avro bodies: types, evolution of schemas, and damage."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import uuid
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from cometmq.spark.errors import OptionError
from cometmq.spark.payloads.avro import Avro, arrow_type
from cometmq.spark.payloads.decoder import PayloadDecoder
from cometmq.spark.payloads.types import sql_type

AT = datetime.datetime(2026, 11, 21, 18, tzinfo=datetime.UTC)
ID = uuid.UUID(int=5)
TYPES: list[tuple[Any, str, Any, Any]] = [
    ("boolean", "BOOLEAN", True, True),
    ("int", "INT", 5, 5),
    ("long", "BIGINT", 1 << 40, 1 << 40),
    ("float", "FLOAT", 0.5, 0.5),
    ("double", "DOUBLE", 0.1, 0.1),
    ("string", "STRING", "é", "é"),
    ("bytes", "BINARY", b"\0", b"\0"),
    ({"type": "fixed", "name": "F", "size": 2}, "BINARY", b"ab", b"ab"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "STRING", "B", "B"),
    ({"type": "int", "logicalType": "date"}, "DATE", AT.date(), AT.date()),
    ({"type": "int", "logicalType": "time-millis"}, "STRING", AT.time(), "18:00:00"),
    ({"type": "long", "logicalType": "timestamp-millis"}, "TIMESTAMP", AT, AT),
    ({"type": "long", "logicalType": "timestamp-micros"}, "TIMESTAMP", AT, AT),
    (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        "TIMESTAMP_NTZ",
        AT.replace(tzinfo=None),
        AT.replace(tzinfo=None),
    ),
    ({"type": "string", "logicalType": "uuid"}, "STRING", ID, str(ID)),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "DECIMAL(9, 2)",
        decimal.Decimal("1.25"),
        decimal.Decimal("1.25"),
    ),
    ({"type": "array", "items": ["null", "int"]}, "ARRAY<INT>", [1, None], [1, None]),
    ({"type": "map", "values": "long"}, "MAP<STRING, BIGINT>", {"a": 1}, [("a", 1)]),
]


def record(*fields: tuple[str, Any]) -> str:
    named = [{"name": name, "type": kind} for name, kind in fields]
    return json.dumps({"type": "record", "name": "Order", "fields": named})


def encoded(schema: str, **values: Any) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(json.loads(schema)), values)
    return sink.getvalue()


def decoded(schema: str, *bodies: bytes) -> tuple[list[Any], list[Any]]:
    kind = arrow_type(schema)
    values, reasons = PayloadDecoder(Avro(schema), kind).decode(pa.array(bodies, pa.binary()))
    return values.to_pylist(), reasons.to_pylist()


@pytest.mark.parametrize(("kind", "sql", "value", "column"), TYPES, ids=[each[1] for each in TYPES])
def test_every_type_has_a_column(kind: Any, sql: str, value: Any, column: Any) -> None:
    schema = record(("x", kind), ("y", ["null", kind if isinstance(kind, str) else "int"]))
    assert sql_type(arrow_type(schema)).startswith(f"STRUCT<`x`: {sql} NOT NULL, `y`: ")
    assert decoded(schema, encoded(schema, x=value, y=None)) == ([{"x": column, "y": None}], [None])


def test_records_are_nested_and_named_types_are_used_again() -> None:
    city = {"type": "record", "name": "City", "fields": [{"name": "zip", "type": "string"}]}
    schema = record(("home", city), ("work", ["null", "City"]))
    assert decoded(schema, encoded(schema, home={"zip": "1"}, work={"zip": "2"})) == (
        [{"home": {"zip": "1"}, "work": {"zip": "2"}}],
        [None],
    )


def test_damage_is_null_with_the_reason() -> None:
    schema = record(("id", "long"), ("name", "string"))
    whole = encoded(schema, id=1, name="hat")
    values, reasons = decoded(schema, whole[:-1], whole + b"x", b"\xff" * 20, whole)
    assert values == [None, None, None, {"id": 1, "name": "hat"}]
    assert "no Avro of this schema" in reasons[0]
    assert reasons[1] == "1 bytes follow the record"
    assert "no Avro of this schema" in reasons[2]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("{", "no Avro schema"),
        ('"string"', "not of a record"),
        ('{"type": "record", "fields": []}', "no Avro schema"),
        (record(("x", "zork")), "no Avro schema: UnknownType"),
        (record(("x", ["int", "string"])), "x is a union of 2 types"),
        (record(("next", ["null", "Order"])), "nested in itself"),
        (record(("x", {"type": "bytes", "logicalType": "decimal", "precision": 39})), "39 digits"),
    ],
)
def test_a_schema_without_columns_is_refused(schema: str, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        arrow_type(schema)
