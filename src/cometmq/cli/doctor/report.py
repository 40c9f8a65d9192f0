"""Prints findings as text or JSON, and gives the exit code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from cometmq.cli.doctor.findings import WORST_FIRST, Finding, Level
from cometmq.cli.exit_codes import FAILED
from cometmq.system.log_format import printable


def exit_code(findings: Iterable[Finding], *, strict: bool) -> int:
    """Return 1 if there is a problem, or with ``strict`` a warning; else 0."""
    bad = (Level.PROBLEM, Level.WARNING) if strict else (Level.PROBLEM,)
    return FAILED if any(finding.level in bad for finding in findings) else 0


def as_text(findings: Sequence[Finding], *, everything: bool) -> str:
    """Return the findings for people, problems first, and their number as the last line.

    Args:
        findings: what was found.
        everything: whether what is fine is listed too.
    """
    lines = []
    for level in WORST_FIRST if everything else WORST_FIRST[:-1]:
        for finding in findings:
            if finding.level is level:
                lines += _paragraph(finding)
    return "\n".join([*lines, _totals(findings)]) + "\n"


def _paragraph(finding: Finding) -> list[str]:
    head = f"{finding.level.value.upper():7} {finding.check}  {finding.subject}: {finding.met}"
    more = (("expected", finding.expected), ("do", finding.action))
    return [
        printable(head),
        *(f"        {printable(name)}: {printable(text)}" for name, text in more if text),
    ]


def _totals(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.level for finding in findings)
    return (
        f"problems={counts[Level.PROBLEM]} warnings={counts[Level.WARNING]}"
        f" fine={counts[Level.FINE]}"
    )


def as_json(findings: Sequence[Finding]) -> str:
    """Return all findings and the number of each level as one JSON object."""
    counts = Counter(finding.level for finding in findings)
    found = {
        "findings": [finding._asdict() | {"level": finding.level.value} for finding in findings],
        "problems": counts[Level.PROBLEM],
        "warnings": counts[Level.WARNING],
        "fine": counts[Level.FINE],
    }
    return json.dumps(found, indent=2) + "\n"
