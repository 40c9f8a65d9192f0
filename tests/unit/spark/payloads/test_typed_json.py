"""JSON and MessagePack bodies: what fits a schema, and why the others do not."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from cometmq.spark.errors import OptionError
from cometmq.spark.payloads.decoder import REASON_CHARS, PayloadDecoder
from cometmq.spark.payloads.typed_json import TypedJson

ORDER = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("order-no", pa.string()),
        pa.field("amount", pa.decimal128(10, 2)),
        pa.field("weight", pa.float64()),
        pa.field("small", pa.int8()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("day", pa.date32()),
        pa.field("data", pa.binary()),
        pa.field("paid", pa.bool_()),
        pa.field("items", pa.list_(pa.struct([pa.field("sku", pa.string())]))),
        pa.field("counts", pa.map_(pa.string(), pa.int32())),
        pa.field("buyer", pa.struct([pa.field("name", pa.string(), nullable=False)])),
    ]
)
AT = datetime.datetime(2026, 11, 21, 18, tzinfo=datetime.UTC)
WHOLE = {
    "id": 7,
    "order-no": "A-7",
    "amount": decimal.Decimal("12.50"),
    "weight": 3,
    "small": -128,
    "at": AT,
    "local": AT.replace(tzinfo=None),
    "day": AT.date(),
    "data": b"hi",
    "paid": True,
    "items": [{"sku": "hat"}, {}],
    "counts": {"red": 2},
    "buyer": {"name": "Ada"},
    "unknown": [1, {"x": 2}],
}
DECODED = (WHOLE | {"weight": 3.0, "items": [{"sku": "hat"}, {"sku": None}]}) | {
    "counts": [("red", 2)]
}
EMPTY = dict.fromkeys([field.name for field in ORDER])


def decoded(*bodies: bytes | None, encoding: str = "json") -> tuple[list[Any], list[str | None]]:
    decoder = PayloadDecoder(TypedJson(ORDER, encoding), ORDER)
    values, reasons = decoder.decode(pa.array(bodies, pa.binary()))
    values.validate(full=True)
    assert values.type == ORDER
    return values.to_pylist(), reasons.to_pylist()


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_every_type_is_decoded(encoding: str) -> None:
    body = getattr(msgspec, encoding).encode(WHOLE)
    expected = {name: DECODED[name] for name in EMPTY}
    assert decoded(body, encoding=encoding) == ([expected], [None])


def test_a_missing_field_is_null() -> None:
    assert decoded(b'{"id": 1}') == ([EMPTY | {"id": 1}], [None])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (None, "there is no body"),
        (b"", "the body is empty"),
        (b"nope", "malformed"),
        (b'{"id": 1', "truncated"),
        (b'{"id": 1} {"id": 2}', "malformed"),
        (b"[1]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `id`"),
        (b'{"id": null}', "Expected `int`, got `null` - at `$.id`"),
        (b'{"id": "1"}', "Expected `int`, got `str` - at `$.id`"),
        (b'{"id": 9223372036854775808}', "<= 9223372036854775807"),
        (b'{"id": 1, "small": 128}', "<= 127 - at `$.small`"),
        (b'{"id": 1, "order-no": 5}', "got `int` - at `$.order-no`"),
        (b'{"id": 1, "order-no": "\xff"}', "utf-8"),
        (b'{"id": 1, "at": "2026-11-21T18:00:00"}', "timezone"),
        (b'{"id": 1, "local": "2026-11-21T18:00:00Z"}', "timezone"),
        (b'{"id": 1, "amount": 1.255}', "Rescaling"),
        (b'{"id": 1, "amount": 123456789012}', "does not fit"),
        (b'{"id": 1, "data": "%"}', "base64"),
        (b'{"id": 1, "items": [{"sku": 4}]}', "$.items[0].sku"),
        (b'{"id": 1, "buyer": {}}', "missing required field `name` - at `$.buyer`"),
        (b'{"id": 1, "unknown": ' + b"[" * 100_000, "damaged"),
    ],
)
def test_a_body_that_does_not_fit_is_null_with_the_reason(body: bytes, reason: str) -> None:
    values, reasons = decoded(b'{"id": 1}', body, b'{"id": 3}')
    assert values == [EMPTY | {"id": 1}, None, EMPTY | {"id": 3}]
    assert reasons[0] is reasons[2] is None
    assert reason.lower() in str(reasons[1]).lower()


def test_reasons_are_short() -> None:
    kind = pa.struct([pa.field("x" * 1_000, pa.int64(), nullable=False)])
    decoder = PayloadDecoder(TypedJson(kind), kind)
    _, reasons = decoder.decode(pa.array([b"{}"]))
    assert len(reasons[0].as_py()) == REASON_CHARS


def test_no_body_gives_no_row() -> None:
    assert decoded() == ([], [])


def test_only_misfits_are_refused_among_many() -> None:
    bodies = [
        b'{"id": %d, "amount": %s}' % (n, b"0.001" if n % 7 == 3 else b"1") for n in range(50)
    ]
    values, reasons = decoded(*bodies)
    assert [n for n, value in enumerate(values) if value is None] == list(range(3, 50, 7))
    assert [n for n, text in enumerate(reasons) if text is not None] == list(range(3, 50, 7))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.struct([pa.field("a", pa.map_(pa.int32(), pa.string()))]), "expected STRING keys"),
        (pa.struct([pa.field("a", pa.duration("us"))]), "which JSON and MessagePack lack"),
    ],
)
def test_a_type_that_json_lacks_is_refused(kind: pa.StructType, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        TypedJson(kind)
