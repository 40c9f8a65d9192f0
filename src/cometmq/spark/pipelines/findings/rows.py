"""The findings of a pipeline: one row each, with severity, range and evidence.

    finding := kind | severity | topic | broker_name | queue_id | first | last | count | text
               | evidence

``first`` and ``last`` are queue offsets, both included; they are null where a finding has no
range. ``evidence`` is a JSON object with the facts of one row that shows the finding. Findings of
one kind and place are counted, not repeated.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self

import pyarrow as pa


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """Messages are lost, damaged or doubled."""
    WARNING = "warning"
    """Somebody should look."""
    NOTE = "note"
    """Worth knowing."""


_RANK = {severity: rank for rank, severity in enumerate(Severity)}

SCHEMA = pa.schema(
    [
        pa.field("finding", pa.string(), nullable=False),
        pa.field("severity", pa.string(), nullable=False),
        pa.field("topic", pa.string()),
        pa.field("broker_name", pa.string()),
        pa.field("queue_id", pa.int32()),
        pa.field("first", pa.int64()),
        pa.field("last", pa.int64()),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("evidence", pa.string()),
    ]
)
"""The columns of a table of findings."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found."""

    finding: str
    """Its kind, such as ``gap``."""
    severity: Severity
    text: str
    """A sentence for people."""
    topic: str | None = None
    broker_name: str | None = None
    queue_id: int | None = None
    first: int | None = None
    """First queue offset."""
    last: int | None = None
    """Last queue offset, included."""
    count: int = 1
    """Messages, or pairs of them, that it concerns."""
    evidence: str | None = None
    """JSON: one row that shows it."""

    @classmethod
    def shown_by(
        cls,
        row: Mapping[str, Any],
        finding: str,
        severity: Severity,
        text: str,
        *,
        topic: str = "topic",
        first: int | None = None,
        last: int | None = None,
        count: int = 1,
    ) -> Self:
        """Make a finding of the row of a table that shows it, and is its evidence.

        Args:
            row: topic, broker and queue are taken from it, the latter two if it has them.
            finding: its kind.
            severity: how bad it is.
            text: a sentence about the row.
            topic: the column with the topic.
            first: first queue offset.
            last: last queue offset, included.
            count: messages that it concerns.
        """
        return cls(
            finding,
            severity,
            text,
            row[topic],
            row.get("broker_name"),
            row.get("queue_id"),
            first,
            last,
            count,
            evidence(row),
        )

    @property
    def place(self) -> str:
        """Topic, broker, queue and range, as far as there are any."""
        parts = [self.topic, self.broker_name]
        if self.queue_id is not None:
            parts.append(f"queue {self.queue_id}")
        if self.first is not None:
            parts.append(f"{self.first}..{self.first if self.last is None else self.last}")
        return " ".join(part for part in parts if part)


class Findings:
    """Findings of one run, the worst first."""

    def __init__(self, found: Iterable[Finding] = ()) -> None:
        self._found = list(found)

    def add(self, *found: Finding) -> None:
        """Take more of them."""
        self._found += found

    def __iter__(self) -> Iterator[Finding]:
        return iter(sorted(self._found, key=_order))

    def __len__(self) -> int:
        return len(self._found)

    def of(self, kind: str) -> list[Finding]:
        """The findings of one kind."""
        return [finding for finding in self if finding.finding == kind]

    def by_severity(self) -> dict[Severity, int]:
        """How many there are of each severity, zeros included."""
        counted = Counter(finding.severity for finding in self._found)
        return {severity: counted[severity] for severity in Severity}

    @property
    def clean(self) -> bool:
        """Whether nothing was found that is worse than a note."""
        return all(finding.severity is Severity.NOTE for finding in self._found)

    def table(self) -> pa.Table:
        """Give them as a table with the columns of ``SCHEMA``."""
        rows = [_row(finding) for finding in self]
        return pa.Table.from_pylist(rows, schema=SCHEMA)

    @classmethod
    def from_table(cls, table: pa.Table) -> Findings:
        """Read what ``table`` wrote."""
        names = [field.name for field in fields(Finding)]
        return cls(
            Finding(
                **{**{name: row[name] for name in names}, "severity": Severity(row["severity"])}
            )
            for row in table.to_pylist()
        )


def evidence(row: Mapping[str, Any]) -> str:
    """Write the facts of one row as JSON; what JSON has no form for becomes text."""
    return json.dumps(dict(row), default=str, sort_keys=True, ensure_ascii=False)


def _row(finding: Finding) -> dict[str, Any]:
    row = {field.name: getattr(finding, field.name) for field in fields(finding)}
    return {**row, "severity": finding.severity.value}


def _order(finding: Finding) -> tuple[int, str, str, str, int, int]:
    return (
        _RANK[finding.severity],
        finding.finding,
        finding.topic or "",
        finding.broker_name or "",
        -1 if finding.queue_id is None else finding.queue_id,
        -1 if finding.first is None else finding.first,
    )
