"""Finds the position in a log at which a time begins, and the store time of a last record.

Store times grow with the log offset, for both are given under one lock; where a broker's clock was
set back, the place found is one of several. Files and bytes are searched by halving.
"""

from __future__ import annotations

import contextlib

from cometmq.spark.batches import RecordDecoder
from cometmq.spark.logs.places import LogFile, LogPlace
from cometmq.spark.logs.probe import Probe
from cometmq.spark.logs.resync import next_record
from cometmq.spark.logs.windows import Window
from cometmq.spark.schema import CORE, chosen

_LOOK_BYTES = 4 * 1024 * 1024
_BACK_BYTES = 64 * 1024
_TIME = chosen(CORE, ["store_timestamp"])


def at_time(place: LogPlace, time_ms: int, end: int) -> int | None:
    """Return the log offset of the first record stored at a time or later, None if none was.

    Args:
        place: the log.
        time_ms: the time, in ms since 1970.
        end: how far the log may be read.
    """
    low, high = 0, len(place.files)
    while low < high:
        middle = (low + high) // 2
        if _begins_before(place, place.files[middle], time_ms, end):
            low = middle + 1
        else:
            high = middle
    for file in place.files[max(low - 1, 0) : low + 1]:
        found = _in_file(place, file, time_ms, min(end, file.end_offset) - file.base_offset)
        if found is not None:
            return file.base_offset + found
    return None


def oldest_stored(place: LogPlace) -> int | None:
    """Return the store time in ms of the oldest record, None if there is none."""
    for file in place.files:
        with Probe(place, file) as probe:
            at = probe.next(0, file.size)
            stored_ms = probe.store_time_ms(at) if at < file.size else None
        if stored_ms is not None:
            return stored_ms
    return None


def stored_before(place: LogPlace, end: int) -> int | None:
    """Return the store time in ms of the last record before a log offset.

    It is None if no record is before, or if the file of that record is gone.

    Args:
        place: the log.
        end: where a record ends.
    """
    for file in reversed(place.files):
        if file.base_offset >= end:
            continue
        if file.end_offset < end:  # a file is missing in between
            return None
        stored_ms = _last_stored(place, file, end - file.base_offset)
        if stored_ms is not None:
            return stored_ms
        end = file.base_offset
    return None


def _last_stored(place: LogPlace, file: LogFile, stop: int) -> int | None:
    back = _BACK_BYTES
    with contextlib.closing(place.open(file)) as opened:
        while True:
            start = max(stop - back, 0)
            window = Window(opened, file.size, stop - start)
            window.move(start)
            stored_ms = _last_in(window, file, start, stop)
            if stored_ms is not None or start == 0:
                return stored_ms
            back *= 8


def _last_in(window: Window, file: LogFile, start: int, stop: int) -> int | None:
    """Return the store time of the last record that begins between two positions."""
    decoder = RecordDecoder(_TIME, broker_name=None)
    stored_ms = None
    at = next_record(window, file.base_offset, file.size, start, stop)
    while at < stop:
        base = window.start
        decoded = decoder.batch(
            window.data, at - base, stop - base, log_base=file.base_offset + base
        )
        if decoded.batch.num_rows:
            stored_ms = decoded.batch.column(0)[-1].value // 1000
        moved = base + decoded.position
        if moved == at:
            at = next_record(window, file.base_offset, file.size, at + 1, stop)
        else:
            at = moved
    return stored_ms


def boundary(place: LogPlace, offset: int, end: int) -> int:
    """Return the log offset of the first record or blank at an offset or after it.

    Args:
        place: the log.
        offset: any log offset.
        end: what is returned if none begins before.
    """
    while offset < end:
        file = place.file_at(offset)
        if file is None:
            return min(end, max(offset, _next_base(place, offset, end)))
        stop = min(end, file.end_offset) - file.base_offset
        with Probe(place, file) as probe:
            found = probe.next(offset - file.base_offset, stop)
        if found < stop:
            return file.base_offset + found
        offset = file.base_offset + stop
    return end


def _next_base(place: LogPlace, offset: int, end: int) -> int:
    return min((file.base_offset for file in place.files if file.base_offset > offset), default=end)


def _begins_before(place: LogPlace, file: LogFile, time_ms: int, end: int) -> bool:
    if file.base_offset >= end:
        return False
    with Probe(place, file) as probe:
        stop = min(file.size, end - file.base_offset, _LOOK_BYTES)
        at = probe.next(0, stop)
        stored_ms = probe.store_time_ms(at) if at < stop else None
    return stored_ms is not None and stored_ms < time_ms


def _in_file(place: LogPlace, file: LogFile, time_ms: int, stop: int) -> int | None:
    """Return the position of the first record of a file that is not older than a time."""
    with Probe(place, file) as probe:
        low, high = 0, max(stop, 0)
        while low < high:
            middle = (low + high) // 2
            at = probe.next(middle, high)
            stored_ms = probe.store_time_ms(at) if at < high else None
            if stored_ms is not None and stored_ms < time_ms:
                low = at + 1
            else:
                high = middle
        at = probe.next(low, max(stop, 0)) if stop > 0 else stop
        return at if at < stop and probe.store_time_ms(at) is not None else None
