"""Protobuf bodies: types, presence, the path of a registered type, and damage."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import (
    descriptor_pb2,
    message_factory,
    struct_pb2,
)

from cometmq.spark.errors import OptionError
from cometmq.spark.payloads.decoder import PayloadDecoder
from cometmq.spark.payloads.protobuf import Protobuf, arrow_type, descriptor_of
from cometmq.spark.payloads.types import sql_type

Field = descriptor_pb2.FieldDescriptorProto
AT = datetime.datetime(2026, 11, 21, 18, tzinfo=datetime.UTC)


def schema_file() -> descriptor_pb2.FileDescriptorProto:
    """Return what protoc makes of a message type with a field of every kind."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    colour = file.enum_type.add(name="Colour")
    colour.value.add(name="NONE", number=0)
    colour.value.add(name="RED", number=1)
    order = file.message_type.add(name="Order")
    file.message_type.add(name="Line").field.add(
        name="sku", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL
    )
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL)
    order.oneof_decl.add(name="_note")
    for number, (name, kind, type_name, label) in enumerate(FIELDS, 1):
        field = order.field.add(name=name, number=number, type=kind, label=label)
        if type_name:
            field.type_name = type_name
        if name == "note":
            field.proto3_optional, field.oneof_index = True, 0
    return file


ONE, MANY = Field.LABEL_OPTIONAL, Field.LABEL_REPEATED
FIELDS: list[tuple[str, Any, str, Any]] = [
    ("id", Field.TYPE_INT64, "", ONE),
    ("big", Field.TYPE_UINT64, "", ONE),
    ("note", Field.TYPE_STRING, "", ONE),
    ("colour", Field.TYPE_ENUM, ".shop.Colour", ONE),
    ("at", Field.TYPE_MESSAGE, ".google.protobuf.Timestamp", ONE),
    ("score", Field.TYPE_MESSAGE, ".google.protobuf.DoubleValue", ONE),
    ("lines", Field.TYPE_MESSAGE, ".shop.Line", MANY),
    ("counts", Field.TYPE_MESSAGE, ".shop.Order.CountsEntry", MANY),
]
SET = descriptor_pb2.FileDescriptorSet(file=[schema_file()])
ORDER = descriptor_of(SET.SerializeToString(), "shop.Order")
Order: Any = message_factory.GetMessageClass(ORDER)
UNSET = {"id": 0, "big": 0, "note": None, "colour": "NONE", "at": None, "score": None}


def decoded(*bodies: bytes, registered: bool = False) -> tuple[list[Any], list[Any]]:
    kind = arrow_type(ORDER)
    decoder = PayloadDecoder(Protobuf(ORDER, registered=registered), kind)
    values, reasons = decoder.decode(pa.array(bodies, pa.binary()))
    return values.to_pylist(), reasons.to_pylist()


def test_every_kind_of_field_has_a_column() -> None:
    assert sql_type(arrow_type(ORDER)) == (
        "STRUCT<`id`: BIGINT, `big`: DECIMAL(20, 0), `note`: STRING, `colour`: STRING,"
        " `at`: TIMESTAMP, `score`: DOUBLE, `lines`: ARRAY<STRUCT<`sku`: STRING>>,"
        " `counts`: MAP<STRING, INT>>"
    )
    order = Order(id=7, big=2**64 - 1, note="", colour=1, lines=[{"sku": "hat"}], counts={"a": 1})
    order.at.seconds, order.at.nanos = int(AT.timestamp()), 5_999
    order.score.SetInParent()
    assert decoded(order.SerializeToString()) == (
        [
            {
                "id": 7,
                "big": decimal.Decimal(2**64 - 1),
                "note": "",
                "colour": "RED",
                "at": AT + datetime.timedelta(microseconds=5),
                "score": 0.0,
                "lines": [{"sku": "hat"}],
                "counts": [("a", 1)],
            }
        ],
        [None],
    )


def test_fields_that_were_left_out_are_null_or_their_default() -> None:
    sent = Order(colour=0, lines=[{}]).SerializeToString()
    assert decoded(sent)[0] == [UNSET | {"lines": [{"sku": ""}], "counts": []}]


def test_an_unknown_number_of_an_enum_stays_readable() -> None:
    assert decoded(Order(colour=9).SerializeToString())[0][0]["colour"] == "9"


def test_a_time_that_no_timestamp_can_hold_is_refused() -> None:
    body = Order(id=1)
    body.at.seconds = 1 << 60
    values, reasons = decoded(body.SerializeToString(), Order(id=2).SerializeToString())
    assert values[0] is None
    assert "does not fit" in reasons[0]
    assert values[1]["id"] == 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff\xff", "no shop.Order"),
        (b"\0\0\0\0\x05", "cut short"),
        (b"\x01\0\0\0\x05\0", "expected a zero byte"),
        (b"\0\0\0", "expected a zero byte"),
        (b"\0\0\0\0\x05\x02\x02", "met the message type at [1], expected [0]"),
        (b"\0\0\0\0\x05\xff\xff\xff\xff\x0f", "indexes"),
    ],
)
def test_damage_is_null_with_the_reason(body: bytes, reason: str) -> None:
    values, reasons = decoded(body, registered=reason != "no shop.Order")
    assert values == [None]
    assert reason in reasons[0]


@pytest.mark.parametrize("path", [b"\0", b"\x02\0"])
def test_a_registered_body_names_its_type_in_one_of_two_ways(path: bytes) -> None:
    body = b"\0\0\0\0\x05" + path + Order(id=7).SerializeToString()
    assert decoded(body, registered=True)[0][0]["id"] == 7


@pytest.mark.parametrize(
    ("document", "name", "text"),
    [
        (b"\xff", "", "no descriptor of Protobuf"),
        (SET.SerializeToString(), "", "payload.message is required.*Order, Line"),
        (SET.SerializeToString(), "shop.Nope", "shop.Nope"),
        (b"", "", "has the types none"),
    ],
)
def test_a_schema_without_the_type_is_refused(document: bytes, name: str, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        descriptor_of(document, name)


def test_a_type_that_contains_itself_is_refused() -> None:
    with pytest.raises(OptionError, match="contains itself"):
        arrow_type(struct_pb2.Struct.DESCRIPTOR)
