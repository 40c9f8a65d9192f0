"""Reads a range of a log as Arrow batches, with the same records at every attempt.

A range was planned to begin and to end where records do. Where it does not, either the log was
rewritten since, or a body was taken for records. Both are errors, so no row is lost silently.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from cometmq.spark.batches import RecordDecoder
from cometmq.spark.columns import Ending
from cometmq.spark.errors import BadRecordError, DataLossError
from cometmq.spark.logs.files import Log, LogFile, is_remote
from cometmq.spark.logs.ranges import ByteRange
from cometmq.spark.logs.window import WINDOW_BYTES, Window

_LAST_RECORD_BYTES = 64 * 1024
"""What is read behind a range at once, for its last record, which begins in it."""
_PROBLEMS = {
    Ending.BLANK: "a filler that does not end with the file",
    Ending.ZERO: "zeros",
    Ending.TORN: "a record that is longer than the rest of the file",
    Ending.BAD: "no record",
}


@dataclass
class Damage:
    """Bytes of a log that are no record, and were passed over."""

    range: ByteRange
    problem: str


@dataclass
class Reading:
    """How to read, and the damage that was met."""

    decoder: RecordDecoder
    topics: frozenset[bytes] | None = None
    """Topics to take, as UTF-8; None for all."""
    permissive: bool = False
    """Whether damage is passed over and noted, instead of ending the reading."""
    damage: list[Damage] = field(default_factory=list)


def read_range(log: Log, part: ByteRange, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yield the records that begin in a range, in the order of the log.

    Args:
        log: the log.
        part: the range, which the files must hold.
        reading: how to read; in the permissive case an entry in its ``damage`` says what was passed
            over since the last batch.

    Raises:
        BadRecordError: bytes of the range are no record; all records before them were yielded.
        DataLossError: a file that holds a part of the range is gone.
    """
    at = part.start
    while at < part.end:
        file = log.file_at(at)
        if file is None:
            raise DataLossError(f"{part}: no file holds byte {at}")
        stop = min(part.end, file.end_offset)
        yield from _FileReading(file, part, reading).batches(
            at - file.base_offset, stop - file.base_offset
        )
        at = stop


class _FileReading:
    """The part of a range that is in one file."""

    def __init__(self, file: LogFile, part: ByteRange, reading: Reading) -> None:
        self._file = file
        self._part = part
        self._reading = reading

    def batches(self, position: int, stop: int) -> Iterator[pa.RecordBatch]:
        most = WINDOW_BYTES[is_remote(self._file.filesystem)]
        try:
            window = Window(self._file, min(most, stop - position + _LAST_RECORD_BYTES))
        except FileNotFoundError:
            raise DataLossError(f"{self._part}: {self._file.path} was deleted") from None
        with window:
            position = self._first(window, position, stop)
            yield from self._walk(window, position, stop)

    def _first(self, window: Window, position: int, stop: int) -> int:
        """Return where the first record begins."""
        if position == 0 or (found := window.next_record(position, stop)) == position:
            return position
        problem = "something else where a record began before"
        if not self._reading.permissive:
            raise DataLossError(
                f"{self._part}: met {problem}: the log was truncated and rewritten, or is damaged"
            )
        self._note(position, found, problem)
        return found

    def _walk(self, window: Window, position: int, stop: int) -> Iterator[pa.RecordBatch]:
        while position < stop:
            if not window.load(position, 1):
                raise DataLossError(
                    f"{self._part}: {self._file.path} ends at byte {position}, expected"
                    f" {self._file.size} bytes, as it had when the reading was planned"
                )
            decoded = window.decode(self._reading.decoder, position, stop, self._reading.topics)
            if decoded.batch.num_rows:
                yield decoded.batch
            position = decoded.position
            if decoded.ending in (Ending.FULL, Ending.END):
                continue
            if decoded.ending is Ending.BLANK and window.is_filler(position):
                return
            if decoded.ending is Ending.TORN and window.load_record(position):
                continue
            position = self._pass_over(
                window, position, stop, decoded.problem or _PROBLEMS[decoded.ending]
            )
        if position > stop and self._file.base_offset + stop == self._part.end:
            raise BadRecordError(
                f"{self._part}: the record before its end is {position - stop} bytes longer, so the"
                " range ends inside a body that looks like a record; set maxPartitionBytes to the"
                " segment size or more"
            )

    def _pass_over(self, window: Window, position: int, stop: int, problem: str) -> int:
        """Return where to go on behind bytes that are no record, unless they are an error."""
        if not self._reading.permissive:
            raise BadRecordError(
                f"{self._part}: met {problem} at byte {position} of {self._file.path} (log offset"
                f" {self._file.base_offset + position}), expected a record; badRecords=permissive"
                " continues after it"
            )
        following = window.next_record(position + 1, stop)
        self._note(position, following, problem)
        return following

    def _note(self, start: int, end: int, problem: str) -> None:
        base = self._file.base_offset
        passed = ByteRange(self._part.broker, base + start, base + end)
        self._reading.damage.append(Damage(passed, problem))
