"""Unit tests await what they wait for: none of them sleeps, unless it does so on virtual time."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

UNIT = Path(__file__).resolve().parents[1]
VIRTUAL = ast.dump(ast.parse('pytest.mark.usefixtures("virtual_time")', mode="eval").body)


def sleeps(source: str) -> list[int]:
    """The lines where a test lets real time pass."""
    return sorted(_sleeps(ast.parse(source)))


def _sleeps(node: ast.AST) -> Iterator[int]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and _lets_time_pass(child):
            yield child.lineno
        if not _is_virtual(child):
            yield from _sleeps(child)


def _is_virtual(node: ast.AST) -> bool:
    """Whether it is a test, or a block of one, that runs on virtual time."""
    marks = getattr(node, "decorator_list", [])
    blocks = [item.context_expr for item in getattr(node, "items", [])]
    return any(ast.dump(mark) == VIRTUAL for mark in marks) or any(
        isinstance(block, ast.Call) and ast.unparse(block.func) == "virtual" for block in blocks
    )


def _has_virtual_time(module: ast.Module) -> bool:
    """Whether all tests of the module run on virtual time."""
    return any(
        isinstance(each, ast.Assign)
        and ast.unparse(each.targets[0]) == "pytestmark"
        and VIRTUAL in ast.dump(each.value)
        for each in module.body
    )


def _lets_time_pass(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    if name.rpartition(".")[2] != "sleep" or not call.args:
        return False
    return name == "time.sleep" or ast.unparse(call.args[0]) not in ("0", "0.0")


def test_no_module_sleeps() -> None:
    texts = {path.relative_to(UNIT).as_posix(): path.read_text() for path in UNIT.rglob("*.py")}
    parsed = {name: ast.parse(text) for name, text in texts.items() if "sleep" in text}
    virtual = {name for name, module in parsed.items() if _has_virtual_time(module)}
    found = {name: sorted(_sleeps(parsed[name])) for name in parsed.keys() - virtual}

    assert {name: lines for name, lines in found.items() if lines} == {}
    assert [name for name in virtual if "time.sleep(" in texts[name]] == []
    assert (len(texts), len(parsed), len(virtual)) > (200, 20, 0)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("import asyncio\nasync def test(): await asyncio.sleep(0)", []),
        ("import asyncio\nasync def test(): await asyncio.sleep(0.1)", [2]),
        ("import asyncio\nasync def test():\n  def f():\n    asyncio.sleep(PAUSE)", [4]),
        ("import time\ndef test(): time.sleep(0)", [2]),
        ("@pytest.mark.usefixtures('virtual_time')\nasync def test(): asyncio.sleep(9)", []),
    ],
    ids=["a turn", "a while", "inside", "the thread", "virtual"],
)
def test_sleeps_are_found(source: str, lines: list[int]) -> None:
    assert sleeps(source) == lines
