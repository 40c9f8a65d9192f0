"""The checkpoint: which parts of the store are on disk.

    physic:i64 logics:i64 index:i64 master_flushed:i64 confirm:i64 zeros, 4096 bytes in all
    at byte 512, if CometMQ wrote the file last:
    mark:8 physic:i64 logics:i64 index:i64 log_offset:i64 queues_offset:i64 queues_end:i64
    index_name:i64 index_entries:i64 index_offset:i64 crc:u32

The first part is RocketMQ's, with store times; recovery from it starts at the beginning of a file.
The second part is CometMQ's, with exact offsets. It repeats the times, so that it is ignored if
RocketMQ has changed them since. If only one bit differs, the disk has changed it, and it is
repaired. Each part is inside one sector, which a disk writes as a whole.

Source: StoreCheckpoint, RocketMQ 5.3. A value is set here only after the sync that makes it true.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from zlib import crc32

from cometmq.system.files import Files

_TIMES = Struct(">5q")
_POSITION = Struct(">8s9q")
_CRC = Struct(">I")
_POSITION_AT = 512
_MARK = b"COMETMQ1"
_FILE_BYTES = 4096
_MARGIN_MS = 3000


@dataclass(frozen=True, slots=True)
class Position:
    """The parts of the store that are on disk; each offset is the beginning of a record."""

    log_offset: int = 0
    """All records before it are on disk."""
    queues_offset: int = 0
    """The units of all records before it are on disk; at most ``log_offset``."""
    queues_end: int = -1
    """The end of the newest record with a unit, if the store was closed; else -1."""
    index_name: int = 0
    """The name of the newest index file; 0 for none. Older files are on disk as a whole."""
    index_entries: int = 0
    """The number of the next entry of that file; all before it are on disk."""
    index_offset: int = 0
    """The keys of all records before it are on disk."""


@dataclass(slots=True)
class Checkpoint:
    """Store times in ms since 1970, 0 for never, and exact offsets."""

    physic_ms: int = 0
    """The commit log is on disk up to this store time."""
    logics_ms: int = 0
    """The consume queues are on disk up to this store time."""
    index_ms: int = 0
    """The full index files are on disk up to this store time."""
    master_flushed: int = 0
    confirm: int = 0
    position: Position | None = None
    """None if RocketMQ wrote the checkpoint last."""

    @property
    def min_ms(self) -> int:
        """Return the store time up to which log and queues are complete."""
        return max(0, min(self.physic_ms, self.logics_ms) - _MARGIN_MS)

    @property
    def min_index_ms(self) -> int:
        """Return the store time up to which log, queues and index are complete."""
        return min(self.min_ms, self.index_ms)

    def encode(self) -> bytes:
        """Return the file's content."""
        times = _TIMES.pack(
            self.physic_ms, self.logics_ms, self.index_ms, self.master_flushed, self.confirm
        )
        return (times.ljust(_POSITION_AT, b"\0") + self._encoded_position()).ljust(
            _FILE_BYTES, b"\0"
        )

    def _encoded_position(self) -> bytes:
        at = self.position
        if at is None:
            return b""
        data = _POSITION.pack(
            *(_MARK, self.physic_ms, self.logics_ms, self.index_ms),
            *(at.log_offset, at.queues_offset, at.queues_end),
            *(at.index_name, at.index_entries, at.index_offset),
        )
        return data + _CRC.pack(crc32(data))

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """Return the content of a file; fields missing in a short file are 0."""
        checkpoint = cls(*_TIMES.unpack_from(data[: _TIMES.size].ljust(_TIMES.size, b"\0")))
        part = data[_POSITION_AT : _POSITION_AT + _POSITION.size + _CRC.size]
        if len(part) == _POSITION.size + _CRC.size:
            checkpoint.position = checkpoint._decoded_position(part)
        return checkpoint

    def _decoded_position(self, part: bytes) -> Position | None:
        mark, *numbers = _POSITION.unpack_from(part)
        (crc,) = _CRC.unpack_from(part, _POSITION.size)
        times = [self.physic_ms, self.logics_ms, self.index_ms]
        if mark != _MARK or crc != crc32(part[: _POSITION.size]):
            return None
        if sum((met ^ known).bit_count() for met, known in zip(times, numbers, strict=False)) > 1:
            return None
        self.physic_ms, self.logics_ms, self.index_ms = numbers[:3]
        return Position(*numbers[3:])


def read_checkpoint(files: Files, path: Path) -> Checkpoint:
    """Return the checkpoint of a store; all zero if it has none."""
    return Checkpoint.decode(files.read(path) or b"")


def write_checkpoint(files: Files, path: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint in place: that needs no space, even on a full disk."""
    files.overwrite(path, checkpoint.encode())
