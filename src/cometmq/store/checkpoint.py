"""The checkpoint: up to which store times the parts of the store are on the disk.

    physic:i64 logics:i64 index:i64 master_flushed:i64 confirm:i64 zeros, 4096 bytes in all

Source: StoreCheckpoint, RocketMQ 5.3. A time is set here only after the sync that makes it true.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from cometmq.system.files import Files

_FIELDS = Struct(">5q")
_FILE_BYTES = 4096
_MARGIN_MS = 3000


@dataclass(slots=True)
class Checkpoint:
    """Store times, in ms since 1970; 0 for never."""

    physic_ms: int = 0
    """The commit log is on the disk up to this store time."""
    logics_ms: int = 0
    """The consume queues are on the disk up to this store time."""
    index_ms: int = 0
    """The full index files are on the disk up to this store time."""
    master_flushed: int = 0
    confirm: int = 0

    @property
    def min_ms(self) -> int:
        """The store time up to which log and queues are surely whole."""
        return max(0, min(self.physic_ms, self.logics_ms) - _MARGIN_MS)

    @property
    def min_index_ms(self) -> int:
        """The same for log, queues and index."""
        return min(self.min_ms, self.index_ms)

    def encode(self) -> bytes:
        """Return the file's content."""
        fields = _FIELDS.pack(
            self.physic_ms, self.logics_ms, self.index_ms, self.master_flushed, self.confirm
        )
        return fields.ljust(_FILE_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """Return what a file says; what a short file lacks is 0."""
        return cls(*_FIELDS.unpack_from(data[: _FIELDS.size].ljust(_FIELDS.size, b"\0")))


def read_checkpoint(files: Files, path: Path) -> Checkpoint:
    """Return the checkpoint of a store; all zero where it has none."""
    return Checkpoint.decode(files.read(path) or b"")


def write_checkpoint(files: Files, path: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint so that a crash leaves the old or the new one."""
    fresh = path.with_name(path.name + ".tmp")
    files.write(fresh, checkpoint.encode())
    files.rename(fresh, path)
    files.sync_dir(path.parent)
