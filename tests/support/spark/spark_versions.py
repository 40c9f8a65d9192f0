"""The versions of Spark on the page about them, each with its artifacts on Maven Central."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "spark-versions.md"
FORMATS = ("Delta", "Iceberg", "Avro", "Kafka connector")
_NAMED = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class SparkVersion:
    """A row of the table."""

    minor: str
    """Such as ``4.2``."""
    extra: str
    pyspark: str | None
    """The full version that is named, if one is."""
    artifacts: dict[str, str]
    """Coordinates by format; a format without a jar is not there."""


def spark_versions() -> list[SparkVersion]:
    """The rows of the table, the oldest version first."""
    section = PAGE.read_text().partition("\n## Table formats and connectors\n")[2]
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    head, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    rows = [row for row in rows if len(row) == len(head)]  # a second table has two columns
    assert head == ["Spark", "`pip install`", *FORMATS]
    return [_version(row) for row in rows]


def _version(row: list[str]) -> SparkVersion:
    minor, install, *cells = row
    extra = re.search(r"\.\[([\w-]+)\]", install)
    assert extra is not None, install
    pinned = re.search(r"pyspark==([\d.]+)", install)
    named = {name: _NAMED.fullmatch(cell) for name, cell in zip(FORMATS, cells, strict=True)}
    assert all(each or cell == "none" for each, cell in zip(named.values(), cells, strict=True))
    artifacts = {name: found[1] for name, found in named.items() if found}
    return SparkVersion(minor, extra[1], pinned and pinned[1], artifacts)


def newest(requirement: Requirement, versions: list[SparkVersion]) -> SparkVersion:
    """The newest version of the table that a requirement admits."""
    return [each for each in versions if requirement.specifier.contains(f"{each.minor}.99")][-1]
