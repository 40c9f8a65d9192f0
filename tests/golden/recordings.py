"""Reads what was recorded from real brokers and clients: see tests/vectors/README.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cometmq.protocol.command import Command
from support.wire.frames import one_command

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
VERSIONS = ("4.9.7", "5.3.3")
SCENARIOS = sorted(
    str(path.relative_to(VECTORS / "frames")) for path in (VECTORS / "frames").glob("*/*.jsonl")
)


def values(version: str, name: str) -> Any:
    """Read one file of recorded values."""
    return json.loads((VECTORS / "values" / version / f"{name}.json").read_text())


class Recorded(NamedTuple):
    """One frame as it was captured, and what a real decoder made of it."""

    row: dict[str, Any]
    data: bytes

    def command(self) -> Command:
        """Decode the frame."""
        return one_command(self.data)


def recorded(scenario: str) -> Iterator[Recorded]:
    """Yield the frames of one scenario, in order."""
    for line in (VECTORS / "frames" / scenario).read_text().splitlines():
        row = json.loads(line)
        yield Recorded(row, bytes.fromhex(row["hex"]))
