"""The manifest of an archive: which bytes of which log are in it, and in which files.

    <root>/topic=<topic>/date=<yyyy-mm-dd>/<broker>-<from>-<to>.parquet
    <root>/_manifest/archive.json               what kind of archive it is
    <root>/_manifest/clusters.json              brokers of archived topics, and the cluster of each
    <root>/_manifest/<stream>/stream.json       topics of a stream of `archive-topics`
    <root>/_manifest/<broker>/plan-<n>.json     ranges that the n-th run was about to archive
    <root>/_manifest/<broker>/<from>-<to>.json  an entry: one range that is archived

``from`` and ``to`` are log offsets of 20 digits, ``to`` excluded; in names, what is not a letter, a
digit, ``_``, ``.`` or ``-`` is percent-encoded. A file that no entry names is not part of the
archive. A range is archived again with equal names if its entry is missing, so that every record
is in the archive once, wherever a run was killed.

Plans and entries are created, never replaced, so that runs may start at the same time: a run plans
from the newest plan and its entries, and creates the next plan. The one that comes second fails. A
run that starts while another one works takes over the ranges that have no entry yet; whichever ends
a range second finds its entry and fails.

A file system without hard links may keep a part of a file from a run that was killed: a plan then
counts as the one before it, an entry as missing, which the next run replaces.
"""

from __future__ import annotations

import json
import logging
import random
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import quote

from cometmq.model.errors import ConfigError
from cometmq.spark.errors import PlaceError
from cometmq.spark.logs.ranges import ByteRange
from cometmq.spark.pipelines.running.folders import CLAIM_S, Folder
from cometmq.spark.pipelines.running.runs import RunError

log = logging.getLogger(__name__)

FORMAT = 1
CREATE_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""How long to wait between attempts to create a file that another run has a claim to."""
_DIRECTORY = "_manifest"
CLUSTERS = f"{_DIRECTORY}/clusters.json"
_ADDRESSES = frozenset({"name_servers"})
"""Streams noted the addresses of name servers once, which change while the cluster stays."""
_PLAN = re.compile(r"/plan-[0-9]{8}\.json$")
_ENTRY = re.compile(r"/([0-9]{20})-([0-9]{20})\.json$")


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
class FirstRecord:
    """Identifies the record that a range begins with, whatever its topic."""

    bytes: int
    store_ms: int
    crc: int
    """CRC-32 of all its bytes."""


@dataclass(frozen=True)
class LastRecord:
    """Identifies the newest row that a micro-batch has of a queue."""

    topic: str
    broker: str
    queue_id: int
    offset: int
    born_ms: int | None
    store_ms: int
    body_crc: int | None


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
    """When files and log were found equal; None if they were not compared."""
    query: str = ""
    """Of a micro-batch: the id of the streaming query, which its checkpoint keeps."""
    first_record: FirstRecord | None = None
    """None where the range begins with no record, and in entries of older versions."""
    last_records: tuple[LastRecord, ...] = ()
    """Of a micro-batch: one for each queue; none in entries of older versions."""

    @property
    def range(self) -> ByteRange:
        """The range of the log."""
        return ByteRange(self.broker, self.start, self.end)

    def to_json(self) -> str:
        """Return the entry as JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_document(cls, document: Any, name: str) -> Entry:
        """Return the entry that a JSON document says.

        Raises:
            PlaceError: it says none.
        """
        try:
            known = dict(document)
            if known.pop("format") != FORMAT:
                raise ValueError("another format")
            files = tuple(ArchiveFile(**file) for file in known.pop("files"))
            queues = tuple(QueueRows(**queue) for queue in known.pop("queues"))
            last = tuple(LastRecord(**each) for each in known.pop("last_records", ()))
            first = known.pop("first_record", None)
            record = None if first is None else FirstRecord(**first)
            return cls(files=files, queues=queues, first_record=record, last_records=last, **known)
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise PlaceError(f"{name}: met no entry of a manifest: {problem!r}") from problem


class Plan(NamedTuple):
    """What a run is about to archive."""

    number: int
    """Plans count from 1; 0 is the plan before the first."""
    ranges: Sequence[ByteRange]


