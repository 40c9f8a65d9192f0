"""Fills the page about state machines from their tables.

The text between a comment ``<!-- states: module -->`` and the next ``<!-- end -->`` is made from
the classes and the table of that module. Every module whose name ends with ``_states`` has to be
shown there.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType

from tools.generate.root import ROOT

PAGE = ROOT / "docs/explanation/state-machines.md"
BLOCK = re.compile(r"(<!-- states: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
REFUSED = "-"


def machines() -> dict[str, ModuleType]:
    """Every module with a table, by its name without the package."""
    source = ROOT / "src"
    found = sorted((source / "cometmq").rglob("*_states.py"))
    names = [".".join(path.relative_to(source).with_suffix("").parts) for path in found]
    return {name.removeprefix("cometmq."): importlib.import_module(name) for name in names}


def member_texts(kind: type[Enum]) -> dict[str, str]:
    """The docstring of each member, on one line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    return {
        member.targets[0].id: " ".join(text.value.value.split())
        for member, text in itertools.pairwise(tree.body)
        if isinstance(member, ast.Assign)
        and isinstance(member.targets[0], ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def tables(module: ModuleType) -> Iterator[str]:
    """The lines about one machine: what does what in which state, and what the names mean."""
    events = list(module.Event)
    yield f"| State | {' | '.join(f'`{event.name}`' for event in events)} |"
    yield "|---" * (len(events) + 1) + "|"
    for state in module.State:
        cells = (_cell(module.TABLE.rows.get((state, event))) for event in events)
        first = " (first)" if state is module.TABLE.first else ""
        yield f"| **`{state.name}`**{first} | {' | '.join(cells)} |"
    kinds = [module.State, module.Event, *([module.Action] if hasattr(module, "Action") else ())]
    for kind in kinds:
        yield from ("", f"| {kind.__name__} | Meaning |", "|---|---|")
        for member, text in member_texts(kind).items():
            yield f"| `{member}` | {text.replace('``', '`')} |"


def _cell(row: object) -> str:
    if row is None:
        return REFUSED
    after, action = row.after, row.action  # type: ignore[attr-defined]
    return f"`{after.name}`" + ("" if action is None else f", *{action.name}*")


def _filled(match: re.Match[str]) -> str:
    head, name, end = match.groups()
    return f"{head}\n" + "\n".join(tables(machines()[name])) + f"\n\n{end}"


def files() -> Iterator[tuple[Path, str]]:
    """The page, and the text it should have."""
    yield PAGE, BLOCK.sub(_filled, PAGE.read_text())
