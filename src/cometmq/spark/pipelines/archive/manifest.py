"""The manifest of an archive: which bytes of which log are in it, and in which files.

    <root>/topic=<topic>/date=<yyyy-mm-dd>/<broker>-<from>-<to>.parquet
    <root>/_manifest/archive.json               what kind of archive it is
    <root>/_manifest/<broker>/plan.json         ranges that were about to be archived
    <root>/_manifest/<broker>/<from>-<to>.json  an entry: one range that is archived

``from`` and ``to`` are log offsets of 20 digits, ``to`` excluded; in names, what is not a letter, a
digit, ``_``, ``.`` or ``-`` is percent-encoded. A file that no entry names is not part of the
archive. A range is archived again with equal names if its entry is missing, so that every record
is in the archive once, wherever a run was killed. Source: ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import quote

from cometmq.model.errors import ConfigError
from cometmq.spark.errors import PlaceError
from cometmq.spark.logs.ranges import ByteRange
from cometmq.spark.pipelines.running.folders import Folder

FORMAT = 1
_DIRECTORY = "_manifest"


@dataclass(frozen=True)
class ArchiveFile:
    """One Parquet file."""

    name: str
    """Below the archive's root."""
    topic: str
    date: str
    rows: int
    bytes: int
    min_store_ms: int
    max_store_ms: int
    ids_crc: int
    """CRC-32 of the message ids in the order of the rows."""
    body_crc_sum: int
    """Sum of the column ``body_crc``."""


@dataclass(frozen=True)
class QueueRows:
    """What a range has of one queue."""

    topic: str
    queue_id: int
    rows: int
    min_offset: int
    max_offset: int
    min_store_ms: int
    max_store_ms: int


@dataclass(frozen=True)
class Entry:
    """One archived range of a log."""

    broker: str
    start: int
    end: int
    rows: int
    files: tuple[ArchiveFile, ...]
    queues: tuple[QueueRows, ...]
    verified_ms: int | None = None
    """When files and log were found equal; None if nobody compared them."""

    @property
    def range(self) -> ByteRange:
        """The range of the log."""
        return ByteRange(self.broker, self.start, self.end)

    def to_json(self) -> str:
        """Return the entry as JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes, name: str) -> Entry:
        """Return the entry that a JSON text says.

        Raises:
            PlaceError: it says none.
        """
        try:
            known = json.loads(text)
            if known.pop("format") != FORMAT:
                raise ValueError("another format")
            files = tuple(ArchiveFile(**file) for file in known.pop("files"))
            queues = tuple(QueueRows(**queue) for queue in known.pop("queues"))
            return cls(files=files, queues=queues, **known)
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise PlaceError(f"{name}: met no entry of a manifest: {problem!r}") from problem


class Manifest:
    """The manifest of one archive.

    Args:
        folder: the archive's root.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def settle(self, kind: Mapping[str, Any]) -> None:
        """Note what kind of archive this is, or make sure that it is of this kind.

        Raises:
            ConfigError: it is of another kind, as made with other settings.
        """
        name = f"{_DIRECTORY}/archive.json"
        wanted = json.loads(json.dumps({"format": FORMAT, **kind}))
        met = self.folder.read(name)
        if met is None:
            self.folder.write(name, json.dumps(wanted, sort_keys=True).encode())
            return
        known = json.loads(met)
        other = [key for key in {*known, *wanted} if known.get(key) != wanted.get(key)]
        if other:
            key = sorted(other)[0]
            raise ConfigError(
                f"{self.folder.place} is an archive with {key}={known.get(key)!r},"
                f" met {wanted.get(key)!r}: use another folder"
            )

    def kind(self) -> dict[str, Any]:
        """Return what kind of archive it is.

        Raises:
            PlaceError: there is no archive.
        """
        met = self.folder.read(f"{_DIRECTORY}/archive.json")
        if met is None:
            raise PlaceError(f"{self.folder.place}: met no _manifest, expected an archive")
        known: dict[str, Any] = json.loads(met)
        return known

    def entries(self, broker: str | None = None) -> list[Entry]:
        """Return what is archived, by broker and place in its log."""
        under = _DIRECTORY if broker is None else f"{_DIRECTORY}/{encoded(broker)}"
        found = []
        for name in self.folder.names(under):
            base = name.rpartition("/")[2]
            if base.endswith(".json") and base[:1].isdigit() and name.count("/") == 2:
                found.append(Entry.from_json(self.folder.read(name) or b"", name))
        return sorted(found, key=lambda entry: (entry.broker, entry.start))

    def add(self, entry: Entry) -> None:
        """Make a range part of the archive, or replace its entry."""
        name = f"{_DIRECTORY}/{encoded(entry.broker)}/{range_name(entry.range)}.json"
        self.folder.write(name, entry.to_json().encode())

    def mark(self, entry: Entry, now_ms: int) -> Entry:
        """Note that a range was compared with its log."""
        marked = replace(entry, verified_ms=now_ms)
        self.add(marked)
        return marked

    def plan(self, broker: str) -> list[ByteRange]:
        """Return the ranges that a run was about to archive, those it archived included."""
        met = self.folder.read(self._plan_name(broker))
        ranges = json.loads(met)["ranges"] if met is not None else []
        return [ByteRange(broker, start, end) for start, end in ranges]

    def write_plan(self, broker: str, ranges: Sequence[ByteRange]) -> None:
        """Note what a run is about to archive."""
        document = {"ranges": [[each.start, each.end] for each in ranges]}
        self.folder.write(self._plan_name(broker), json.dumps(document).encode())

    def _plan_name(self, broker: str) -> str:
        return f"{_DIRECTORY}/{encoded(broker)}/plan.json"


def covered(entries: Iterable[Entry], start: int) -> int:
    """Return the log offset up to which a log is archived without a gap, from ``start`` on."""
    for entry in sorted(entries, key=lambda entry: entry.start):
        if entry.start > start:
            break
        start = max(start, entry.end)
    return start


def verified_to(entries: Iterable[Entry], start: int) -> int:
    """Return the log offset below which every range was compared with the log."""
    return covered((entry for entry in entries if entry.verified_ms is not None), start)


def encoded(text: str) -> str:
    """Return a name as a part of a path."""
    plain = quote(text, safe="")
    return plain.replace(".", "%2E") if not text.strip(".") else plain


def range_name(part: ByteRange) -> str:
    """Return the name of a range's entry and of its files without the broker."""
    return f"{part.start:020d}-{part.end:020d}"


def file_name(topic: str, date: str, part: ByteRange) -> str:
    """Return the name of a range's file for a topic and a day."""
    return f"topic={encoded(topic)}/date={date}/{encoded(part.broker)}-{range_name(part)}.parquet"
