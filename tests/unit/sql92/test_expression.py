"""The values of SQL92 expressions: nulls, types, numbers as Java reads them, and raw records."""

from __future__ import annotations

import itertools
import mmap
import random
import time

import pytest

from cometmq.protocol.properties import decode_properties, encode_properties
from cometmq.sql92 import EvaluationError, compile_expression
from cometmq.sql92.parser import CONTAINS_MAX

ERROR = "error"
MATCH_S_MAX = 1.0
"""What takes quadratic time takes minutes."""


def value(text: str, /, **properties: str) -> bool | str | None:
    try:
        return compile_expression(text).evaluate(properties)
    except EvaluationError:
        return ERROR


def matches(text: str, record: bytes) -> bool:
    return compile_expression(text).matches(record, 0, len(record))


@pytest.mark.parametrize(
    ("left", "right"), list(itertools.product((True, False, None, ERROR), repeat=2))
)
def test_and_and_or(left: bool | str | None, right: bool | str | None) -> None:
    terms = {True: "TRUE", False: "FALSE", None: "missing = 1", ERROR: "text = 1"}
    expression_and = value(f"{terms[left]} AND {terms[right]}", text="x")
    expression_or = value(f"{terms[left]} OR {terms[right]}", text="x")

    assert expression_and == joined(left, right, decisive=False)
    assert expression_or == joined(left, right, decisive=True)


def joined(
    left: bool | str | None, right: bool | str | None, *, decisive: bool
) -> bool | str | None:
    for side in (left, right):
        if side == ERROR or side is decisive:
            return side
    return None if None in (left, right) else not decisive


def test_an_error_is_no_match_of_the_whole_expression() -> None:
    assert value("a = 'x' OR b > 1", a="x", b="x") is True, "b is not evaluated"
    assert value("b > 1 OR a = 'x'", a="x", b="x") == ERROR
    assert not matches("NOT (b > 1)", b"b\x01x\x02")
    with pytest.raises(EvaluationError, match="'b': 'x'"):
        compile_expression("b > 1").evaluate({"b": "x"})


@pytest.mark.parametrize(
    ("text", "properties", "expected"),
    [
        ("a = 'x'", {}, None),
        ("'x' = a", {}, False),
        ("'x' <> a", {}, True),
        ("a <> 'x'", {}, None),
        ("a = b", {}, True),
        ("a <> b", {}, False),
        ("a = b", {"a": "1"}, False),
        ("a = b", {"b": "1"}, None),
        ("a = b", {"a": "1", "b": "1.0"}, False),
        ("a < b", {"a": "1"}, None),
        ("a < b", {"a": "1", "b": "1.5"}, True),
        ("a >= b", {"a": "1", "b": " 1.0d "}, True),
        ("a < b", {"a": "-0.0", "b": "0"}, True),
        ("a > b", {"a": "NaN", "b": "Infinity"}, True),
        ("a <= b", {"a": "x", "b": "1"}, ERROR),
        ("a", {}, None),
        ("a", {"a": "true"}, False),
        ("a IS NULL", {"a": ""}, False),
        ("a = TRUE", {"a": "tRuE"}, True),
        ("a = FALSE", {"a": "yes"}, True),
        ("TRUE = a", {"a": "true"}, ERROR),
        ("TRUE = a", {}, False),
        ("(a = 1) = b", {"a": "1", "b": "true"}, ERROR),
        ("(a = 1) = b", {"a": "1"}, False),
        ("(a = 1) = b", {"b": "1"}, None),
        ("(a = 1) = b", {}, True),
        ("b = (a = 1)", {"a": "1", "b": "TRUE"}, True),
        ("b = (a = 1)", {"b": "TRUE"}, False),
        ("(a = 1) = 'true'", {"a": "1"}, ERROR),
        ("'true' = (a = 1)", {"a": "1"}, True),
        ("(a = 1) = 1", {"a": "1"}, False),
        ("1 = (a = 1)", {}, False),
        ("'1' = 1", {}, True),
        ("'x' = 1", {}, ERROR),
        ("1 = 1.0", {}, True),
        ("9223372036854775807 > 9223372036854775806.0", {}, False),
        ("-a = 1", {"a": "-1"}, None),
        ("a = -b", {}, True),
        ("a = -b", {"a": "1", "b": "1"}, False),
        ("a > -(b = 1)", {"b": "x"}, None),
        ("a > -(b = 1)", {"a": "1", "b": "x"}, ERROR),
        ("a > -(b = 1)", {"a": "1", "b": "1"}, None),
        ("(a > -(b = 1)) IS NULL", {"b": "x"}, True),
        ("-(b = 1) > -(a = 1)", {"a": "x", "b": "1"}, None),
        ("1 > -(b = 1)", {"b": "x"}, ERROR),
        ("a BETWEEN 1 AND 3", {"a": "3"}, True),
        ("a NOT BETWEEN 1 AND 3", {"a": "4"}, True),
        ("5 BETWEEN a AND b", {"a": "4", "b": "5"}, True),
        ("a BETWEEN -(b = 1) AND 2", {"a": "3", "b": "1"}, False),
        ("a BETWEEN -(b = 1) AND 2", {"a": "2", "b": "1"}, None),
        ("a IN ('x', 'y')", {}, None),
        ("a NOT IN ('x', 'y')", {"a": "z"}, True),
        ("a IN ('x', '', 'y''s')", {"a": "y's"}, True),
        ("a CONTAINS 'b'", {}, False),
        ("NOT (a CONTAINS 'b')", {}, True),
        ("a NOT CONTAINS 'b'", {}, False),
        ("a NOT CONTAINS ''", {"a": "x"}, False),
        ("a CONTAINS 'é'", {"a": "café au lait"}, True),
        ("a STARTSWITH 'ab'", {"a": "abc"}, True),
        ("a NOT STARTSWITH 'abcd'", {"a": "abc"}, True),
        ("a ENDSWITH 'bc'", {"a": "abc"}, True),
        ("'abc' CONTAINS 'b'", {}, True),
        ("5 NOT CONTAINS 'b'", {}, False),
        ("(a = 1) CONTAINS 'b'", {"a": "x"}, ERROR),
        ("NULL", {}, None),
        ("a = NOT NULL", {"a": "x"}, False),
        ("NULL IS NULL = TRUE", {}, True),
    ],
)
def test_values(text: str, properties: dict[str, str], expected: bool | str | None) -> None:
    assert value(text, **properties) == expected


