"""Parses Avro, through fastavro, and gives an Avro schema as an Arrow type.

A body is read with the schema that wrote it and returned in the reader's schema, by Avro's rules:
a field that the reader lacks is passed over, one that the writer lacked gets the reader's default.
The writer's schema comes from the registry by the id in the body; without a registry it is the
reader's.

    record → STRUCT       enum, uuid, time → STRING     decimal → DECIMAL
    array → ARRAY         bytes, fixed → BINARY         timestamp → TIMESTAMP
    map → MAP<STRING, …>  union of null and X → X       local timestamp → TIMESTAMP_NTZ
"""

from __future__ import annotations

import datetime
import io
import json
import uuid
from operator import itemgetter
from typing import Any

import pyarrow as pa

from cometmq.spark.errors import OptionError, SourceError
from cometmq.spark.payloads.decoder import Getter, PayloadError
from cometmq.spark.payloads.registry import SchemaRegistry, divided

try:
    import fastavro
    from fastavro.schema import SchemaParseException
except ImportError as missing:  # the extra is chosen by those who read Avro
    raise OptionError(
        "payload.format=avro needs fastavro: install CometMQ with the extra 'payloads'"
    ) from missing

AVRO = "AVRO"
_NEST_MAX = 16
_DECIMAL_MAX = 38


class Avro:
    """Parses one body into the dictionary of a record.

    Args:
        schema: the reader's schema, as JSON.
        registry: has the writers' schemas; None if bodies have no id of a schema.

    Raises:
        OptionError: the schema is none, or is not of a record.
    """

    def __init__(self, schema: str, registry: SchemaRegistry | None = None) -> None:
        self._reader = _parsed(schema)
        self._registry = registry
        self._writers: dict[int, Any] = {}

    def parse(self, body: bytes) -> Any:
        """Return the record of a body."""
        writer, data = self._reader, body
        if self._registry is not None:
            number, data = divided(body)
            writer = self._writers.get(number) or self._writer(number, self._registry)
        source = io.BytesIO(data)
        try:
            found = fastavro.schemaless_reader(source, writer, self._reader)
        except SourceError:
            raise
        except Exception as problem:  # fastavro documents no error for damaged bytes
            raise PayloadError(f"no Avro of this schema: {_text(problem)}") from None
        if (rest := len(data) - source.tell()) > 0:
            raise PayloadError(f"{rest} bytes follow the record")
        return found

    def getter(self, kind: pa.StructType, index: int) -> Getter:
        """Return a function that reads a field."""
        name = kind.field(index).name
        if pa.types.is_string(kind.field(index).type):
            return lambda record: _as_text(record[name])
        return itemgetter(name)

    def _writer(self, number: int, registry: SchemaRegistry) -> Any:
        found = registry.schema(number)
        if found.kind != AVRO:
            raise PayloadError(f"schema {number} is of the kind {found.kind}, expected {AVRO}")
        try:
            self._writers[number] = _parsed(found.text)
        except OptionError as problem:
            raise PayloadError(f"schema {number}: {problem}") from None
        return self._writers[number]


def arrow_type(schema: str) -> pa.StructType:
    """Return the Arrow type of an Avro record.

    Raises:
        OptionError: the schema is none, is not of a record, or has a type without a counterpart.
    """
    parsed = _parsed(schema)
    return _type_of(parsed, {}, str(parsed["name"]), 0)[0]


def _parsed(schema: str) -> Any:
    try:
        parsed = fastavro.parse_schema(json.loads(schema))
    except (ValueError, SchemaParseException, fastavro.schema.UnknownType, KeyError) as problem:
        raise OptionError(f"no Avro schema: {_text(problem)}") from None
    if not isinstance(parsed, dict) or parsed.get("type") not in ("record", "error"):
        raise OptionError("the Avro schema is not of a record, which becomes a struct")
    return parsed


def _text(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"


def _as_text(value: Any) -> Any:
    """Return a text for values whose column is STRING: enums are texts, times and ids are not."""
    return str(value) if isinstance(value, (datetime.time, uuid.UUID)) else value


def _type_of(schema: Any, named: dict[str, Any], path: str, depth: int) -> tuple[Any, bool]:
    """Return the Arrow type of a schema, and whether it may be null."""
    if depth > _NEST_MAX:
        raise OptionError(f"Avro schema: {path} is nested in itself, which a table cannot be")
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise OptionError(
                f"Avro schema: {path} is a union of {len(others)} types, expected one type and null"
            )
        return _type_of(others[0], named, path, depth)[0], len(others) < len(schema)
    if isinstance(schema, str):
        if schema in named:
            return _type_of(named[schema], named, path, depth + 1)
        schema = {"type": schema}
    if "name" in schema:
        named[schema["name"]] = schema
    return _of_kind(schema, named, path, depth), False


def _of_kind(schema: Any, named: dict[str, Any], path: str, depth: int) -> Any:
    kind, logical = schema["type"], schema.get("logicalType")
    if kind in ("record", "error"):
        fields = []
        for each in schema["fields"]:
            found, nullable = _type_of(each["type"], named, f"{path}.{each['name']}", depth + 1)
            fields.append(pa.field(each["name"], found, nullable=nullable))
        return pa.struct(fields)
    if kind == "array":
        found, nullable = _type_of(schema["items"], named, f"{path}[]", depth + 1)
        return pa.list_(pa.field("element", found, nullable=nullable))
    if kind == "map":
        found, nullable = _type_of(schema["values"], named, f"{path}{{}}", depth + 1)
        return pa.map_(pa.string(), pa.field("value", found, nullable=nullable))
    if logical == "decimal":
        if schema["precision"] > _DECIMAL_MAX:
            raise OptionError(
                f"Avro schema: {path} has {schema['precision']} digits, expected {_DECIMAL_MAX}"
            )
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if isinstance(kind, (dict, list)):
        return _type_of(kind, named, path, depth + 1)[0]
    if (found := _LOGICAL.get((kind, logical))) is not None:
        return found
    if (found := _PRIMITIVE.get(kind)) is not None:
        return found
    raise OptionError(f"Avro schema: {path} has the type {kind}, which has no column type")


_MICROS = pa.timestamp("us", tz="UTC")
_LOGICAL: dict[tuple[str, str | None], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.string(),
    ("long", "time-micros"): pa.string(),
    ("long", "timestamp-millis"): _MICROS,
    ("long", "timestamp-micros"): _MICROS,
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_PRIMITIVE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
