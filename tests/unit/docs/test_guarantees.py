"""The page of guarantees names tests that exist, with the numbers of cases that they run."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tools.generate import pages

PAGE = (pages.ROOT / "docs/explanation/guarantees.md").read_text()
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ROUNDS = re.compile(r"\brounds\(test=([\d_]+), long=([\d_]+)\)")
ROW = re.compile(r"^\| ([a-z]+-\d+) \| (.*) \|$", re.MULTILINE)
PROMISES, _, SHOWN = PAGE.partition("## The tests that show each promise")
PROMISED = dict(ROW.findall(PROMISES))
TESTS = dict(ROW.findall(SHOWN))
"""By the name of a promise: what is promised, and the tests and cases that show it."""


@cache
def functions(path: str) -> frozenset[str]:
    tree = ast.parse((pages.ROOT / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


@cache
def marks(path: str) -> dict[str, str]:
    """The marks of the functions of a file, with the marks of the whole file."""
    tree = ast.parse((pages.ROOT / path).read_text())
    of_all = " ".join(
        ast.unparse(each.value)
        for each in tree.body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "pytestmark"
    )
    return {
        each.name: " ".join([of_all, *map(ast.unparse, each.decorator_list)])
        for each in ast.walk(tree)
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def is_in_make_test(path: str, name: str) -> bool:
    """Whether the tier ``test`` has at least a case of a test, if its programs are here."""
    found = marks(path)[name].replace("marks=pytest.mark.long", "")
    if path.startswith("tests/interop/") or re.search(r"mark\.long\b", found):
        return False
    return "mark.needs" not in found or "mark.promise" in found


@cache
def rounds(path: str) -> frozenset[tuple[int, int]]:
    """The numbers of cases that a file of tests chooses between, by `support.runner.tiers`."""
    found = ROUNDS.findall((pages.ROOT / path).read_text())
    return frozenset((int(test), int(long)) for test, long in found)


THREATS = (pages.ROOT / "docs/explanation/threat-model.md").read_text()


@pytest.mark.parametrize(("path", "name"), sorted(set(TEST.findall(THREATS))))
def test_each_test_of_the_threat_model_exists(path: str, name: str) -> None:
    assert name in functions(path), f"{path} has no {name}"


def test_each_threat_that_is_defended_has_a_test() -> None:
    for title in ("## What is defended", "## RocketMQ's vulnerabilities"):
        table = THREATS.partition(title)[2].partition("\n## ")[0]
        rows = [row for row in table.splitlines() if row.startswith("| ")][1:]
        assert len(rows) > 5
        assert [row for row in rows if not TEST.search(row)] == []


def test_each_promise_has_a_name_of_its_own_and_its_tests() -> None:
    assert len(PROMISED) >= 40
    assert [*PROMISED] == [*TESTS]
    assert len(ROW.findall(PAGE)) == len(PROMISED) + len(TESTS)


@pytest.mark.parametrize("name", TESTS)
def test_each_promise_has_a_test_with_as_many_cases_as_the_page_says(name: str) -> None:
    shown_by, _, cases = TESTS[name].rpartition(" | ")
    tests = TEST.findall(shown_by)

    assert tests, f"no test shows: {PROMISED[name]}"
    for path, test in tests:
        assert test in functions(path), f"{path} has no {test}"
    if not name.startswith("rocketmq"):
        assert any(is_in_make_test(path, test) for path, test in tests), name
    if match := re.match(r"([\d,]+) / ([\d,]+) ", cases):
        counts = tuple(int(text.replace(",", "")) for text in match.groups())
        assert counts in {found for path, _ in tests for found in rounds(path)}