@pytest.mark.parametrize("literal", ["1", "1L", "3000000000", "1.0"])
def test_types_of_literals(literal: str) -> None:
    number = "3000000000" if literal == "3000000000" else "1"
    assert value(f"a = {literal}", a=number) is True
    wide = value(f"a = {literal}", a="99999999999")
    assert wide == (ERROR if literal in ("1", "1L") else False)
    decimal = value(f"a = {literal}", a="1.0")
    assert decimal == (True if literal == "1.0" else ERROR)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", True), ("+5", True), ("-5", False), ("05", True), ("5 ", ERROR), ("", ERROR),
        ("+", ERROR), ("-", ERROR), ("+-5", ERROR), ("5.", ERROR), ("0x5", ERROR), ("5L", ERROR),
        ("1_0", ERROR), ("\uff12", False), ("\u0665", True), ("\u06f5", True), ("\u096b", True),
        ("\uff15", True),
        ("\U0001d7d3", ERROR), ("²", ERROR), ("2147483647", False), ("2147483648", ERROR),
        ("-2147483648", False), ("-2147483649", ERROR), ("0" * 50 + "5", True),
        ("9" * 30, ERROR),
    ],
)  # fmt: skip
def test_integers_are_those_of_java(text: str, expected: bool | str) -> None:
    assert value("a = 5", a=text) == expected
    assert value("5 = a", a=text) == expected


def test_integers_that_are_not_utf_8() -> None:
    for encoded in (b"\xc0\xb5", b"\xe0\x99\xa5", b"\xd9", b"\xd9\x65", b"\xef\xbc", b"\xff"):
        assert not matches("a <> 1", b"a\x01" + encoded + b"\x02")


def test_64_bit_integers() -> None:
    for number in (2**63 - 1, -(2**63)):
        assert value(f"a > {2**62}", a=str(number)) is (number > 0)
    for number in (2**63, -(2**63) - 1):
        assert value(f"a > {2**62}", a=str(number)) == ERROR


@pytest.mark.parametrize(
    "text",
    [
        "2.5", " 2.5 ", "\t2.5\x00", "+2.5", "2.5f", "2.5D", "25e-1", ".25E1", ".25e+1", "0x1.4p1",
        "0X.5P3f", "0x5p-1", "2.50000000000000000000", "0002.5", "250e-0000000000002",
        "25000000000000000000000e-22", "0.00000000000000000000000025e25",
        "2.5000000000000000000000000000000000000001",
    ],
)  # fmt: skip
def test_decimal_numbers_are_those_of_java(text: str) -> None:
    assert value("a = 2.5", a=text) is True


@pytest.mark.parametrize(
    "text",
    [
        "", " ", ".", "+", "e5", "2.5e", "2.5e+", "2.5 f", "2.5ff", "2.5L", "2,5", "2..5", "2.5.",
        "0x1.4", "0x", "0x.p1", "nan", "inf", "NaNf", "infinity", "Infinityd", "1_0", "\uff12.5",
        "+-2.5", "\xa02.5", "2.5\u2003", "0x1.4p", "00x1p1", "1e5e5", "-", "- 2.5",
    ],
)  # fmt: skip
def test_what_is_no_decimal_number(text: str) -> None:
    assert value("a <> 2.5", a=text) == ERROR


