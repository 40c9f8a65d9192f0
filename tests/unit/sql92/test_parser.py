"""Which texts are SQL92 expressions, and what the error says about the others."""

from __future__ import annotations

import contextlib
import time

import pytest

from cometmq.sql92 import EvaluationError, SqlError, SqlLimitError, compile_expression
from cometmq.sql92.expression import PROPERTIES_MAX
from cometmq.sql92.parser import CONTAINS_MAX, LENGTH_MAX, NESTING_MAX, TOKENS_MAX

COMPILE_S_MAX = 1.0
"""What takes quadratic time takes minutes."""


def value(text: str, **properties: str) -> bool | None:
    return compile_expression(text).evaluate(properties)


def test_not_binds_more_strongly_than_a_comparison() -> None:
    with pytest.raises(EvaluationError):
        value("NOT a = 'x'", a="y")
    assert value("NOT a = TRUE", a="y") is True
    assert value("NOT (a = 'x')", a="y") is True
    with pytest.raises(SqlError):
        compile_expression("NOT a IN ('x')")


@pytest.mark.parametrize(
    ("text", "position", "met", "expected"),
    [
        ("", 0, "the end", "a property"),
        ("a = ", 4, "the end", "a property"),
        ("a == 1", 3, "'='", "a property"),
        ("a = 1 ;", 6, "';'", "a number"),
        ("a = 'x", 4, "closing quote", "a number"),
        ("a = 1 /* x", 6, "a comment without its end", "'*/'"),
        ("(a = 1", 6, "the end", "')'"),
        ("a IN 'x'", 5, "'x'", "'('"),
        ("a IN (1)", 6, "'1'", "a text"),
        ("a IN ('x'", 9, "the end", "',' or ')'"),
        ("'a' IN ('x')", 0, "operand of IN", "a property"),
        ("a IS 1", 5, "'1'", "NULL or NOT NULL"),
        ("a IS NOT 1", 9, "'1'", "NULL"),
        ("a NOT 1", 6, "'1'", "BETWEEN, IN"),
        ("a BETWEEN 1 OR 2", 12, "'OR'", "AND"),
        ("a BETWEEN 2 AND 1", 10, "bounds exchanged", "the lower bound first"),
        ("a CONTAINS b", 11, "'b'", "a text"),
        ("a = NULL", 4, "NULL", "IS NULL"),
        ("NULL <> a", 0, "NULL", "IS NULL"),
        ("TRUE = 1", 7, "another constant", "a truth value"),
        ("a > 'x'", 4, "a text", "a number"),
        ("a > TRUE", 4, "a truth value", "a number"),
        ("a > 1 > 2", 0, "a truth value", "a number"),
        ("a BETWEEN 1 AND NULL", 16, "a truth value", "a number"),
        ("1", 0, "no truth value", "a comparison"),
        ("a = 1 AND 'x'", 10, "no truth value", "a comparison"),
        ("NOT -a", 4, "no truth value", "a comparison"),
        ("a = 9223372036854775808", 4, "9223372036854775808", "up to 9223372036854775807"),
        ("a = -9223372036854775808", 5, "9223372036854775808", "up to 9223372036854775807"),
        ("a = 0.0", 4, "'0.0'", "above 0"),
        ("a = 1e309", 4, "'1e309'", "below 1.8e308"),
        ("stadt = 'x' AND größe > 1", 18, "'ö'", "an operator"),
    ],
)
def test_errors_say_what_was_met_and_expected(
    text: str, position: int, met: str, expected: str
) -> None:
    with pytest.raises(SqlError) as raised:
        compile_expression(text)

    assert raised.value.position == position
    assert met in raised.value.met
    assert expected in raised.value.expected
    assert f"character {position + 1}: met " in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "a = 1 foo",
        "a = 1) OR TRUE",
        "a = 1 'never' ended'",
        "a = 1 -- no comment without a line end",
        "a = 1 = 'x' IS NULL 2",
        "a = 0L",
        "a=1AND\tb=.5e-3\r\nOR/**/c<>5./***/",
        "a > - - + 1",
        "NOT NOT a IS NULL",
        "TRUE = (a = b) = FALSE",
        "a BETWEEN -1 AND -2",
        "a NOT BETWEEN 2 AND 1",
        "$a IS NULL AND _b1$ IS NOT NULL",
        "a not in('x','y')and b between 1 and 2",
    ],
)
def test_expressions(text: str) -> None:
    assert compile_expression(text).text == text


def test_what_follows_an_expression_is_ignored() -> None:
    assert value("a = 1 foo = 2", a="1") is True
    assert value("a = 007", a="0") is True
    assert value("a-b = 1", a="1", b="0") is False
    assert value("a LIKE 'x'", a="x") is False


def test_precedence() -> None:
    assert value("a = 'x' OR b = 'x' AND c = 'x'", a="x", b="", c="") is True
    assert value("(a = 'x' OR b = 'x') AND c = 'x'", a="x", b="", c="") is False
    assert value("a = b > c", a="true", b="2", c="1") is True, "a = (b > c)"


def test_comments_and_quotes() -> None:
    assert value("a = -- one\n 'x' /* two * / */ AND b = 'it''s'", a="x", b="it's") is True
    assert value("a > --5\n 4", a="5") is True
    assert value("a = '--'", a="--") is True
    assert value("a = ''''", a="'") is True


def test_limits() -> None:
    inner = "(" * NESTING_MAX + "a = 1" + ")" * NESTING_MAX
    compile_expression(inner)
    names = " AND ".join(f"p{number} = 'x'" for number in range(PROPERTIES_MAX))
    compile_expression(names)
    searches = " OR ".join(["a CONTAINS 'x'"] * CONTAINS_MAX)
    compile_expression(f"{searches} OR a STARTSWITH 'x'")
    for text in (
        f"({inner})",
        f"{names} AND one_more = 'x'",
        "a = 1 OR " * (TOKENS_MAX // 4) + "a = 1",
        "a = '" + "x" * LENGTH_MAX + "'",
        f"{searches} OR a CONTAINS 'x'",
    ):
        with pytest.raises(SqlLimitError):
            compile_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "a = 1" + " OR a = 1" * (TOKENS_MAX // 4 - 2),
        "a IN ('x'" + ",'x'" * (TOKENS_MAX // 2 - 5) + ")",
        "a" + " IS NULL" * (TOKENS_MAX // 2 - 1),
        "NOT " * (TOKENS_MAX - 2) + "a",
        "a = " + "-" * 2000 + "5",
        "a = 1 " + "-- " * 20_000,
        "a = 1 " + "'" * (LENGTH_MAX - 7),
        "a = '" + "''x" * 20_000,
        "a = " + "0" * 60_000,
        "a = " + "1" * 60_000 + ".5e-60000",
        "a = 1" + "/**/" * 16_000,
        "a = 1 /" + "*" * 60_000,
        "-(" * NESTING_MAX + "a" + ") BETWEEN 1 AND 2" * NESTING_MAX,
    ],
    ids=lambda text: text[:12],
)
def test_the_time_to_compile_is_bounded(text: str) -> None:
    began = time.thread_time()
    with contextlib.suppress(SqlError):
        compile_expression(text)
    assert time.thread_time() - began < COMPILE_S_MAX
