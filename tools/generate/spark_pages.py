"""Makes the reference of the Spark formats and checks from what the code declares.

Columns come from `cometmq.spark.schema` and the sources beside it, options from the dataclasses of
`cometmq.spark.options`, checks from their docstrings. Only this page's order is written here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from tools.generate.root import ROOT

REFERENCE = ROOT / "docs/reference"
PARTS = REFERENCE / "parts"

FORMATS: dict[str, tuple[tuple[str, str], ...]] = {
    "rocketmq": (
        ("Read options", "cometmq.spark.options.topics.TopicReadOptions"),
        ("Write options", "cometmq.spark.options.writing.TopicWriteOptions"),
    ),
    "rocketmq-log": (("Options", "cometmq.spark.options.logs.LogOptions"),),
    "rocketmq-meta": (("Options", "cometmq.spark.options.meta.MetaOptions"),),
}
"""The options of each format that are its own."""

OWN_COLUMNS = {
    "rocketmq-meta": "cometmq.spark.sources.meta.META",
}
"""The columns of formats that are not about messages."""

SHARED = {
    "Options of payloads": "cometmq.spark.options.payloads.PayloadOptions",
    "Options of connections": "cometmq.spark.options.connection.ConnectionOptions",
}
"""Options that several formats have."""

CHECKS = "cometmq.spark.checks"
"""The package of functions that return data frames."""


def formats_page() -> str:
    """All formats: their columns, their options, their errors."""
    lines = [_part("spark-formats")]
    for name, kinds in FORMATS.items():
        lines += ["", f"## {name}", "", *_source_text(name)]
        lines += [line for title, rows in _columns(name) for line in _table(title, rows)]
        for title, kind in kinds:
            lines += ["", f"### {_titled(title, name)}", "", *_first_sentence(_found(kind)), ""]
            lines += _options(_found(kind))
    for title, kind in SHARED.items():
        lines += ["", f"## {title}", "", *_first_sentence(_found(kind)), ""]
        lines += _options(_found(kind))
    lines += ["", "## Errors", "", *_errors()]
    return "\n".join(lines) + "\n"


def checks_page() -> str:
    """All functions of checks with their docstrings."""
    module = import_module(CHECKS)
    first = (inspect.getdoc(module) or "").partition("\n\n")[0]
    lines = ["# Checks in Spark", "", f"Functions of `{CHECKS}`. {_sentence(first)}"]
    for name in module.__all__:
        function = getattr(module, name)
        signature = str(inspect.signature(function)).replace("'", "")
        lines += ["", f"## {name}", "", "```text", f"{name}{signature}", "```", ""]
        lines += _docstring(inspect.getdoc(function) or "")
    return "\n".join(lines).rstrip().replace("\n\n\n", "\n\n") + "\n"


def _part(name: str) -> str:
    return (PARTS / f"{name}.md").read_text().rstrip()


def _titled(title: str, name: str) -> str:
    """A heading that is unlike all others, for links."""
    return f"{title} of {name}"


def _found(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def _source_text(name: str) -> Iterator[str]:
    """The docstring of the format's class, in Markdown."""
    from cometmq.spark.sources import source_class

    first, _, rest = (inspect.getdoc(source_class(name)) or "").partition("\n\n")
    yield _sentence(first)
    if rest.strip():
        yield from ("", "```text", *rest.strip("\n").rstrip().splitlines(), "```")


def _docstring(text: str) -> Iterator[str]:
    """A docstring in Markdown: ``Args`` and ``Raises`` are lists."""
    for block in text.replace("``", "`").split("\n\n"):
        title, _, rest = block.partition("\n")
        if title in ("Args:", "Raises:"):
            items = re.sub(r"\n {5,}", " ", rest).splitlines()
            block = f"{title}\n\n" + "\n".join(
                re.sub(r"^ {4}([^:]+):", r"- `\1`:", each) for each in items
            )
        yield from (block, "")


def _columns(name: str) -> Iterator[tuple[str, list[str]]]:
    """The columns of a format, below the title of their table."""
    from cometmq.spark import schema
    from cometmq.spark.payloads import plan

    if name == "rocketmq":
        yield "Columns that are read", list(_column_rows(schema.CORE))
        rows = _column_rows([schema.PROPERTIES])
        yield "Column with `includeProperties=true`", list(rows)
        yield "Columns with `payload.format`", list(_column_rows(plan.DOCUMENTED))
        yield "Columns that are written", list(_written_rows())
    elif name == "rocketmq-log":
        yield "Further columns, besides the columns of `rocketmq`", list(_column_rows(schema.HOSTS))
        yield "Column with `validate=true`", list(_column_rows([schema.RECORD_VALID]))
    else:
        yield "Columns", list(_column_rows(_found(OWN_COLUMNS[name])))


def _column_rows(columns: Iterable[Any]) -> Iterator[str]:
    for column in columns:
        null = "" if column.nullable else "never null; "
        yield _row(f"`{column.name}`", f"`{column.ddl}`", null + column.doc)


def _written_rows() -> Iterator[str]:
    """The columns of the writer."""
    from cometmq.spark.sink.rows import COLUMNS

    for name, (kind, _, text) in COLUMNS.items():
        yield _row(f"`{name}`", f"`{kind}`", text)


def _table(title: str, rows: list[str]) -> Iterator[str]:
    yield from ("", f"{title}:", "", "| Column | Type | Meaning |", "|---|---|---|", *rows)


def _options(kind: type) -> Iterator[str]:
    """The options of a dataclass that no other table has."""
    from cometmq.spark.options import options_of

    others = [_found(path) for path in SHARED.values() if _found(path) is not kind]
    shared = {entry.setting.name for other in others for entry in options_of(other)}
    texts = _texts(kind)
    yield from ("| Option | Default | Expected | Meaning |", "|---|---|---|---|")
    for entry in options_of(kind):
        if entry.setting.name in shared:
            continue
        names = " or ".join(f"`{name}`" for name in entry.names)
        shown = entry.setting.render(entry.setting.default())
        default = "needed" if entry.required else f"`{shown}`" if shown else ""
        yield _row(names, default, entry.setting.expectation, texts[entry.setting.name])


def _texts(kind: type) -> dict[str, str]:
    """What each field means, those of base classes included."""
    from cometmq.system.settings import field_texts

    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        texts |= field_texts(base)
    return texts


def _errors() -> Iterator[str]:
    """Each error of the module, its base class and its docstring."""
    from cometmq.spark import errors

    yield from ("| Error | Base class | Meaning |", "|---|---|---|")
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.SourceError):
            yield _row(f"`{name}`", f"`{kind.__bases__[0].__name__}`", inspect.getdoc(kind) or "")


def _first_sentence(thing: Any) -> Iterator[str]:
    yield _sentence((inspect.getdoc(thing) or "").partition("\n\n")[0])


def _sentence(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")


def _row(*cells: str) -> str:
    cleaned = (" ".join(cell.split()).replace("``", "`").replace("|", "\\|") for cell in cells)
    return "| " + " | ".join(cleaned) + " |"


def files() -> Iterator[tuple[Path, str]]:
    """All pages."""
    from tools.generate.pages import MADE

    yield REFERENCE / "spark-formats.md", MADE + formats_page()
    yield REFERENCE / "spark-checks.md", MADE + checks_page()
