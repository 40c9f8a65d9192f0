"""Differences between a log and the files that are derived from it, as findings.

Runs on executors; findings travel back as plain rows, few of them: offsets that follow each other
are one finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cometmq.spark.errors import BadRecordError, DataLossError
from cometmq.spark.logs import ByteRange, LogPlace
from cometmq.spark.pipelines.findings.rows import Finding, Severity, evidence
from cometmq.spark.pipelines.stores.dispatched import dispatch
from cometmq.spark.pipelines.stores.files import (
    ENTRY,
    IndexFile,
    IndexHeader,
    QueueUnits,
    StoreFiles,
    is_filler,
)
from cometmq.spark.pipelines.stores.record_heads import RecordHeads
from cometmq.store.queues.consume_queue import FILLER_SIZE

FINDINGS_MAX = 100
"""Of one kind from one task; the last one says how many more there are."""
_UNITS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class CheckJob:
    """What a task needs to compare a part of a store."""

    place: LogPlace
    store: StoreFiles
    topics: frozenset[str]
    """Queues that are compared; all if empty."""
    delay_levels: str
    index: tuple[tuple[IndexFile, IndexHeader], ...]
    """The index files, oldest first."""
    end: int
    """Up to where the log is read."""
    closed: bool
    """Whether nobody writes to the store."""


@dataclass
class Checked:
    """What a task found."""

    part: str
    rows: int = 0
    units: dict[tuple[str, int], int] = field(default_factory=dict)
    """How many records of each queue have their right unit."""
    keys: int = 0
    """How many keys have their entry."""
    findings: list[Finding] = field(default_factory=list)


def check_range(job: CheckJob, part: ByteRange) -> Checked:
    """Compare the units and entries that follow from a range with those in the files."""
    checked = Checked(f"{part.start}-{part.end}")
    try:
        expected = dispatch(job.place, part, job.delay_levels, with_keys=bool(job.index))
    except (BadRecordError, DataLossError) as problem:
        checked.findings.append(Finding("bad-record", Severity.ERROR, str(problem)))
        return checked
    checked.rows = expected.rows
    for (topic, queue_id), run in expected.units.items():
        if not job.topics or topic in job.topics:
            units = job.store.queue(topic, queue_id)
            checked.units[topic, queue_id] = _compare_units(units, run, checked.findings)
    if job.index:
        checked.keys = _compare_keys(job, part, expected.keys, checked.findings)
    return checked


def _compare_units(units: QueueUnits, run: Any, findings: list[Finding]) -> int:
    """Return how many records have their right unit."""
    low, high = int(run["offset"].min()), int(run["offset"].max()) + 1
    if high - low > 4 * len(run) + _UNITS_AT_ONCE:  # a topic that was made again, or nonsense
        return sum(_compare_units(units, run[at : at + 1], findings) for at in range(len(run)))
    met = units.read(low, high)[run["offset"] - low]
    same = (
        (met["phy_offset"] == run["phy"])
        & (met["size"] == run["size"])
        & (met["tags_code"] == run["code"])
    )
    wrong = np.flatnonzero(~same)
    missing = (met["size"] == 0) | is_filler(met)
    findings += _unit_findings(units, "unit-missing", run, met, wrong[missing[wrong]])
    findings += _unit_findings(units, "unit-wrong", run, met, wrong[~missing[wrong]])
    return int(same.sum())


def _unit_findings(
    units: QueueUnits, kind: str, run: Any, met: Any, rows: Any
) -> Iterator[Finding]:
    for low, high in _limited(_runs(run["offset"][rows])):
        row = int(rows[low])
        found, wanted = _unit_text(met[row]), _run_text(run[row])
        yield Finding(
            kind,
            Severity.ERROR,
            f"met {found}, expected {wanted}",
            topic=units.topic,
            queue_id=units.queue_id,
            first=int(run["offset"][row]),
            last=int(run["offset"][rows[high - 1]]),
            count=high - low,
            evidence=evidence({"met": found, "expected": wanted}),
        )


def _compare_keys(job: CheckJob, part: ByteRange, keys: Any, findings: list[Finding]) -> int:
    """Return how many keys have their entry; entries may be there twice after a crash."""
    begins, ends = job.index[0][1].begin_log, job.index[-1][1].end_log
    last = part.end if job.closed else min(part.end, ends)
    keys = keys[(keys["phy"] >= begins) & (keys["phy"] < last)]
    met = _entries(job, part.start, part.end)
    wanted, there = _marks(keys, part.start), _marks(met, part.start)
    has = np.isin(wanted, there)
    findings += _key_findings("key-missing", keys[~has], "no entry", "an index entry")
    within = met["phy"] < last
    odd = met[within & ~np.isin(there, wanted)]
    findings += _key_findings("entry-wrong", odd, "an entry", "a record with such a key there")
    return int(has.sum())


def _entries(job: CheckJob, start: int, end: int) -> Any:
    found = [
        file.entries_of(header, start, end)
        for file, header in job.index
        if header.next_entry > 1 and header.begin_log < end and header.end_log >= start
    ]
    return np.concatenate(found) if found else np.zeros(0, ENTRY)


def _marks(entries: Any, start: int) -> Any:
    """Hash and place in one number; a range is far shorter than 2 ** 32 bytes."""
    return (entries["phy"].astype(np.int64) - start << 31) | entries["hash"].astype(np.int64)


def _key_findings(kind: str, entries: Any, met: str, expected: str) -> Iterator[Finding]:
    if len(entries) == 0:
        return
    first = entries[0]
    place = {"log_offset": int(first["phy"]), "key_hash": int(first["hash"])}
    text = (
        f"met {met} for the hash {place['key_hash']} and log offset {place['log_offset']},"
        f" expected {expected}"
    )
    yield Finding(kind, Severity.ERROR, text, count=len(entries), evidence=evidence(place))


def check_queue(job: CheckJob, queue: tuple[str, int, int]) -> Checked:
    """Look for units that lead to no record of their own.

    Args:
        job: the store.
        queue: topic, number, and how many of its records have their right unit. If there are no
            more units than that, each leads to a record of its own; else they are looked at.
    """
    topic, queue_id, matched = queue
    checked = Checked(f"{topic}-{queue_id}")
    units = job.store.queue(topic, queue_id)
    first, stop = units.first, units.written()
    dangling: list[int] = []
    count = 0
    for low in range(first, stop, _UNITS_AT_ONCE):
        met = units.read(low, min(low + _UNITS_AT_ONCE, stop))
        due = (met["size"] > 0) & ~is_filler(met) & (met["phy_offset"] >= job.place.min_offset)
        if not job.closed:
            due &= met["phy_offset"] < job.end
        count += int(due.sum())
    if count > matched:
        dangling = list(_dangling(job, units, first, stop))
        checked.findings += _dangling_findings(units, dangling)
    return checked


def _dangling(job: CheckJob, units: QueueUnits, first: int, stop: int) -> Iterator[int]:
    """Yield the offsets of units that do not lead to the head of a record of theirs."""
    with RecordHeads(job.place) as heads:
        for low in range(first, stop, _UNITS_AT_ONCE):
            met = units.read(low, min(low + _UNITS_AT_ONCE, stop))
            for at, (phy, size, _) in enumerate(met.tolist(), low):
                past = phy >= job.end and not job.closed
                if size <= 0 or size == FILLER_SIZE or phy < job.place.min_offset or past:
                    continue
                if not heads.has(phy, size, units.topic, units.queue_id, at, job.end):
                    yield at


def _dangling_findings(units: QueueUnits, offsets: list[int]) -> Iterator[Finding]:
    place = {"topic": units.topic, "queue_id": units.queue_id}
    for low, high in _limited(_runs(np.array(offsets, dtype=np.int64))):
        yield Finding(
            "unit-dangling",
            Severity.ERROR,
            "met a unit that leads to no record of this queue and offset",
            topic=units.topic,
            queue_id=units.queue_id,
            first=offsets[low],
            last=offsets[high - 1],
            count=high - low,
            evidence=evidence(place),
        )


def check_chains(job: CheckJob, number: int) -> Checked:
    """Check that the slots of an index file lead to all of its entries, newest first."""
    file, header = job.index[number]
    checked = Checked(file.path)
    newest = np.zeros(file.slots, np.int32)
    wrong = []
    for first, entries in file.chunks(header):
        previous = _previous(entries["hash"] % file.slots, first, newest)
        wrong.append(np.flatnonzero(previous != entries["previous"]) + first)
        checked.keys += len(entries)
    if wrong:
        lost = np.flatnonzero(newest != file.slot_values())
        checked.findings += _chain_findings(file, "entries", np.concatenate(wrong))
        checked.findings += _chain_findings(file, "slots", lost)
    return checked


def _previous(slots: Any, first: int, newest: Any) -> Any:
    """Return what entry each entry must lead to, and bring ``newest`` of each slot up to date.

    Args:
        slots: of some entries that follow each other.
        first: the number of the first of them.
        newest: by slot, the number of the newest entry before them.
    """
    order = np.argsort(slots, kind="stable")
    sorted_slots = slots[order]
    previous = newest[slots]
    follows = sorted_slots[1:] == sorted_slots[:-1]
    previous[order[1:][follows]] = order[:-1][follows] + first
    newest[slots] = np.arange(first, first + len(slots))  # of equal slots the last one stays
    return previous


def _chain_findings(file: IndexFile, what: str, numbers: Any) -> Iterator[Finding]:
    if len(numbers):
        place = {"file": file.path, what: int(numbers[0])}
        text = f"met {what} of {file.path} that do not lead to the entry before, from {numbers[0]}"
        yield Finding(
            "index-chain", Severity.ERROR, text, count=len(numbers), evidence=evidence(place)
        )


def _runs(offsets: Any) -> Iterator[tuple[int, int]]:
    """Where offsets follow each other."""
    if len(offsets) == 0:
        return
    breaks = (np.flatnonzero(np.diff(offsets) != 1) + 1).tolist()
    yield from zip([0, *breaks], [*breaks, len(offsets)], strict=True)


def _limited(runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The first runs, and all the others as one."""
    found = list(runs)
    yield from found[: FINDINGS_MAX - 1]
    if len(found) >= FINDINGS_MAX:
        yield found[FINDINGS_MAX - 1][0], found[-1][1]


def _unit_text(unit: Any) -> str:
    if unit["size"] == 0:
        return "no unit"
    if unit["size"] == FILLER_SIZE:
        return "a filler"
    return f"{int(unit['phy_offset'])}+{int(unit['size'])} code {int(unit['tags_code'])}"


def _run_text(row: Any) -> str:
    return f"{int(row['phy'])}+{int(row['size'])} code {int(row['code'])}"
