"""A report for people: sections of figures, plots and tables in one HTML file.

The file loads nothing, runs nothing and can be read on a telephone, by day and by night. Every
text comes from messages, so every text is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa

from cometmq.model.nouns import noun_of
from cometmq.spark.pipelines.findings import charts
from cometmq.spark.pipelines.findings.figures import NOTHING, Unit, clipped, count, instant
from cometmq.spark.pipelines.findings.page import page
from cometmq.spark.pipelines.findings.rows import Findings, Severity
from cometmq.spark.pipelines.running.folders import divided, open_folder

ROWS_SHOWN = 200
"""Rows of one table at most; what is left out is counted below it."""


@dataclass
class Section:
    """A heading, a sentence below it, and what follows."""

    title: str
    text: str = ""
    parts: list[str] = field(default_factory=list)
    """HTML, escaped."""

    @property
    def anchor(self) -> str:
        """The name by which the page's list of contents finds it."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    def say(self, text: str) -> Section:
        """Add a paragraph."""
        self.parts.append(f"<p>{escape(text)}</p>")
        return self

    def figures(
        self, figures: Mapping[str, str], kinds: Mapping[str, str] | None = None
    ) -> Section:
        """Add large numbers with their names; ``kinds`` colours some as error or warning."""
        kinds = kinds or {}
        items = "".join(
            f'<li class="{escape(kinds.get(name, ""))}"><b>{escape(value)}</b>{escape(name)}</li>'
            for name, value in figures.items()
        )
        self.parts.append(f'<ul class="figures">{items}</ul>')
        return self

    def plots(self, *plots: tuple[str, str]) -> Section:
        """Add plots, each a title and what ``charts`` drew."""
        drawn = "".join(
            f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"
            for title, svg in plots
        )
        self.parts.append(f'<div class="plots">{drawn}</div>')
        return self

    def table(
        self, table: pa.Table, units: Mapping[str, Unit] | None = None, *, caption: str = ""
    ) -> Section:
        """Add a table; ``units`` says what the numbers of some columns are."""
        self.parts.append(_table(table, units or {}, caption))
        return self

    def findings(self, findings: Findings) -> Section:
        """Add the findings, the worst first."""
        if not len(findings):
            return self.say("Nothing was found.")
        self.parts.append(_findings(findings))
        return self


@dataclass
class Report:
    """What one run found."""

    title: str
    subtitle: str = ""
    sections: list[Section] = field(default_factory=list)

    def section(self, title: str, text: str = "") -> Section:
        """Begin a section."""
        self.sections.append(Section(title, text))
        return self.sections[-1]

    def html(self) -> str:
        """Give the whole page."""
        links = "".join(
            f'<li><a href="#{section.anchor}">{escape(section.title)}</a></li>'
            for section in self.sections
        )
        head = f"<header><h1>{escape(self.title)}</h1>"
        head += f'<p class="soft">{escape(self.subtitle)}</p></header>'
        body = "\n".join(map(_section, self.sections))
        return page(self.title, f"{head}<nav><ul>{links}</ul></nav>\n<main>{body}</main>")

    def write(self, place: str | Path) -> str:
        """Write the page to a path or an address such as ``s3://bucket/report.html``.

        A reader sees the old file or the whole new one. Returns where it is.
        """
        above, name = divided(str(place))
        folder = open_folder(above)
        folder.write(name, self.html().encode())
        return folder.path(name)


def severity_figures(section: Section, findings: Findings) -> Section:
    """Add how many findings there are of each severity."""
    counts = findings.by_severity()
    names = {kind: noun_of(counts[kind], kind.value) for kind in Severity}
    kinds = {names[kind]: kind.value for kind, number in counts.items() if number}
    return section.figures({names[kind]: count(number) for kind, number in counts.items()}, kinds)


def top_rows(
    table: pa.Table, labels: Sequence[str], value: str, limit: int = 10
) -> list[tuple[str, float]]:
    """The rows with the largest values, labelled by some columns, for ``charts.bars``."""
    rows = sorted(table.to_pylist(), key=lambda row: -(row[value] or 0))[:limit]
    return [(label_of(row, labels), float(row[value] or 0)) for row in rows]


def spread_rows(
    table: pa.Table, labels: Sequence[str], prefix: str, limit: int = 10
) -> list[charts.Spread]:
    """Rows for ``charts.spreads`` from the columns ``<prefix>p50``, ``p90`` and ``p99``."""
    names = [f"{prefix}{percentile}" for percentile in ("p50", "p90", "p99")]
    rows = [row for row in table.to_pylist() if all(row[name] is not None for name in names)]
    rows.sort(key=lambda row: -row[names[2]])
    return [charts.Spread(label_of(row, labels), *(row[n] for n in names)) for row in rows[:limit]]


def label_of(row: Mapping[str, Any], names: Iterable[str]) -> str:
    """Name a row by some of its columns."""
    return " · ".join(str(row[name]) for name in names if row[name] is not None) or NOTHING


def _section(section: Section) -> str:
    text = f"<p>{escape(section.text)}</p>" if section.text else ""
    title = f'<h2 id="{section.anchor}">{escape(section.title)}</h2>'
    return f"<section>{title}{text}{''.join(section.parts)}</section>"


def _table(table: pa.Table, units: Mapping[str, Unit], caption: str) -> str:
    names = table.column_names
    shown = table.slice(0, ROWS_SHOWN).to_pylist()
    numeric = {name for name in names if _is_number(table.schema.field(name).type)}
    head = "".join(f"<th{_kind(name in numeric)}>{escape(_spoken(name))}</th>" for name in names)
    rows = "".join(
        f"<tr>{''.join(_cell(name, row[name], name in numeric, units.get(name)) for name in names)}"
        "</tr>"
        for row in shown
    )
    left = table.num_rows - len(shown)
    more = f'<p class="soft">{count(left)} more rows.</p>' if left else ""
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    inner = f"<table>{above}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="scroll">{inner}</div>{more}'


def _cell(name: str, value: object, numeric: bool, unit: Unit | None) -> str:
    text = _written(value, unit)
    kind = ' class="t"' if isinstance(value, datetime) else _kind(numeric)
    return f'<td{kind} data-name="{escape(_spoken(name))}">{escape(text)}</td>'


def _written(value: object, unit: Unit | None) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return unit.text(float(value)) if unit else count(float(value))
    return clipped(str(value))


def _kind(numeric: bool) -> str:
    return ' class="n"' if numeric else ""


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def _findings(findings: Findings) -> str:
    shown = list(findings)[:ROWS_SHOWN]
    rows = "".join(
        f'<tr><td data-name="severity"><span class="tag {found.severity}">{found.severity}</span>'
        f'</td><td data-name="finding">{escape(found.finding)}</td>'
        f'<td data-name="where">{escape(found.place)}</td>'
        f'<td class="n" data-name="count">{count(found.count)}</td>'
        f'<td data-name="what">{escape(clipped(found.text))}</td>'
        f'<td data-name="evidence">{_code(found.evidence)}</td></tr>'
        for found in shown
    )
    names = ("severity", "finding", "where", "count", "what", "evidence")
    head = "".join(f"<th>{name}</th>" for name in names)
    left = len(findings) - len(shown)
    more = f'<p class="soft">{count(left)} more findings.</p>' if left else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="scroll">{table}</div>{more}'


def _code(text: str | None) -> str:
    """A text to look at if one wants to; closed at first."""
    if not text:
        return ""
    return f"<details><summary>show</summary><code>{escape(clipped(text))}</code></details>"
