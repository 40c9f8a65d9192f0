"""The location of a log: its files, and the other files of the store beside them.

    <store>/commitlog/<20 digits>     a file's name is the log offset of its first byte
    <store>/consumequeue/…            there if the place is a store's directory

A place can be pickled, and knows the files that were there when it was opened; `LogPlace.again`
looks anew. The names are those of RocketMQ's stores.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cometmq.spark.errors import PlaceError
from cometmq.spark.logs.storage import Entry, OpenFile, Storage, parent, shown, storage_of

UNNAMED = "log"
"""What offset documents call a broker whose name nobody said."""
_SEGMENT_NAME = re.compile(r"[0-9]{20}")
_WILDCARDS = re.compile(r"[*?\[]")
_LOG_DIRECTORY = "commitlog"


class LogFile(NamedTuple):
    """One file of a log."""

    path: str
    base_offset: int
    """The log offset of its first byte."""
    size: int
    """Its length in bytes; what was written may end earlier."""

    @property
    def end_offset(self) -> int:
        """The log offset after its last byte."""
        return self.base_offset + self.size


class Source(NamedTuple):
    """Where some of a log's files are: a directory of segments, or one segment."""

    storage: Storage
    path: str
    pattern: str
    """What the names of files must match."""


@dataclass(frozen=True)
class LogPlace:
    """A log and the files it had when somebody looked."""

    broker: str | None
    """The broker's name, None if nobody said."""
    given: tuple[str, ...]
    """The paths or URLs, as somebody gave them."""
    sources: tuple[Source, ...]
    files: tuple[LogFile, ...]
    """Oldest first, without overlaps; there may be gaps."""
    storages: tuple[Storage, ...]
    """The storage of each file."""
    store: tuple[Storage, str] | None
    """The store's directory, where the log is in one."""

    @property
    def name(self) -> str:
        """What offset documents call the log."""
        return self.broker or UNNAMED

    @property
    def remote(self) -> bool:
        """Whether small reads are slow."""
        return any(source.storage.remote for source in self.sources)

    @property
    def min_offset(self) -> int:
        """The log offset of the oldest byte there is; 0 for no file."""
        return self.files[0].base_offset if self.files else 0

    @property
    def end_offset(self) -> int:
        """The log offset after the last byte there can be; 0 for no file."""
        return self.files[-1].end_offset if self.files else 0

    def file_at(self, offset: int) -> LogFile | None:
        """Return the file that holds a byte of the log, None if none does."""
        index = bisect_right(self.files, offset, key=lambda file: file.base_offset) - 1
        return self.files[index] if index >= 0 and offset < self.files[index].end_offset else None

    def open(self, file: LogFile) -> OpenFile:
        """Open one of the files.

        Raises:
            FileNotFoundError: it was deleted since.
        """
        return self.storages[self.files.index(file)].open(file.path)

    def only(self, start: int, end: int) -> LogPlace:
        """Return the same place with no other files than those that hold some bytes."""
        kept = [
            index
            for index, file in enumerate(self.files)
            if file.base_offset < end and start < file.end_offset
        ]
        return replace(
            self,
            files=tuple(self.files[index] for index in kept),
            storages=tuple(self.storages[index] for index in kept),
        )

    def again(self) -> LogPlace:
        """Return the place as it is now; a log may have lost all of its files since.

        Raises:
            PlaceError: what is there now is no log.
        """
        if not self.files:
            return open_place(self.given, broker=self.broker, empty=True)
        return _looked_at(self)


def open_place(
    path_or_url: str | Sequence[str], *, broker: str | None = None, empty: bool = False
) -> LogPlace:
    """Return the log at a path or URL.

    Args:
        path_or_url: a store's directory, its ``commitlog``, one segment, or any of these with
            wildcards in the last part; several of them are together one log.
        broker: the name of the broker that wrote it.
        empty: whether there may be no segment yet.

    Raises:
        PlaceError: there is no such file, or names and sizes are not those of one log.
        OptionError: the URL is of no known file system.
    """
    given = [path_or_url] if isinstance(path_or_url, str) else list(path_or_url)
    sources: list[Source] = []
    stores: list[tuple[Storage, str]] = []
    for each in given:
        source, store = _source(each)
        sources.append(source)
        if store is not None:
            stores.append(store)
    store_found = stores[0] if stores else None
    place = _looked_at(LogPlace(broker, tuple(given), tuple(sources), (), (), store_found))
    if not place.files and not empty:
        where = ", ".join(shown(each) for each in given)
        raise PlaceError(f"met no segment at {where}, expected files named by 20 digits")
    return place


def _source(path_or_url: str) -> tuple[Source, tuple[Storage, str] | None]:
    storage, path = storage_of(path_or_url)
    path = path.rstrip("/") or "/"
    directory, _, last = path.rpartition("/")
    if _WILDCARDS.search(last):
        return Source(storage, directory or ".", last), _store_around(storage, directory)
    met = storage.entry(path)
    if met is None:
        raise PlaceError(f"met nothing at {shown(path_or_url)}, expected a log")
    if met.is_dir:
        return _directory_source(storage, path)
    return Source(storage, parent(path), last), _store_around(storage, parent(path))


def _directory_source(storage: Storage, path: str) -> tuple[Source, tuple[Storage, str] | None]:
    inner = f"{path}/{_LOG_DIRECTORY}"
    met = storage.entry(inner)
    if met is not None and met.is_dir:
        return Source(storage, inner, "*"), (storage, path)
    return Source(storage, path, "*"), _store_around(storage, path)


def _store_around(storage: Storage, directory: str) -> tuple[Storage, str] | None:
    """The store that a directory of segments belongs to, if it is in one."""
    if directory.rpartition("/")[2] != _LOG_DIRECTORY:
        return None
    root = parent(directory)
    queues = storage.entry(f"{root}/consumequeue")
    return (storage, root) if queues is not None and queues.is_dir else None


def _looked_at(place: LogPlace) -> LogPlace:
    found = [
        (LogFile(entry.path, int(entry.name), entry.size_bytes), source.storage)
        for source in place.sources
        for entry in _segments(source)
    ]
    found.sort(key=lambda each: each[0].base_offset)
    files = tuple(file for file, _ in found)
    _check(files)
    return replace(place, files=files, storages=tuple(storage for _, storage in found))


def _segments(source: Source) -> Iterable[Entry]:
    for entry in source.storage.entries(source.path):
        if fnmatch.fnmatchcase(entry.name, source.pattern) and not entry.is_dir:
            if not _SEGMENT_NAME.fullmatch(entry.name):
                continue
            if entry.size_bytes:  # one that is just being made is empty
                yield entry


def _check(files: tuple[LogFile, ...]) -> None:
    for older, newer in itertools.pairwise(files):
        if newer.base_offset < older.end_offset:
            raise PlaceError(
                f"met {newer.path}, which begins at {newer.base_offset}, expected it after"
                f" {older.path}, which ends at {older.end_offset}"
            )