class Manifest:
    """The manifest of one archive.

    Args:
        folder: the archive's root.
        sleep: waits so many seconds, while another run creates a file.
    """

    def __init__(self, folder: Folder, sleep: Callable[[float], None] = time.sleep) -> None:
        self.folder = folder
        self._sleep = sleep

    def settle(self, kind: Mapping[str, Any]) -> None:
        """Note what kind of archive this is, or make sure that it is of this kind.

        Raises:
            ConfigError: it is of another kind, as made with other settings.
            RunError: another run has a claim to note it, or had when it was killed.
        """
        self._settle(f"{_DIRECTORY}/archive.json", kind, "an archive", "use another folder")

    def settle_stream(self, name: str, source: Mapping[str, Any]) -> None:
        """Note what a stream archives, or make sure that it is the same as before.

        Args:
            name: what the manifest calls the stream.
            source: its topics.

        Raises:
            ConfigError: it archived something else before.
            RunError: another run has a claim to note it, or had when it was killed.
        """
        advice = (
            "archive other topics under another name; messages that this stream has archived are"
            " archived twice by a stream of another name, unless startingOffsets among its options"
            " begins behind them"
        )
        document, what = f"{self._of(name)}/stream.json", f"an archive of stream {name}"
        self._settle(document, source, what, advice, ignored=_ADDRESSES)

    def clusters(self) -> dict[str, str]:
        """Return the brokers of archived topics and the cluster of each; none if not recorded.

        Raises:
            PlaceError: the file has another content.
        """
        known = self._document(CLUSTERS)
        if known is None:
            return {}
        brokers = known.get("brokers")
        if not isinstance(brokers, dict):
            raise PlaceError(f"{CLUSTERS}: met {brokers!r}, expected brokers and their clusters")
        return brokers

    def record_clusters(self, brokers: Mapping[str, str]) -> dict[str, str]:
        """Record brokers and their clusters unless some are; return those that are recorded.

        Raises:
            RunError: another run has a claim to record them, or had when it was killed.
        """
        if self._create(CLUSTERS, _clusters(brokers)):
            return dict(brokers)
        return self.clusters() or self.replace_clusters(brokers)

    def replace_clusters(self, brokers: Mapping[str, str]) -> dict[str, str]:
        """Record brokers and their clusters; return them."""
        self.folder.write(CLUSTERS, _clusters(brokers))
        return dict(brokers)

    def _settle(
        self,
        name: str,
        wanted: Mapping[str, Any],
        what: str,
        advice: str,
        ignored: frozenset[str] = frozenset(),
    ) -> None:
        wanted = json.loads(json.dumps({"format": FORMAT, **wanted}))
        text = json.dumps(wanted, sort_keys=True).encode()
        found = self._document(name)
        if found is None and not self._create(name, text):
            found = self._document(name)
            if found is None:  # a part of it is there
                self.folder.write(name, text)
        known = wanted if found is None else found
        keys = {*known, *wanted} - ignored
        other = [key for key in keys if known.get(key) != wanted.get(key)]
        if other:
            key = sorted(other)[0]
            raise ConfigError(
                f"{self.folder.place} is {what} with {key}={known.get(key)!r},"
                f" met {wanted.get(key)!r}: {advice}"
            )

    def kind(self) -> dict[str, Any]:
        """Return what kind of archive it is.

        Raises:
            PlaceError: there is no archive.
        """
        known = self._document(f"{_DIRECTORY}/archive.json")
        if known is None:
            raise PlaceError(
                f"{self.folder.place}: met no _manifest/archive.json, expected an archive"
            )
        return known

    def entries(self, broker: str | None = None) -> list[Entry]:
        """Return what is archived, by broker and place in its log."""
        under = _DIRECTORY if broker is None else f"{_DIRECTORY}/{encoded(broker)}"
        found = []
        for name in self.folder.names(under):
            base = name.rpartition("/")[2]
            if base.endswith(".json") and base[:1].isdigit() and name.count("/") == 2:
                document = self._document(name)
                if document is not None:
                    found.append(Entry.from_document(document, name))
        return sorted(found, key=lambda entry: (entry.broker, entry.start))

    def add(self, entry: Entry) -> None:
        """Make a range part of the archive.

        Raises:
            RunError: it is part of the archive by now, as another run has archived it.
        """
        name = self._entry_name(entry)
        if self._create(name, entry.to_json().encode()):
            return
        if self._document(name) is not None:
            raise self._taken(name, entry.range)
        self.replace(entry)

    def add_batch(self, entry: Entry) -> None:
        """Make a micro-batch part of the archive; the same query may do it again.

        Raises:
            RunError: another query has archived a batch of this number.
        """
        name = self._entry_name(entry)
        if self._create(name, entry.to_json().encode()):
            return
        document = self._document(name)
        if document is not None:
            met = Entry.from_document(document, name)
            # Entries of older versions name no query; the same batch has the same rows.
            same = met.query == entry.query if met.query else met.queues == entry.queues
            if not same:
                by = f"query {met.query}" if met.query else "another query"
                raise RunError(
                    f"batch {entry.start} of stream {entry.broker} in {self.folder.place}: query"
                    f" {entry.query} met {name}, which {by} has written: two queries archive under"
                    " one name, or a checkpoint was lost; restore the checkpoint, or use another"
                    " name, with startingOffsets among the options: without, all that the topics"
                    " hold is archived again"
                )
        self.replace(entry)

    def replace(self, entry: Entry) -> None:
        """Make a range part of the archive, or write its entry anew."""
        self.folder.write(self._entry_name(entry), entry.to_json().encode())

    def check_free(self, broker: str, ranges: Iterable[ByteRange]) -> None:
        """Make sure that no entry has bytes of these ranges.

        Raises:
            RunError: an entry has some, as of another run.
        """
        known = sorted(self._archived(broker))
        starts = [start for start, _, _ in known]
        for part in ranges:
            before = bisect_left(starts, part.end) - 1
            while before >= 0 and known[before][1] > part.start:
                if self._document(known[before][2]) is not None:
                    raise self._taken(known[before][2], part)
                before -= 1

    def mark(self, entry: Entry, now_ms: int) -> Entry:
        """Note that a range was compared with its log."""
        marked = replace(entry, verified_ms=now_ms)
        self.replace(marked)
        return marked

    def plan(self, broker: str) -> Plan:
        """Return what the last run was about to archive, ranges that it archived included."""
        names = [name for name in self.folder.names(self._of(broker)) if _PLAN.search(name)]
        number = int(max(names)[-13:-5]) if names else 0
        # Older versions had one plan, which each run replaced.
        for name in [*sorted(names, reverse=True), f"{self._of(broker)}/plan.json"]:
            document = self._document(name)
            if document is not None:
                ranges = document["ranges"]
                return Plan(number, [ByteRange(broker, start, end) for start, end in ranges])
        return Plan(number, [])

    def write_plan(self, broker: str, plan: Plan) -> None:
        """Note what a run is about to archive.

        Raises:
            RunError: there is a plan of this number, as another run started at the same time.
        """
        document = {"ranges": [[each.start, each.end] for each in plan.ranges]}
        name = f"{self._of(broker)}/plan-{plan.number:08d}.json"
        if not self._create(name, json.dumps(document).encode()):
            raise RunError(
                f"archive of {broker} in {self.folder.place}: another run started at the same time:"
                f" met its plan {name}; this run has archived nothing, start it again when the"
                " other one has ended"
            )

    def _archived(self, broker: str) -> Iterator[tuple[int, int, str]]:
        """Give begin, end and entry of every archived range."""
        for name in self.folder.names(self._of(broker)):
            if met := _ENTRY.search(name):
                yield int(met[1]), int(met[2]), name

    def _taken(self, name: str, part: ByteRange) -> RunError:
        return RunError(
            f"{part} in {self.folder.place}: another run archives it: met its entry {name};"
            " start this run again when the other one has ended"
        )

    def _create(self, name: str, data: bytes) -> bool:
        """Create a file; wait while another run has only a claim to it.

        Raises:
            RunError: the claim stays, as that of a run that was killed does for a while.
        """
        for pause_s in (*CREATE_PAUSES_S, 0.0):
            if self.folder.create(name, data):
                return True
            if self.folder.read(name) is not None:
                return False
            # Two that wait equally long would meet each other's claim each time.
            self._sleep(pause_s * random.uniform(0.5, 1.5))
        raise RunError(
            f"another run, or one killed in the last {CLAIM_S // 60} minutes, is creating"
            f" {self.folder.path(name)}: met its claim, expected the file; start again when it has"
            f" ended, or {CLAIM_S // 60} minutes after it was killed"
        )

    def _document(self, name: str) -> dict[str, Any] | None:
        """Return what a file of the manifest says, None where it is missing.

        A file system without hard links may keep a part of a file from a run that was killed, which
        counts as missing.

        Raises:
            PlaceError: it is a JSON text of another kind.
        """
        met = self.folder.read(name)
        if met is None:
            return None
        try:
            document = json.loads(met)
        except ValueError as problem:
            log.warning(
                "part of a file counts as missing file=%s bytes=%d error=%s",
                self.folder.path(name),
                len(met),
                problem,
            )
            return None
        if not isinstance(document, dict):
            raise PlaceError(f"{name}: met {type(document).__name__}, expected an object")
        return document

    def _entry_name(self, entry: Entry) -> str:
        return f"{self._of(entry.broker)}/{range_name(entry.range)}.json"

    def _of(self, broker: str) -> str:
        return f"{_DIRECTORY}/{encoded(broker)}"


def _clusters(brokers: Mapping[str, str]) -> bytes:
    return json.dumps({"format": FORMAT, "brokers": dict(brokers)}, sort_keys=True).encode()


def covered(entries: Iterable[Entry], start: int) -> int:
    """Return the log offset up to which a log is archived without a gap, from ``start`` on."""
    for entry in sorted(entries, key=lambda entry: entry.start):
        if entry.start > start:
            break
        start = max(start, entry.end)
    return start


def marked_to(entries: Iterable[Entry], start: int) -> int:
    """Return the log offset below which every range is marked as compared, from ``start`` on."""
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
