"""The options of payloads: what a query decodes, and what is refused before it starts."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from cometmq.spark.errors import OptionError
from cometmq.spark.options.payloads import PayloadOptions
from cometmq.spark.payloads.plan import VALUE, VALUE_ERROR, PayloadPlan, PayloadRows
from cometmq.spark.schema import CORE, Column
from tests.unit.spark.payloads.test_protobuf import SET, Order

BY_NAME = {column.name: column for column in CORE}
ID = pa.struct([pa.field("id", pa.int64())])
AVRO = '{"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}]}'


def plan_of(**options: str) -> PayloadPlan:
    plan = PayloadPlan.of(
        PayloadOptions(**{f"payload_{key}": text for key, text in options.items()})
    )
    assert plan is not None
    return plan


def test_without_a_format_nothing_is_decoded() -> None:
    assert PayloadPlan.of(PayloadOptions()) is None


def test_columns_of_json_are_those_that_the_query_declares() -> None:
    plan = plan_of(format="json", schema="id BIGINT, tags ARRAY<STRING>")
    assert plan.sql() == "STRUCT<id BIGINT, tags ARRAY<STRING>>"
    assert [(each.name, each.ddl) for each in plan.columns(ID)] == [
        (VALUE, "STRUCT<`id`: BIGINT>"),
        (VALUE_ERROR, "STRING"),
    ]


def test_a_schema_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(AVRO + "\n")
    (tmp_path / "order.desc").write_bytes(SET.SerializeToString())
    avro = plan_of(format="avro", schema_file=str(tmp_path / "order.avsc"))
    assert avro.sql() == "STRUCT<`id`: BIGINT NOT NULL>"
    proto = plan_of(
        format="protobuf", schema_file=str(tmp_path / "order.desc"), message="shop.Order"
    )
    assert proto.sql().startswith("STRUCT<`id`: BIGINT, `big`: DECIMAL(20, 0)")
    values, _ = proto.decoder(ID).decode(pa.array([Order(id=7, note="x").SerializeToString()]))
    assert values.to_pylist() == [{"id": 7}]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"format": "json"}, "needs payload.schema"),
        ({"format": "avro", "registry": "http://r"}, "needs payload.schema"),
        ({"format": "avro", "schema_file": "/nowhere/a.avsc"}, "No such file"),
    ],
)
def test_a_query_without_a_schema_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        plan_of(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"schema": "id BIGINT"}, "payload.format is required"),
        ({"format": "avro", "schema": "{}", "schema_file": "x"}, "only one is allowed"),
        ({"format": "json", "registry": "http://r"}, "decoded by payload.schema"),
        (
            {"format": "avro", "registry_password": "secret"},
            "payload.registry.password is a secret",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        PayloadOptions(**{f"payload_{key}": each for key, each in options.items()}).check_payload()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int64(), "expected a struct"),
        (pa.struct([pa.field("id", pa.int32())]), "met value.id INT, expected BIGINT"),
        (pa.struct([pa.field("no", pa.int64())]), "expected one of the fields id"),
    ],
)
def test_a_declared_type_that_the_schema_lacks_is_refused(kind: pa.DataType, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        plan_of(format="avro", schema=AVRO).columns(kind)


def test_damaged_base64_is_refused() -> None:
    with pytest.raises(OptionError, match="expected Base64"):
        plan_of(format="protobuf", schema="%%").sql()


def test_rows_have_the_columns_of_the_query_in_its_order() -> None:
    plan = pickle.loads(pickle.dumps(plan_of(format="json", schema="id BIGINT")))
    value, error = plan.columns(ID)
    columns = [error, BY_NAME["queue_id"], value]
    rows = PayloadRows(columns, plan)
    assert [column.name for column in rows.needed] == ["queue_id", "body"]
    batch = pa.RecordBatch.from_pydict(
        {"queue_id": pa.array([1, 2], pa.int32()), "body": [b'{"id": 5}', b"x"]}
    )
    complete = rows.complete(batch)
    assert complete.schema.names == [VALUE_ERROR, "queue_id", VALUE]
    assert complete["value"].to_pylist() == [{"id": 5}, None]
    assert complete["value_error"].null_count == 1


def test_a_batch_of_which_a_filter_left_no_row_is_completed() -> None:
    plan = plan_of(format="json", schema="id BIGINT")
    rows = PayloadRows(plan.columns(ID), plan)
    complete = rows.complete(pa.RecordBatch.from_pydict({"body": pa.array([], pa.binary())}))
    assert (complete.num_rows, complete.schema.names) == (0, [VALUE, VALUE_ERROR])


def test_rows_without_the_decoded_columns_are_not_decoded() -> None:
    columns: list[Column] = [BY_NAME["queue_id"]]
    rows = PayloadRows(columns, plan_of(format="json", schema="id BIGINT"))
    assert rows.needed == tuple(columns)
    batch = pa.RecordBatch.from_pydict({"queue_id": [1], "tags": ["a"]})
    assert rows.complete(batch).schema.names == ["queue_id"]


def test_an_encoded_schema_of_protobuf_is_an_option() -> None:
    text = base64.b64encode(SET.SerializeToString()).decode()
    assert plan_of(format="protobuf", schema=text, message="shop.Line").sql() == (
        "STRUCT<`sku`: STRING>"
    )


def test_a_reason_without_its_value_is_refused() -> None:
    plan = plan_of(format="json", schema="id BIGINT")
    with pytest.raises(OptionError, match="value_error needs the column value"):
        PayloadRows([plan.columns(ID)[1]], plan)
