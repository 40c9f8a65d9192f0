"""Reads a range of a log as Arrow batches, with the same records at every attempt.

A range was planned to begin and to end where records do. Where it does not, either the log was
written anew since, or a body was taken for records; both are errors, and neither costs rows in
silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from cometmq.spark.batches import Decoded, RecordDecoder
from cometmq.spark.columns import Ending
from cometmq.spark.errors import BadRecordError, DataLossError
from cometmq.spark.logs.places import LogFile, LogPlace
from cometmq.spark.logs.ranges import ByteRange
from cometmq.spark.logs.resync import blank_size, next_record, record_size
from cometmq.spark.logs.windows import LOCAL_WINDOW_BYTES, REMOTE_WINDOW_BYTES, Window

_LAST_RECORD_BYTES = 64 * 1024
"""What is read behind a range at once, for its last record, which begins in it."""


@dataclass
class Damage:
    """Bytes of a log that are no record, and were passed over."""

    range: ByteRange
    problem: str


@dataclass
class Reading:
    """How to read, and what was met."""

    decoder: RecordDecoder
    topics: frozenset[bytes] | None = None
    """Topics to take, as UTF-8; None for all."""
    permissive: bool = False
    """Whether damage is passed over and noted, instead of ending the reading."""
    exact: bool = True
    """Whether records are known to begin where the range begins and ends; otherwise it begins with
    the first one in it, and ends with the last."""
    window_bytes: int | None = None
    """How much is read at once; what suits the storage without it."""
    damage: list[Damage] = field(default_factory=list)


def read_range(
    place: LogPlace, part: ByteRange, how: Reading | RecordDecoder
) -> Iterator[pa.RecordBatch]:
    """Yield the records that begin in a range, in the order of the log.

    Args:
        place: the log.
        part: the range, which the files must hold.
        how: the decoder, or that and more.

    Yields:
        ``pyarrow.RecordBatch``; in the permissive case an entry in ``how.damage`` says what was
        passed over since the last one.

    Raises:
        BadRecordError: what stands in the range is no record; all records before it were yielded.
        DataLossError: a file that holds a part of the range is gone.
    """
    reading = how if isinstance(how, Reading) else Reading(how)
    at = part.start
    while at < part.end:
        file = place.file_at(at)
        if file is None:
            raise DataLossError(f"{part}: no file holds byte {at}")
        stop = min(part.end, file.end_offset)
        yield from _FileReading(place, file, part, reading).batches(
            at - file.base_offset, stop - file.base_offset
        )
        at = stop


class _FileReading:
    """The part of a range that is in one file."""

    def __init__(self, place: LogPlace, file: LogFile, part: ByteRange, reading: Reading) -> None:
        self._place = place
        self._file = file
        self._part = part
        self._reading = reading

    def batches(self, position: int, stop: int) -> Iterator[pa.RecordBatch]:
        size = self._reading.window_bytes
        if size is None:
            most = REMOTE_WINDOW_BYTES if self._place.remote else LOCAL_WINDOW_BYTES
            size = min(most, stop - position + _LAST_RECORD_BYTES)
        try:
            opened = self._place.open(self._file)
        except FileNotFoundError:
            raise DataLossError(f"{self._part}: {self._file.path} was deleted") from None
        try:
            window = Window(opened, self._file.size, size)
            window.move(position)
            position = self._first(window, position, stop)
            yield from self._walk(window, position, stop)
        finally:
            opened.close()

    def _first(self, window: Window, position: int, stop: int) -> int:
        """Return where the first record begins, which may belong to a range cut anywhere."""
        if position == 0:
            return 0
        found = self._next(window, position, stop)
        begin = self._file.base_offset + position
        if not self._reading.exact or begin != self._part.start or found == position:
            return found
        problem = "something else where a record began before"
        if not self._reading.permissive:
            raise DataLossError(
                f"{self._part}: met {problem}: the log was truncated and rewritten, or is damaged"
            )
        passed = ByteRange(self._place.name, begin, self._file.base_offset + found)
        self._reading.damage.append(Damage(passed, problem))
        return found

    def _check_end(self, position: int, stop: int) -> None:
        """Raise BadRecordError if the last record goes on behind the range's end."""
        end = self._file.base_offset + stop
        if self._reading.exact and position > stop and end == self._part.end:
            raise BadRecordError(
                f"{self._part}: the record before its end is {position - stop} bytes longer, so the"
                " range ends inside a body that looks like a record; set maxPartitionBytes to the"
                " segment size or more"
            )

    def _walk(self, window: Window, position: int, stop: int) -> Iterator[pa.RecordBatch]:
        while position < stop:
            if not window.holds(position, 1):
                window.move(position)
                self._check_not_cut(window)
            decoded = self._decode(window, position, stop)
            if decoded.batch.num_rows:
                yield decoded.batch
            position = window.start + decoded.position
            if decoded.ending in (Ending.FULL, Ending.END):
                continue
            if decoded.ending is Ending.BLANK and blank_size(window, position) == (
                self._file.size - position
            ):
                return
            if decoded.ending is Ending.TORN and self._load_more(window, position):
                continue
            position = self._pass_over(window, position, stop, decoded)
        self._check_end(position, stop)

    def _check_not_cut(self, window: Window) -> None:
        if not window.data:
            raise DataLossError(
                f"{self._part}: {self._file.path} ends at byte {window.start}, expected"
                f" {self._file.size} bytes, as it had when the reading was planned"
            )

    def _decode(self, window: Window, position: int, stop: int) -> Decoded:
        return self._reading.decoder.batch(
            window.data,
            position - window.start,
            stop - window.start,
            topics=self._reading.topics,
            log_base=self._file.base_offset + window.start,
        )

    def _load_more(self, window: Window, position: int) -> bool:
        """Read the whole of a record that the window holds a part of; False if the file ends."""
        if window.reaches_file_end():
            return False
        if not window.holds(position, 8):
            window.move(position)
        size = record_size(window, position)
        if position + size > self._file.size:
            return False
        window.move(position, size)
        return window.holds(position, max(size, 1))

    def _pass_over(self, window: Window, position: int, stop: int, decoded: Decoded) -> int:
        """Return where to go on behind what is no record, unless that is an error."""
        problem = decoded.problem or _PROBLEMS[decoded.ending]
        base = self._file.base_offset
        if not self._reading.permissive:
            raise BadRecordError(
                f"{self._part}: met {problem} at byte {position} of {self._file.path} (log offset"
                f" {base + position}), expected a record; badRecords=permissive continues after it"
            )
        following = self._next(window, position + 1, stop)
        passed = ByteRange(self._place.name, base + position, base + following)
        self._reading.damage.append(Damage(passed, problem))
        return following

    def _next(self, window: Window, position: int, stop: int) -> int:
        return next_record(window, self._file.base_offset, self._file.size, position, stop)


_PROBLEMS = {
    Ending.BLANK: "a filler that does not end with the file",
    Ending.ZERO: "zeros",
    Ending.TORN: "a record that is longer than the rest of the file",
    Ending.BAD: "no record",
}
