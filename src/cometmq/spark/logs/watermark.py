"""The readable end of a log: the end of the last complete record.

A log may grow while it is read. Where the store's consume queues are known, it is read as far as
they lead: the broker writes a unit only behind the record. Where they are not, the log is walked
from its newest file that begins with a record; it ends where no whole record begins, none with the
right checksum, and none follows that is newer. Such a tail is not damage: it is not there yet.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from cometmq.protocol.record import split_record
from cometmq.spark.batches import Decoded, RecordDecoder
from cometmq.spark.columns import Ending
from cometmq.spark.logs.places import LogFile, LogPlace
from cometmq.spark.logs.probe import Probe
from cometmq.spark.logs.queue_files import DispatchedEnd, Unit
from cometmq.spark.logs.resync import blank_size, next_record, record_size
from cometmq.spark.logs.windows import LOCAL_WINDOW_BYTES, REMOTE_WINDOW_BYTES, Window
from cometmq.spark.schema import CORE, chosen

_TIME_AND_PLACE = chosen(CORE, ["store_timestamp", "phy_offset"])
_LOOK_AHEAD_BYTES = 4 * 1024 * 1024
_NO_TOPIC: frozenset[bytes] = frozenset()


def watermark(place: LogPlace, *, walk: bool = False) -> int:
    """Return the log offset up to which a log may be read now.

    Args:
        place: the log.
        walk: whether to go by the records alone, whatever consume queues say.

    Raises:
        OSError: a file cannot be read.
    """
    return Follower(walk=walk).now(place)


def log_end(place: LogPlace, *, closed: bool = False) -> int:
    """Return the log offset up to which a log is to be read.

    The log of a store that was closed in order, or of one that ``closed`` says is not running, is
    read to its last record. Otherwise it is read as far as its queues lead.
    """
    if place.store is not None and not closed:
        storage, root = place.store
        closed = storage.entry(f"{root}/abort") is None
    return Follower().of_closed(place) if closed else watermark(place)


class _End(NamedTuple):
    """Where the records of a file end."""

    position: int
    last_us: int
    """When the last one was stored, in microseconds; 0 if there was none."""


class _Known(NamedTuple):
    """Where the records of a file ended when somebody looked."""

    base_offset: int
    end: _End


class Follower:
    """Asks for the watermark of one log again and again, and starts from the last answer.

    Args:
        walk: whether to go by the records alone.
    """

    def __init__(self, *, walk: bool = False) -> None:
        self._walk = walk
        self._dispatched: DispatchedEnd | None = None
        self._known: _Known | None = None

    def now(self, place: LogPlace) -> int:
        """Return the watermark of the log as ``place`` has it."""
        end = None if self._walk else self._dispatched_end(place)
        return self._walked(place) if end is None else end

    def of_closed(self, place: LogPlace) -> int:
        """Return where the last whole record ends of a log that nobody writes to.

        Records that no queue leads to follow the last one that a queue leads to.
        """
        unit = self._last_unit(place)
        if unit is None or not _is_there(place, unit):
            return self._walked(place)
        return self.from_record(place, unit.log_offset)

    def _dispatched_end(self, place: LogPlace) -> int | None:
        """Return where consume queues lead, None where there are none, or to no record.

        The copy of a store may have units that were written after its log was copied.
        """
        unit = self._last_unit(place)
        if unit is None:
            return None
        if unit.end <= place.min_offset:
            return place.min_offset
        return unit.end if _is_there(place, unit) else None

    def _last_unit(self, place: LogPlace) -> Unit | None:
        if place.store is None:
            return None
        if self._dispatched is None:
            self._dispatched = DispatchedEnd(*place.store)
        return self._dispatched.now()

    @staticmethod
    def from_record(place: LogPlace, start: int) -> int:
        """Return how far whole records go from the begin of one of them on."""
        file = place.file_at(start)
        while file is not None:
            with _Walk(place, file) as walk:
                end = walk.end_from(_End(start - file.base_offset, 0)).position
            start = file.base_offset + end
            file = place.file_at(start) if end == file.size else None
        return start

    def _walked(self, place: LogPlace) -> int:
        for file in reversed(place.files):
            with _Walk(place, file) as walk:
                known = self._known
                if known is None or known.base_offset != file.base_offset:
                    known = _Known(file.base_offset, _End(0, 0))
                end = walk.end_from(known.end)
                if end.position > 0:
                    self._known = known._replace(end=end)
                    return file.base_offset + end.position
        return place.min_offset


def _is_there(place: LogPlace, unit: Unit) -> bool:
    """Whether the record that a unit leads to is in the log."""
    file = place.file_at(unit.log_offset)
    if file is None:
        return False
    with Probe(place, file) as probe:
        return probe.size_at(unit.log_offset - file.base_offset) == unit.size


class _Walk:
    """The records of one file, walked over without being decoded."""

    def __init__(self, place: LogPlace, file: LogFile) -> None:
        self._file = file
        self._opened = place.open(file)
        size = REMOTE_WINDOW_BYTES if place.remote else LOCAL_WINDOW_BYTES
        self._window = Window(self._opened, file.size, size)
        self._hopper = RecordDecoder((), broker_name=None)
        self._checker = RecordDecoder(_TIME_AND_PLACE, broker_name=None, crc=True, decompress=False)

    def __enter__(self) -> _Walk:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def end_from(self, start: _End) -> _End:
        """Return where the records of the file end.

        Args:
            start: where a record begins, or will, and when the one before was stored.
        """
        position, last_us = start
        while True:
            before, position = self._hop(position)
            if position >= self._file.size:
                return _End(self._file.size, last_us)
            end = self._without_bad_tail(before, position, last_us)
            following = self._following(position, end.last_us)
            if following is None:
                return end
            position, last_us = following, end.last_us

    def _hop(self, position: int) -> tuple[int, int]:
        """Walk to where no record begins; also return where one began not far before."""
        window = self._window
        earlier = before = position
        while position < self._file.size:
            window.move(position)
            earlier, before = before, position
            decoded = self._decode(self._hopper, position, self._file.size)
            position = window.start + decoded.position
            if decoded.ending is Ending.BLANK and self._is_last_blank(position):
                return earlier, self._file.size
            if decoded.ending not in (Ending.END, Ending.TORN):
                break
            if position == before and not self._take_long(position):
                break
        return earlier, position

    def _is_last_blank(self, position: int) -> bool:
        return blank_size(self._window, position) == self._file.size - position

    def _take_long(self, position: int) -> bool:
        """Load a record that is longer than the window; False if the file does not hold it."""
        size = record_size(self._window, position)
        if size <= len(self._window.data) or position + size > self._file.size:
            return False
        self._window.lengthen(size)
        return True

    def _decode(self, decoder: RecordDecoder, position: int, stop: int) -> Decoded:
        window = self._window
        return decoder.batch(
            window.data,
            position - window.start,
            stop - window.start,
            topics=_NO_TOPIC if decoder is self._hopper else None,
            log_base=self._file.base_offset + window.start,
        )

    def _without_bad_tail(self, position: int, stop: int, last_us: int) -> _End:
        """Return where those last records before ``stop`` begin that are all damaged."""
        bad = stop
        while position < stop:
            self._window.move(position)
            decoded = self._decode(self._checker, position, stop)
            moved = self._window.start + decoded.position
            good = decoded.batch.num_rows
            if good and moved == stop and self._ends_in_zeros(decoded.batch):
                good -= 1
                moved = decoded.batch.column(1)[-1].as_py() - self._file.base_offset
            if good:
                bad, last_us = stop, decoded.batch.column(0)[good - 1].value
            if good < decoded.batch.num_rows or decoded.ending is Ending.BAD:
                bad = min(bad, moved)
                moved += max(record_size(self._window, moved), 1)
            elif moved == position:
                break
            position = moved
        return _End(bad, last_us)

    def _ends_in_zeros(self, batch: pa.RecordBatch) -> bool:
        """Whether the topic or the properties of a last record are not all there."""
        position = batch.column(1)[-1].as_py() - self._file.base_offset
        parts = split_record(self._window.data, position - self._window.start)
        return "\0" in parts.topic or parts.properties.endswith(b"\0")

    def _following(self, position: int, last_us: int) -> int | None:
        """Return where a newer record begins not far behind the end; left-overs are older.

        Damaged records may stand side by side, so the search goes on behind a damaged one.
        """
        stop = min(position + _LOOK_AHEAD_BYTES, self._file.size)
        at = position
        while True:
            at = next_record(self._window, self._file.base_offset, self._file.size, at + 1, stop)
            if at >= stop or self._is_last_blank(at):
                return None
            decoded = self._decode(self._checker, at, at + 1)
            if decoded.batch.num_rows:
                return at if decoded.batch.column(0)[0].value >= last_us else None
