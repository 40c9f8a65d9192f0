"""Checks that a log is the one that an archive's manifest is about.

The manifest knows a log by the broker's name. A store that was made anew under the same name begins
at byte 0 again and holds other records, which would count as archived. So a log is refused if it
begins or ends before what the manifest says, or if the newest archived ranges that it still holds
have other rows, or begin with another record, than the manifest says. The record matters where only
some topics are archived: a range may have no rows then.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Collection, Sequence

import pyarrow as pa

from cometmq.spark.batches import RecordDecoder
from cometmq.spark.errors import BadRecordError, DataLossError, PlaceError
from cometmq.spark.logs import (
    ByteRange,
    Follower,
    LogPlace,
    Reading,
    log_end,
    missing,
    open_place,
    read_range,
)
from cometmq.spark.logs.probe import Probe
from cometmq.spark.pipelines.archive.manifest import (
    Entry,
    FirstRecord,
    Manifest,
    QueueRows,
    marked_to,
)
from cometmq.spark.pipelines.archive.parquet import parts_of
from cometmq.spark.pipelines.running.folders import open_folder
from cometmq.spark.schema import CORE, chosen

log = logging.getLogger(__name__)

_COLUMNS = chosen(CORE, ["topic", "queue_id", "queue_offset", "store_timestamp"])
_ADVICE = (
    "a store that was made anew is another log: archive it into another folder or under another"
    " broker_name; a replica that is behind its master: start again when it has caught up"
)


def check_log(
    place: LogPlace,
    end: int,
    entries: Sequence[Entry],
    *,
    planned: Sequence[ByteRange] = (),
    topics: Collection[str] = (),
) -> None:
    """Refuse a log that is not the one that was archived.

    Args:
        place: the log.
        end: how far it may be read; less than the queues lead to is no fault while records follow.
        entries: the manifest's, of this broker, in the order of the log.
        planned: ranges that a run set out to archive.
        topics: the topics that are archived; all if empty.

    Raises:
        PlaceError: it is another log; says what the manifest has and what the log holds.
    """
    ranges = [*(entry.range for entry in entries), *planned]
    if not ranges:
        return
    first, last = min(part.start for part in ranges), max(part.end for part in ranges)
    if end < last:
        end = max(end, Follower().of_closed(place))
    if place.min_offset < first or end < last:
        raise _another(
            place,
            f"the manifest has bytes {first} to {last},"
            f" the log holds bytes {place.min_offset} to {end}",
        )
    newest = entries[::-1]
    with_rows = next((each for each in newest if each.rows and _holds(place, each)), None)
    with_record = next((each for each in newest if each.first_record and _holds(place, each)), None)
    if with_rows is not None:
        _check_rows(place, with_rows, topics)
    if with_record is not None:
        _check_first_record(place, with_record)
    if not with_rows and not with_record and any(_holds(place, each) for each in newest):
        log.warning(
            "the log cannot be compared with the archive broker=%s: the manifest has no rows and no"
            " first records of the ranges, which older versions archived",
            place.name,
        )


def verified_to(archive: str, store: str, *, broker_name: str = "", closed: bool = False) -> int:
    """Return the log offset below which a log is archived and was compared with the archive.

    Args:
        archive: the archive's folder.
        store: the log: a store's directory, its ``commitlog``, or an address.
        broker_name: the broker's name, as the archive has it.
        closed: whether the broker is not running although it was not stopped in order.

    Raises:
        PlaceError: there is no archive, or the log is not the one that was archived.
    """
    manifest = Manifest(open_folder(archive))
    topics = manifest.kind().get("topics", ())
    place = open_place(store, broker=broker_name or None)
    entries = manifest.entries(place.name)
    check_log(place, log_end(place, closed=closed), entries, topics=topics)
    return marked_to(entries, place.min_offset)


def first_record(place: LogPlace, start: int) -> FirstRecord | None:
    """Return what identifies the record at a byte of a log, None if no record begins there.

    Raises:
        DataLossError: the file was deleted since.
    """
    file = place.file_at(start)
    if file is None:
        return None
    position = start - file.base_offset
    try:
        probe = Probe(place, file)
    except FileNotFoundError:
        raise DataLossError(f"log of {place.name}: {file.path} was deleted") from None
    with probe:
        record = probe.record_at(position)
        store_ms = None if record is None else probe.store_time_ms(position)
        if record is None or store_ms is None:
            return None
        return FirstRecord(len(record), store_ms, zlib.crc32(record))


def _holds(place: LogPlace, entry: Entry) -> bool:
    return not missing(place, entry.start, entry.end)


def _check_rows(place: LogPlace, entry: Entry, topics: Collection[str]) -> None:
    wanted = frozenset(topic.encode() for topic in topics) or None
    decoder = RecordDecoder(_COLUMNS, broker_name=None, decompress=False)
    reading = Reading(decoder, topics=wanted)
    try:
        batches = list(read_range(place, entry.range, reading))
    except (BadRecordError, DataLossError) as problem:
        raise _another(place, f"the manifest has rows of {entry.range}: {problem}") from problem
    _, queues = parts_of(pa.Table.from_batches(batches, schema=decoder.schema))
    if tuple(queues) != entry.queues:
        raise _another(
            place,
            f"in bytes {entry.start} to {entry.end}, the manifest has {_shown(entry.queues)},"
            f" the log holds {_shown(queues)}",
        )


def _check_first_record(place: LogPlace, entry: Entry) -> None:
    try:
        met = first_record(place, entry.start)
    except DataLossError as problem:
        raise _another(
            place, f"the manifest has a record at byte {entry.start}: {problem}"
        ) from problem
    if met != entry.first_record:
        raise _another(
            place,
            f"at byte {entry.start}, the manifest has {_shown_record(entry.first_record)},"
            f" the log holds {_shown_record(met)}",
        )


def _shown_record(record: FirstRecord | None) -> str:
    if record is None:
        return "no record"
    return (
        f"a record of {record.bytes} bytes, stored at {record.store_ms} ms, with CRC-32"
        f" {record.crc:08x}"
    )


def _shown(queues: Sequence[QueueRows]) -> str:
    if not queues:
        return "no rows"
    rows = sum(queue.rows for queue in queues)
    times = f"{min(q.min_store_ms for q in queues)} to {max(q.max_store_ms for q in queues)} ms"
    return f"{rows} rows of {len(queues)} queues, stored at {times}"


def _another(place: LogPlace, met: str) -> PlaceError:
    where = ", ".join(place.given)
    return PlaceError(f"log of {place.name} at {where} is not the archived one: {met}; {_ADVICE}")
