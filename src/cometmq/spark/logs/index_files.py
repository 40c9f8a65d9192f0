"""The index of a store as files: the list of them, and the entries in them.

    index/<17 digits>   begin_ms:i64 end_ms:i64 begin_log:i64 end_log:i64 used:i32 next_entry:i32
                        slot:i32 * slots   entry * entries
    entry               key_hash:i32 phy_offset:i64 time_diff:i32 prev:i32; number 0 is never used

The layout is that of `cometmq.store.index.key_index`.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from cometmq.spark.errors import DataLossError, PlaceError
from cometmq.spark.logs.storage import Entry, OpenFile, Storage, shown, storage_of

_DIRECTORY = "index"
_NAME = re.compile(r"[0-9]{17}")
_HEADER = Struct(">qqqqii")
_SLOT_BYTES, _ENTRY_BYTES = 4, 20
_ENTRIES_PER_SLOT = 4
ENTRY_TYPE = np.dtype(
    [("key_hash", ">i4"), ("phy_offset", ">i8"), ("time_diff", ">i4"), ("prev", ">i4")]
)


class IndexFile(NamedTuple):
    """One file of the index."""

    storage: Storage
    path: str
    name: str
    size: int
    slots: int

    @property
    def entries(self) -> int:
        """How many entries fit into it, the unused one included."""
        return (self.size - _HEADER.size - self.slots * _SLOT_BYTES) // _ENTRY_BYTES


class IndexHeader(NamedTuple):
    """What a file says of itself."""

    begin_ms: int
    end_ms: int
    begin_log: int
    end_log: int
    slots_used: int
    next_entry: int


def index_files(path_or_url: str, slots: int | None = None) -> list[IndexFile]:
    """Return the index files of a store.

    Args:
        path_or_url: a store's directory, its ``index``, or one file.
        slots: hash slots in a file; a fourth of the entries if None.

    Raises:
        PlaceError: there is nothing at the path, or a file has a size that no such file has.
        OptionError: the URL is of no known file system.
    """
    storage, path = storage_of(path_or_url)
    path = path.rstrip("/") or "/"
    met = storage.entry(path)
    if met is None:
        raise PlaceError(f"met nothing at {shown(path_or_url)}, expected a store or its index")
    inner = storage.entry(f"{path}/{_DIRECTORY}") if met.is_dir else None
    directory = path if inner is None else inner.path
    entries = storage.entries(directory) if met.is_dir else [met]
    return [
        IndexFile(storage, each.path, each.name, each.size_bytes, slots or _slots_of(each))
        for each in entries
        if not each.is_dir and each.size_bytes and _NAME.fullmatch(each.name)
    ]


def _slots_of(entry: Entry) -> int:
    unit = _SLOT_BYTES + _ENTRIES_PER_SLOT * _ENTRY_BYTES
    slots, odd = divmod(entry.size_bytes - _HEADER.size, unit)
    if odd or slots <= 0:
        raise PlaceError(
            f"met {entry.path} of {entry.size_bytes} bytes, which is not a file with"
            f" {_ENTRIES_PER_SLOT} entries per slot: set index.slots"
        )
    return slots


class IndexFileReader:
    """Header and entries of a file; closes it in the end.

    Raises:
        DataLossError: the file was deleted since it was listed.
    """

    def __init__(self, file: IndexFile) -> None:
        self._file = file
        try:
            self._opened: OpenFile = file.storage.open(file.path)
        except FileNotFoundError:
            raise DataLossError(f"{file.path} was deleted while it was read") from None

    def __enter__(self) -> IndexFileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def header(self) -> IndexHeader:
        """Return the header."""
        return IndexHeader(*_HEADER.unpack(self._read(0, _HEADER.size)))

    def used(self) -> int:
        """Return the number after that of the last entry."""
        return min(max(self.header().next_entry, 1), self._file.entries)

    def entries(self, first: int, stop: int) -> Any:
        """Return entries as an array with the fields key_hash, phy_offset, time_diff and prev."""
        start = _HEADER.size + self._file.slots * _SLOT_BYTES + first * _ENTRY_BYTES
        data = self._read(start, (stop - first) * _ENTRY_BYTES)
        return np.frombuffer(data, ENTRY_TYPE)

    def _read(self, position: int, size: int) -> bytearray:
        data = bytearray(size)
        if self._opened.read_into(position, memoryview(data)) < size:
            raise DataLossError(f"{self._file.path} ends before byte {position + size}")
        return data
