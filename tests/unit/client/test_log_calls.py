"""No log line and no error text of the client names a body or a secret."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import cometmq

PACKAGE = Path(cometmq.__file__).parent
MODULES = sorted(path for part in ("client", "remoting") for path in (PACKAGE / part).rglob("*.py"))
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
KEPT = frozenset({"body", "secret_key", "security_token", "secret", "token", "password", "key"})
"""Names of what may not be told; a ``key`` signs or opens a file."""
WHOLE = frozenset({"message", "messages", "request", "credentials", "settings"})
"""Objects that would tell of a body or a secret if they were printed."""


def told(tree: ast.AST) -> Iterator[ast.expr]:
    """What is put into log lines, and into the texts of errors that are raised."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in LEVELS and ast.unparse(node.func.value) in ("log", "logging"):
                yield from node.args[1:]
                yield from (word.value for word in node.keywords)
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for part in ast.walk(node.exc):
                if isinstance(part, ast.FormattedValue):
                    yield part.value


def problems(source: str) -> list[str]:
    """The lines that tell what they should not."""
    found = []
    for value in told(ast.parse(source)):
        measured = isinstance(value, ast.Call) and ast.unparse(value.func) in ("len", "type")
        tells = (isinstance(value, ast.Attribute) and value.attr in KEPT) or (
            isinstance(value, ast.Name) and value.id in KEPT | WHOLE
        )
        if tells and not measured:
            found.append(f"line {value.lineno}: {ast.unparse(value)}")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_is_told_of_bodies_and_secrets(path: Path) -> None:
    assert problems(path.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        'log.info("sent body=%s", message.body)',
        'log.log(level, "sent message=%r", message)',
        'log.debug("signed", extra=settings)',
        'raise ValueError(f"cannot sign with {self.secret_key}")',
    ],
)
def test_what_tells_is_found(line: str) -> None:
    assert len(problems(line)) == 1
