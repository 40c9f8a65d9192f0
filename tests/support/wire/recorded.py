"""Reads the frames and stores of real servers that tests/vectors has."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cometmq.protocol import fastjson
from cometmq.protocol.command import Command
from support.wire.frames import one_command

VECTORS = Path(__file__).resolve().parents[2] / "vectors"
FRAMES, STORES = VECTORS / "frames", VECTORS / "stores"
VERSIONS = ("4.9.7", "5.3.3")


def frames(version: str, scenario: str) -> Iterator[tuple[str, Command]]:
    """Yield the name and the command of every frame of one recording, in order."""
    for line in (FRAMES / version / f"{scenario}.jsonl").read_text().splitlines():
        row = json.loads(line)
        yield row["name"], one_command(bytes.fromhex(row["hex"]))


def answers(version: str, scenario: str, request_name: str) -> list[Command]:
    """Return the successful answers to one kind of request."""
    name = f"{request_name}_RESPONSE"
    return [
        command
        for found, command in frames(version, scenario)
        if found == name and command.code == 0
    ]


def unpack_store(name: str, folder: Path) -> Path:
    """Unpack a store that a real broker wrote; return its folder."""
    with tarfile.open(STORES / f"{name}.tar.gz") as archive:
        # Python 3.11.0 to 3.11.3 has no filters, 3.12 and 3.13 warn without one.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    return folder / "store"


def shape(body: bytes) -> Any:
    """What a JSON body consists of: names and kinds, without its values."""
    return _shape(fastjson.loads(body))


def _shape(value: Any) -> Any:
    if isinstance(value, fastjson.Pairs):
        return {("pairs", _frozen(_shape(key)), _frozen(_shape(item))) for key, item in value}
    if isinstance(value, dict):
        return {key: _shape(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return {_frozen(_shape(item)) for item in value}
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return type(value).__name__
    return "number"


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted((key, _frozen(item)) for key, item in value.items()))
    return tuple(sorted(map(repr, value))) if isinstance(value, set) else value
