"""Finds the position in a log at which a time begins, and the store time of a last record.

Store times grow with the physical offset, because both are given under one lock. Where a broker's
clock was set back, the found position is one of several. Files and bytes are searched by halving.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial

from cometmq.spark.batches import RecordDecoder
from cometmq.spark.logs.files import Log, LogFile
from cometmq.spark.logs.window import PROBE_BYTES, Window
from cometmq.spark.schema import CORE, chosen

_LOOK_BYTES = 4 * 1024 * 1024
_TIME = chosen(CORE, ["store_timestamp"])


def at_time(log: Log, time_ms: int, end: int) -> int | None:
    """Return the physical offset of the first record stored at a time or later, None for none.

    Args:
        log: the log.
        time_ms: the time, in ms since 1970.
        end: how far the log may be read.
    """

    def begins_late(file: LogFile) -> bool:
        stop = min(file.size, end - file.base_offset, _LOOK_BYTES)
        with Window(file, PROBE_BYTES) as window:
            return _is_late(window, stop, time_ms, 0)

    number = bisect_left(log.files, True, key=begins_late)
    for file in log.files[max(number - 1, 0) : number + 1]:
        stop = min(end, file.end_offset) - file.base_offset
        with Window(file, PROBE_BYTES) as window:
            is_late = partial(_is_late, window, stop, time_ms)
            found = window.next_record(bisect_left(range(max(stop, 0)), True, key=is_late), stop)
            if found < stop and window.store_time_ms(found) is not None:
                return file.base_offset + found
    return None


def _is_late(window: Window, stop: int, time_ms: int, position: int) -> bool:
    """Return whether the next record was stored at a time or later, or there is none."""
    at = window.next_record(position, stop)
    stored_ms = window.store_time_ms(at) if at < stop else None
    return stored_ms is None or stored_ms >= time_ms


def oldest_stored(log: Log) -> int | None:
    """Return the store time in ms of the oldest record, None if there is none."""
    for file in log.files:
        with Window(file, PROBE_BYTES) as window:
            at = window.next_record(0, file.size)
            if at < file.size and (stored_ms := window.store_time_ms(at)) is not None:
                return stored_ms
    return None


def stored_before(log: Log, end: int) -> int | None:
    """Return the store time in ms of the last record before a physical offset.

    It is None if no record is before, or if the file of that record is gone.

    Args:
        log: the log.
        end: where a record ends.
    """
    for file in reversed(log.files):
        if file.base_offset >= end:
            continue
        if file.end_offset < end:  # a file is missing in between
            return None
        stop, back = end - file.base_offset, PROBE_BYTES
        while True:
            start = max(stop - back, 0)
            with Window(file, stop - start) as window:
                stored_ms = _last_stored(window, start, stop)
            if stored_ms is not None:
                return stored_ms
            if start == 0:
                break
            back *= 8
        end = file.base_offset
    return None


def _last_stored(window: Window, start: int, stop: int) -> int | None:
    """Return the store time of the last record that begins between two positions."""
    decoder = RecordDecoder(_TIME, broker_name=None)
    stored_ms = None
    at = window.next_record(start, stop)
    while at < stop:
        decoded = window.decode(decoder, at, stop)
        if decoded.batch.num_rows:
            stored_ms = decoded.batch.column(0)[-1].value // 1000
        at = decoded.position if decoded.position > at else window.next_record(at + 1, stop)
    return stored_ms


def boundary(log: Log, offset: int, end: int) -> int:
    """Return the physical offset of the first record or filler at an offset or after it.

    Args:
        log: the log.
        offset: any physical offset.
        end: what is returned if none begins before.
    """
    while offset < end:
        file = log.file_at(offset)
        if file is None:
            later = (file.base_offset for file in log.files if file.base_offset > offset)
            return min(end, next(later, end))
        stop = min(end, file.end_offset) - file.base_offset
        with Window(file, PROBE_BYTES) as window:
            found = window.next_record(offset - file.base_offset, stop)
        if found < stop:
            return file.base_offset + found
        offset = file.base_offset + stop
    return end
