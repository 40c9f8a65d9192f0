"""The columns of the formats: their names, their types, and which of them a user may choose."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cometmq.spark.errors import OptionError
from cometmq.spark.schema import (
    CORE,
    HOSTS,
    PROPERTIES,
    RECORD_VALID,
    arrow_schema,
    chosen,
    ddl,
    declared,
    log_columns,
    topic_columns,
)


def names(columns: tuple[object, ...]) -> list[str]:
    return [column.name for column in columns]  # type: ignore[attr-defined]


def test_columns_are_there_as_options_ask() -> None:
    assert topic_columns(properties=False) == CORE
    assert topic_columns(properties=True) == (*CORE, PROPERTIES)
    assert names(log_columns(properties=False, validate=False))[18:] == ["born_host", "store_host"]
    assert log_columns(properties=True, validate=True) == (*CORE, PROPERTIES, *HOSTS, RECORD_VALID)


def test_the_ddl_marks_what_is_never_null() -> None:
    assert ddl(CORE[:3]) == "topic STRING NOT NULL, broker_name STRING, queue_id INT NOT NULL"
    never_null = [column.name for column in CORE if not column.nullable]
    assert never_null == ["topic", "queue_id", "queue_offset", "store_timestamp"]


def test_arrow_and_ddl_agree_with_pyspark() -> None:
    """Spark refuses batches whose schema is another than the one it makes of the DDL."""
    types = pytest.importorskip("pyspark.sql.types")
    conversion = pytest.importorskip("pyspark.sql.pandas.types")
    for column in log_columns(properties=True, validate=True):
        kind = conversion.from_arrow_type(column.type)
        assert kind.simpleString() == column.ddl.lower().replace(" ", "")
        field = types.StructField(column.name, kind, column.nullable)
        made = conversion.to_arrow_schema(types.StructType([field]), timezone="UTC")
        assert made == arrow_schema([column])


def test_a_user_chooses_columns_in_any_order() -> None:
    assert names(chosen(CORE, ["body", "topic"])) == ["body", "topic"]
    assert chosen(CORE, []) == ()


def test_a_column_outside_the_set_is_refused_and_the_set_is_named() -> None:
    with pytest.raises(OptionError, match=r"the column 'bodies', expected some of topic, broker_"):
        chosen(CORE, ["topic", "bodies"])
    with pytest.raises(OptionError, match="a column twice in body, topic, body"):
        chosen(CORE, ["body", "topic", "body"])


def test_columns_are_as_nullable_as_the_user_declared_them() -> None:
    found = declared(CORE, [("queue_offset", "bigint", True), ("body", "binary", False)])
    assert arrow_schema(found) == pa.schema(
        [pa.field("queue_offset", pa.int64()), pa.field("body", pa.binary(), nullable=False)]
    )
    everything = topic_columns(properties=True)
    assert declared(everything, [("properties", "map<string,string>", True)]) == (PROPERTIES,)


def test_another_type_than_the_column_has_is_refused() -> None:
    with pytest.raises(OptionError, match="type string of column queue_offset, expected bigint"):
        declared(CORE, [("queue_offset", "string", True)])
