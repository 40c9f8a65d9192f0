"""The readable end of a log: the end of the last complete record.

A log may grow while it is read. Where the store's consume queues are known, it is read as far as
they lead: the broker writes a unit only behind the record. Where they are not, the log is walked
from its newest file that begins with a record. It ends where no whole record begins, none with the
right checksum, and none follows that is newer. Such a tail is not damage: it is not complete yet.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from cometmq.protocol.record import split_record
from cometmq.spark.batches import RecordDecoder
from cometmq.spark.columns import Ending
from cometmq.spark.logs.files import Log, LogFile
from cometmq.spark.logs.queue_files import Unit, last_unit
from cometmq.spark.logs.window import PROBE_BYTES, Window
from cometmq.spark.schema import CORE, chosen

_LOOK_AHEAD_BYTES = 4 * 1024 * 1024
_NO_TOPIC: frozenset[bytes] = frozenset()


class _End(NamedTuple):
    """Where the records of a file end."""

    base_offset: int
    """The file."""
    position: int = 0
    last_us: int = 0
    """When the last one was stored, in microseconds; 0 if there was none."""


class Follower:
    """Finds the readable end of one log again and again, and starts from the last result.

    Args:
        walk: whether to go by the records alone, whatever consume queues say.
    """

    def __init__(self, *, walk: bool = False) -> None:
        self._walk = walk
        self._written: dict[str, int] = {}
        self._known = _End(-1)

    def now(self, log: Log) -> int:
        """Return the physical offset up to which the log may be read now.

        The copy of a store may have units that were written after its log was copied.

        Raises:
            OSError: a file cannot be read.
        """
        unit = None if self._walk else last_unit(log.store, self._written)
        if unit is not None and unit.end <= log.min_offset:
            return log.min_offset
        return unit.end if unit is not None and _has_record(log, unit) else self._walked(log)

    @staticmethod
    def from_record(log: Log, start: int) -> int:
        """Return how far whole records go from the begin of one of them on."""
        file = log.file_at(start)
        while file is not None:
            end = _end_from(file, _End(file.base_offset, start - file.base_offset)).position
            start = file.base_offset + end
            file = log.file_at(start) if end == file.size else None
        return start

    def _walked(self, log: Log) -> int:
        for file in reversed(log.files):
            is_known = self._known.base_offset == file.base_offset
            end = _end_from(file, self._known if is_known else _End(file.base_offset))
            if end.position > 0:
                self._known = end
                return int(file.base_offset + end.position)
        return log.min_offset


def _has_record(log: Log, unit: Unit) -> bool:
    """Return whether the record that a unit leads to is in the log."""
    file = log.file_at(unit.log_offset)
    if file is None:
        return False
    position = unit.log_offset - file.base_offset
    with Window(file, PROBE_BYTES) as window:
        return window.begins_at(position) and window.record_size(position) == unit.size


def _end_from(file: LogFile, start: _End) -> _End:
    """Return where the records of a file end, from a place on where a record begins, or will."""
    with Window(file) as window:
        return _Walk(window).end_from(start)


class _Walk:
    """The records of one file, walked over without being decoded."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._file = window.file
        self._hopper = RecordDecoder((), broker_name=None)
        columns = chosen(CORE, ["store_timestamp", "phy_offset"])
        self._checker = RecordDecoder(columns, broker_name=None, crc=True, decompress=False)

    def end_from(self, start: _End) -> _End:
        """Return where the records of the file end."""
        _, position, last_us = start
        while True:
            before, position = self._hop(position)
            if position >= self._file.size:
                return start._replace(position=self._file.size, last_us=last_us)
            end, last_us = self._without_bad_tail(before, position, last_us)
            following = self._following(position, last_us)
            if following is None:
                return start._replace(position=end, last_us=last_us)
            position = following

    def _hop(self, position: int) -> tuple[int, int]:
        """Walk to where no record begins; also return where one began not far before."""
        window = self._window
        earlier = before = position
        while position < self._file.size and window.load(position, 1):
            earlier, before = before, position
            decoded = window.decode(self._hopper, position, self._file.size, _NO_TOPIC)
            position = decoded.position
            if decoded.ending is Ending.BLANK and window.is_filler(position):
                return earlier, self._file.size
            if decoded.ending is Ending.END or (
                decoded.ending is Ending.TORN and window.load_record(position)
            ):
                continue
            break
        return earlier, position

    def _without_bad_tail(self, position: int, stop: int, last_us: int) -> tuple[int, int]:
        """Return where those last records before ``stop`` begin that are all damaged.

        Also return when the record before them was stored.
        """
        bad = stop
        while position < stop:
            self._window.load(position, 1)
            decoded = self._window.decode(self._checker, position, stop)
            moved = decoded.position
            good = decoded.batch.num_rows
            if good and moved == stop and self._ends_in_zeros(decoded.batch):
                good -= 1
                moved = decoded.batch.column(1)[-1].as_py() - self._file.base_offset
            if good:
                bad, last_us = stop, decoded.batch.column(0)[good - 1].value
            if good < decoded.batch.num_rows or decoded.ending is Ending.BAD:
                bad = min(bad, moved)
                moved += max(self._window.record_size(moved), 1)
            elif moved == position and not self._window.load_record(position):
                break
            position = moved
        return bad, last_us

    def _ends_in_zeros(self, batch: pa.RecordBatch) -> bool:
        """Return whether the topic or the properties of a last record are not complete."""
        position = batch.column(1)[-1].as_py() - self._file.base_offset
        parts = split_record(self._window.data, position - self._window.start)
        return "\0" in parts.topic or parts.properties.endswith(b"\0")

    def _following(self, position: int, last_us: int) -> int | None:
        """Return where a newer record begins not far behind the end; left-overs are older.

        Damaged records may stand side by side, so the search goes on behind a damaged one.
        """
        window = self._window
        stop = min(position + _LOOK_AHEAD_BYTES, self._file.size)
        at = position
        while True:
            at = window.next_record(at + 1, stop)
            if at >= stop or window.is_filler(at):
                return None
            decoded = window.decode(self._checker, at, at + 1)
            if decoded.batch.num_rows:
                return at if decoded.batch.column(0)[0].value >= last_us else None
