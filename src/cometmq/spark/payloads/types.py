"""Types of decoded bodies: Spark's JSON form to Arrow, and Arrow to Spark's SQL form."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from cometmq.spark.errors import OptionError

_PLAIN: dict[str, tuple[pa.DataType, str]] = {
    "string": (pa.string(), "STRING"),
    "binary": (pa.binary(), "BINARY"),
    "boolean": (pa.bool_(), "BOOLEAN"),
    "byte": (pa.int8(), "TINYINT"),
    "short": (pa.int16(), "SMALLINT"),
    "integer": (pa.int32(), "INT"),
    "long": (pa.int64(), "BIGINT"),
    "float": (pa.float32(), "FLOAT"),
    "double": (pa.float64(), "DOUBLE"),
    "date": (pa.date32(), "DATE"),
    "timestamp": (pa.timestamp("us", tz="UTC"), "TIMESTAMP"),
    "timestamp_ntz": (pa.timestamp("us"), "TIMESTAMP_NTZ"),
    "interval day to second": (pa.duration("us"), "INTERVAL DAY TO SECOND"),
}
_SQL: dict[pa.DataType, str] = dict(_PLAIN.values())
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")


def arrow_type(document: Any, path: str = "value") -> pa.DataType:
    """Return the Arrow type of a Spark type.

    Args:
        document: what ``DataType.jsonValue()`` returns.
        path: name of the column or field, for errors.

    Raises:
        OptionError: no body is decoded to a value of this type.
    """
    if isinstance(document, str):
        if (found := _PLAIN.get(document)) is not None:
            return found[0]
        if (match := _DECIMAL.fullmatch(document)) is not None:
            return pa.decimal128(int(match[1]), int(match[2]))
    elif document["type"] == "struct":
        return pa.struct(
            [
                pa.field(
                    each["name"],
                    arrow_type(each["type"], f"{path}.{each['name']}"),
                    nullable=each["nullable"],
                )
                for each in document["fields"]
            ]
        )
    elif document["type"] == "array":
        element = arrow_type(document["elementType"], f"{path}[]")
        return pa.list_(pa.field("element", element, nullable=document["containsNull"]))
    elif document["type"] == "map":
        item = arrow_type(document["valueType"], f"{path}{{}}")
        key = arrow_type(document["keyType"], f"{path}{{}}")
        return pa.map_(key, pa.field("value", item, nullable=document["valueContainsNull"]))
    raise OptionError(f"payload: {path} has the type {document}, which no body is decoded to")


def sql_type(kind: pa.DataType) -> str:
    """Return Spark's SQL form of an Arrow type: ``STRUCT<`id`: BIGINT>``."""
    if pa.types.is_struct(kind):
        fields = (
            f"`{each.name.replace('`', '``')}`: {sql_type(each.type)}"
            f"{'' if each.nullable else ' NOT NULL'}"
            for each in kind
        )
        return f"STRUCT<{', '.join(fields)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{sql_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{sql_type(kind.key_type)}, {sql_type(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return str(_SQL[kind])


def sql_type_nullable(kind: pa.DataType) -> str:
    """Return the SQL form without NOT NULL: equal for types that differ in nothing else."""
    return sql_type(kind).replace(" NOT NULL", "")
