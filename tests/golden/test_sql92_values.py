"""SQL92 expressions that RocketMQ's filter module parsed and evaluated."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq.protocol.properties import encode_properties
from cometmq.sql92 import EvaluationError, Expression, SqlError, compile_expression
from golden.recordings import VERSIONS, values

NEW_IN_5 = frozenset(
    {
        "a contains 'b'",
        "a CONTAINS 'b'",
        "a not contains 'b'",
        "a startswith 'a'",
        "a STARTSWITH 'a'",
        "a endswith 'c'",
        "a NOT ENDSWITH 'c'",
        "b CONTAINS ''",
    }
)
"""Expressions that 4.9 reads as the property, followed by words it ignores or refuses."""

for_each_version = pytest.mark.parametrize("version", VERSIONS)


def value_of(expression: Expression, properties: dict[str, str]) -> Any:
    """Return a value as the recordings write it."""
    try:
        return expression.evaluate(properties)
    except EvaluationError:
        return "ERROR"


def cases(version: str) -> list[dict[str, Any]]:
    """The recorded expressions that mean the same here."""
    recorded: list[dict[str, Any]] = values(version, "sql92")["cases"]
    if version.startswith("5."):
        return recorded
    assert {case["expr"] for case in recorded} >= NEW_IN_5
    return [case for case in recorded if case["expr"] not in NEW_IN_5]


@for_each_version
def test_the_same_expressions_compile(version: str) -> None:
    for case in cases(version):
        try:
            compile_expression(case["expr"])
            parsed = "ok"
        except SqlError:
            parsed = "error"
        assert parsed == case["parse"], case["expr"]


@for_each_version
def test_expressions_have_the_recorded_values(version: str) -> None:
    contexts = values(version, "sql92")["contexts"]
    for case in cases(version):
        if case["parse"] != "ok":
            continue
        expression = compile_expression(case["expr"])
        found = [value_of(expression, context) for context in contexts]
        expected = [str(r).split()[0] if isinstance(r, str) else r for r in case["results"]]
        assert found == expected, case["expr"]


@for_each_version
def test_records_match_as_recorded(version: str) -> None:
    """In a record, an empty value is no value."""
    contexts = values(version, "sql92")["contexts"]
    for case in cases(version):
        if case["parse"] != "ok":
            continue
        expression = compile_expression(case["expr"])
        for context, recorded in zip(contexts, case["results"], strict=True):
            record = encode_properties(context)
            if "" not in context.values():
                assert expression.matches(record, 0, len(record)) is (recorded is True), case[
                    "expr"
                ]
