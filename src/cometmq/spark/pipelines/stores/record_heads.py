"""Reads the heads of single records of a log, on a disk or in object storage.

The layout is that of `cometmq.protocol.record`.
"""

from __future__ import annotations

from cometmq.model.errors import CometError
from cometmq.protocol.record import decode_record
from cometmq.spark.logs.places import LogFile, LogPlace
from cometmq.spark.logs.storage import OpenFile

_RECORD_BYTES_MAX = 64 * 1024 * 1024


class RecordHeads:
    """Reads single records; closes its files in the end.

    Args:
        place: the log.
    """

    def __init__(self, place: LogPlace) -> None:
        self._place = place
        self._file: LogFile | None = None
        self._opened: OpenFile | None = None

    def __enter__(self) -> RecordHeads:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def has(
        self, log_offset: int, size: int, topic: str, queue_id: int, queue_offset: int, end: int
    ) -> bool:
        """Return whether the record of a queue and offset is at a place of the log."""
        file = self._place.file_at(log_offset)
        if file is None or log_offset + size > min(file.end_offset, end):
            return False
        if size > _RECORD_BYTES_MAX:
            return False
        data = bytearray(size)
        self._open(file).read_into(log_offset - file.base_offset, memoryview(data))
        try:
            record = decode_record(bytes(data), decompress=False)
        except CometError:
            return False
        met = (record.topic, record.queue_id, record.queue_offset, record.size_bytes)
        return met == (topic, queue_id, queue_offset, size) and record.log_offset == log_offset

    def _open(self, file: LogFile) -> OpenFile:
        if self._opened is None or file != self._file:
            self._close()
            self._file, self._opened = file, self._place.open(file)
        return self._opened

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None
