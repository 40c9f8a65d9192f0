"""The files of a broker's log, on a disk of this machine or at any address that pyarrow can read.

    <store>/commitlog/<20 digits>     a file's name is the physical offset of its first byte
    <store>/consumequeue/…            there if the log is in a store's directory

A `Log` can be pickled, and has the files that were there when it was opened; `Log.again` lists them
anew. The names are those of RocketMQ's stores.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

from pyarrow import ArrowException, fs

from cometmq.spark.errors import OptionError, PlaceError

UNNAMED = "log"
"""The name of a log in offset documents if its broker has none."""
_SEGMENT_NAME = re.compile(r"[0-9]{20}")
_WILDCARDS = re.compile(r"[*?\[]")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_LOG_DIRECTORY = "commitlog"


class LogFile(NamedTuple):
    """One file of a log."""

    filesystem: fs.FileSystem
    path: str
    base_offset: int
    """The physical offset of its first byte."""
    size: int
    """Its length in bytes; the records may end earlier."""

    @property
    def end_offset(self) -> int:
        """The physical offset after its last byte."""
        return self.base_offset + self.size


class Folder(NamedTuple):
    """A directory with segments, or with a store."""

    filesystem: fs.FileSystem
    path: str
    pattern: str = "*"
    """The pattern of the names of its segments."""


@dataclass(frozen=True)
class Log:
    """A log, and the files it had when they were listed."""

    broker: str | None
    """The broker's name, None if it is not known."""
    given: tuple[str, ...]
    """The paths or URLs of the option."""
    folders: tuple[Folder, ...]
    files: tuple[LogFile, ...]
    """Oldest first, without overlaps; there may be gaps."""
    store: Folder | None
    """The store's directory, where the log is in one."""

    @property
    def name(self) -> str:
        """The name of the log in offset documents."""
        return self.broker or UNNAMED

    @property
    def remote(self) -> bool:
        """Whether a small read costs as much as a large one."""
        return any(is_remote(folder.filesystem) for folder in self.folders)

    @property
    def min_offset(self) -> int:
        """The physical offset of the oldest byte; 0 without files."""
        return self.files[0].base_offset if self.files else 0

    @property
    def end_offset(self) -> int:
        """The physical offset after the last byte of the files; 0 without files."""
        return self.files[-1].end_offset if self.files else 0

    def file_at(self, offset: int) -> LogFile | None:
        """Return the file that holds a byte of the log, None if none does."""
        index = bisect_right(self.files, offset, key=lambda file: file.base_offset) - 1
        return self.files[index] if index >= 0 and offset < self.files[index].end_offset else None

    def only(self, start: int, end: int) -> Log:
        """Return the log with only the files that hold bytes between two offsets."""
        files = (file for file in self.files if file.base_offset < end and start < file.end_offset)
        return replace(self, files=tuple(files))

    def again(self) -> Log:
        """Return the log with the files that are there now, perhaps none.

        Raises:
            PlaceError: the files are not those of a log.
        """
        if not self.files:
            return open_log(self.given, broker=self.broker, empty=True)
        return _listed(self)


def open_log(
    path_or_url: str | Sequence[str], *, broker: str | None = None, empty: bool = False
) -> Log:
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
    given = (path_or_url,) if isinstance(path_or_url, str) else tuple(path_or_url)
    folders = tuple(_folder(each) for each in given)
    stores = (_store_of(folder) for folder in folders)
    store = next((each for each in stores if each is not None), None)
    log = _listed(Log(broker, given, folders, (), store))
    if not log.files and not empty:
        where = ", ".join(shown(each) for each in given)
        raise PlaceError(f"met no segment at {where}, expected files named by 20 digits")
    return log


def _folder(path_or_url: str) -> Folder:
    filesystem, path = filesystem_of(path_or_url)
    path = path.rstrip("/") or "/"
    directory, _, last = path.rpartition("/")
    if _WILDCARDS.search(last):
        return Folder(filesystem, directory or ".", last)
    met = filesystem.get_file_info(path)
    if met.type == fs.FileType.NotFound:
        raise PlaceError(f"met nothing at {shown(path_or_url)}, expected a log")
    if met.is_file:
        return Folder(filesystem, str(PurePosixPath(path).parent), last)
    inner = f"{path}/{_LOG_DIRECTORY}"
    has_inner = filesystem.get_file_info(inner).type == fs.FileType.Directory
    return Folder(filesystem, inner if has_inner else path)


def _store_of(folder: Folder) -> Folder | None:
    """Return the store that a directory of segments belongs to, if its name says so."""
    path = PurePosixPath(folder.path)
    return Folder(folder.filesystem, str(path.parent)) if path.name == _LOG_DIRECTORY else None


def _listed(log: Log) -> Log:
    files = [
        LogFile(folder.filesystem, info.path, int(info.base_name), info.size)
        for folder in log.folders
        for info in files_in(folder)
        if _SEGMENT_NAME.fullmatch(info.base_name)
        and fnmatch.fnmatchcase(info.base_name, folder.pattern)
    ]
    files.sort(key=lambda file: file.base_offset)
    for older, newer in itertools.pairwise(files):
        if newer.base_offset < older.end_offset:
            raise PlaceError(
                f"met {newer.path}, which begins at {newer.base_offset}, expected it after"
                f" {older.path}, which ends at {older.end_offset}"
            )
    return replace(log, files=tuple(files))


def files_in(folder: Folder, *, recursive: bool = False) -> list[fs.FileInfo]:
    """Return the files in a directory by path, without empty ones: a new segment is empty."""
    selector = fs.FileSelector(folder.path, allow_not_found=True, recursive=recursive)
    found = folder.filesystem.get_file_info(selector)
    return sorted(
        (info for info in found if info.is_file and info.size), key=lambda info: str(info.path)
    )


def filesystem_of(path_or_url: str) -> tuple[fs.FileSystem, str]:
    """Return the file system that a path or URL means, and the path in it.

    Args:
        path_or_url: a local path, ``file:///…``, or any URL that pyarrow knows (``s3://…``,
            ``gs://…``, ``hdfs://…``; credentials come from the environment).

    Raises:
        OptionError: no file system of that scheme, or the URL carries a password, which plans
            would show; the text of the error does not.
    """
    if not _SCHEME.match(path_or_url):
        return fs.LocalFileSystem(), path_or_url
    address = urlsplit(path_or_url)
    if address.scheme == "file":
        return fs.LocalFileSystem(), address.path
    if ":" in address.netloc.rpartition("@")[0]:
        raise OptionError(
            f"met a password in the URL of {shown(path_or_url)}: plans show options, so put it"
            " where the file system's own client looks for it, for example in AWS_ACCESS_KEY_ID"
            " and AWS_SECRET_ACCESS_KEY"
        )
    try:
        filesystem, path = fs.FileSystem.from_uri(path_or_url)
    except (ArrowException, OSError, ValueError) as problem:
        text = f"met {shown(path_or_url)}, expected a path or a URL of a file system: "
        raise OptionError(text + type(problem).__name__) from None
    return filesystem, path


def is_remote(filesystem: fs.FileSystem) -> bool:
    """Return whether a small read costs as much as a large one."""
    return not isinstance(filesystem, fs.LocalFileSystem)


def shown(path_or_url: str) -> str:
    """Return a path or URL without what it may carry of passwords and keys."""
    if not _SCHEME.match(path_or_url):
        return path_or_url
    scheme, rest = path_or_url.split("://", 1)
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