@pytest.mark.parametrize(
    "text",
    [
        "0.1", "1e23", "8.5e22", "123456789012345e22", "9007199254740993", "4.9e-324", "2e-324",
        "2.4703282292062327e-324", "1.7976931348623157e308", "1.7976931348623159e308", "1e999999",
        "1e-99999999999999999999", "0e99999999999999999999", "-0.0", "-Infinity", "+Infinity",
        "123456789.123456789", "1" * 400, "." + "0" * 400 + "1e401",
    ],
)  # fmt: skip
def test_decimal_numbers_are_rounded_once(text: str) -> None:
    number = float(text)
    for bound in (5e-324, 0.1, 8.5e22, 1e23, 9007199254740992.0, 1.7976931348623157e308):
        assert value(f"a < {bound!r}", a=text) is (number < bound)
        assert value(f"a = {bound!r}", a=text) is (number == bound)


def test_nan_is_the_greatest_number() -> None:
    for text in ("NaN", "-NaN", " +NaN "):
        assert value("a > 1.7e308", a=text) is True
        assert value("a = b", a="NaN", b="-NaN") is False, "a text"
        assert value("a >= b AND a <= b", a="NaN", b="-NaN") is True, "a number"


def test_records() -> None:
    record = b"a\x011\x02b\x01x\x02"
    assert matches("a = 1 AND b = 'x'", record)
    assert matches("a = 1 AND b = 'x'", record[:-1]), "without the last separator"
    assert matches("a = 2", record + b"a\x012\x02"), "of equal names the last one wins"
    assert matches("a = 1", record + b"a\x01\x02"), "an empty value is none"
    assert matches("a IS NULL", b"a\x01\x02ab\x011\x02\x011\x02a\x02xa\x011\x02")
    assert matches("a = b", b"a\x01x\x01y\x02b\x01x\x01y"), "only the first one separates"
    assert matches("a IS NULL", b"")
    assert matches("TRUE", b"")


def test_a_part_of_a_buffer() -> None:
    expression = compile_expression("a > 4 AND b IN ('x', 'y')")
    record = b"9a\x0142\x02b\x01y9"
    view = mmap.mmap(-1, len(record))
    view[:] = record
    for data in (record, bytearray(record), memoryview(record), memoryview(view)):
        assert expression.matches(data, 1, len(record) - 1)
        assert not expression.matches(data, 1, len(record)), "b is y9"
        assert not expression.matches(data, 3, 3)
    for start, stop in ((-1, 2), (3, 2), (0, len(record) + 1)):
        with pytest.raises(ValueError, match="expected a part of 10 bytes"):
            expression.matches(record, start, stop)


def test_many_names_and_choices() -> None:
    names = [f"p{number}" * (1 + number % 3) for number in range(64)]
    values = [f"v{number}" * (1 + number % 5) for number in range(500)]
    record = encode_properties(dict.fromkeys(names, values[-1]) | {"other": "x"})
    listed = ", ".join(f"'{value}'" for value in values)
    for name in names:
        assert matches(f"{name} IN ({listed})", record)
        assert not matches(f"{name} IN ({listed[: listed.rfind(',')]})", record)
    assert matches(" AND ".join(f"{name} = '{values[-1]}'" for name in names), record)


def test_other_text_than_ascii() -> None:
    record = encode_properties({"city": "北京 🚀", "a": "x"})
    assert matches("city = '北京 🚀'", record)
    assert matches("city CONTAINS '🚀' AND city STARTSWITH '北'", record)
    assert matches("city IN ('上海', '北京 🚀')", record)
    assert not matches("city = '\ud83d'", record)


def test_records_of_all_lengths() -> None:
    """A record is read in blocks; entries and separators may be anywhere in them."""
    source = random.Random(64)
    expression = compile_expression("a = '1' AND ab IS NULL AND b = 'x' OR long_name = 'y'")
    values = (b"a\x011", b"a\x01z", b"a\x01", b"a", b"ab\x012", b"b\x01x", b"long_name\x01y", b"")
    seen = set()
    for length in [*range(200)] * 20:
        entries = source.choices((*values, b"q" * source.randrange(40)), k=12)
        record = b"\x02".join(entries)[:length]
        around = b"\x02" * source.randrange(70) + record + b"\x02a\x011\x02"
        start = len(around) - 5 - len(record)
        expected = expression.evaluate(decode_properties(record)) is True
        assert expression.matches(around, start, start + len(record)) is expected, record
        seen.add(expected)
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("text", "record"),
    [
        (" OR ".join(["a CONTAINS 'xxxxxxxy'"] * CONTAINS_MAX), b"a\x01" + b"x" * 32_000),
        (" OR ".join(["a > 1.5e300 OR a = '1'"] * 400), b"a\x01" + b"1" * 300),
        ("a > 1.5e300", b"a\x01" + b"1" * 32_000),
        ("a < 1.5", b"a\x010x" + b"1" * 32_000 + b"p1"),
        (" OR ".join(f"{'a' * size} = 'x'" for size in range(1, 65)), b"a\x01y\x02" * 8_000),
    ],
    ids=lambda part: str(part)[:16],
)
def test_the_time_to_match_a_message_is_bounded(text: str, record: bytes) -> None:
    expression = compile_expression(text)
    began = time.thread_time()
    expression.matches(record, 0, len(record))
    assert time.thread_time() - began < MATCH_S_MAX
