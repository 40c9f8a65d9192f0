"""Opens files on a local disk, or at any URL that pyarrow can read.

A `Storage` lists directories and opens files for reading at any position; it can be pickled, and a
file it opened cannot.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

from cometmq.spark.errors import OptionError
from cometmq.system.platforms import SYSTEM

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


class Entry(NamedTuple):
    """One thing in a directory."""

    path: str
    name: str
    size_bytes: int
    is_dir: bool


class OpenFile(Protocol):
    """A file open for reading; by one thread at a time."""

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill a buffer with what stands at a position.

        Returns:
            How many bytes were read; fewer than asked only at the file's end.
        """

    def close(self) -> None:
        """Let go of the file."""


class Storage(Protocol):
    """A way to files."""

    remote: bool
    """Whether a small read costs as much as a large one."""

    def entries(self, directory: str) -> list[Entry]:
        """Return what is in a directory, by name; nothing where there is no such directory."""

    def entry(self, path: str) -> Entry | None:
        """Return what a path names, None for nothing."""

    def open(self, path: str) -> OpenFile:
        """Open a file.

        Raises:
            FileNotFoundError: there is none.
        """


@dataclass(frozen=True)
class LocalStorage:
    """The disks of this machine."""

    remote = False

    def entries(self, directory: str) -> list[Entry]:
        """Return what is in a directory, by name; nothing where there is no such directory."""
        try:
            paths = sorted(Path(directory).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = (self.entry(str(path)) for path in paths)
        return [entry for entry in found if entry is not None]

    def entry(self, path: str) -> Entry | None:
        """Return what a path names, None for nothing."""
        try:
            facts = Path(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Entry(path, Path(path).name, facts.st_size, stat.S_ISDIR(facts.st_mode))

    def open(self, path: str) -> OpenFile:
        """Open a file."""
        return _LocalFile(path)


class _LocalFile:
    def __init__(self, path: str) -> None:
        self._number = SYSTEM.open_to_read(path)

    def read_into(self, position: int, buffer: memoryview) -> int:
        return SYSTEM.read_into(self._number, buffer, position)

    def close(self) -> None:
        if self._number >= 0:
            os.close(self._number)
            self._number = -1


@dataclass(frozen=True)
class ArrowStorage:
    """A file system of pyarrow: object storage, a network file system, memory."""

    filesystem: Any
    """A `pyarrow.fs.FileSystem`."""
    remote = True

    def entries(self, directory: str) -> list[Entry]:
        """Return what is in a directory, by name; nothing where there is no such directory."""
        from pyarrow import fs

        found = self.filesystem.get_file_info(fs.FileSelector(directory, allow_not_found=True))
        return sorted(_entry_of(info) for info in found)

    def entry(self, path: str) -> Entry | None:
        """Return what a path names, None for nothing."""
        from pyarrow import fs

        info = self.filesystem.get_file_info(path)
        return None if info.type == fs.FileType.NotFound else _entry_of(info)

    def open(self, path: str) -> OpenFile:
        """Open a file."""
        return _ArrowFile(self.filesystem.open_input_file(path))


def _entry_of(info: Any) -> Entry:
    from pyarrow import fs

    is_dir = info.type == fs.FileType.Directory
    return Entry(info.path, info.base_name, 0 if is_dir else info.size, is_dir)


class _ArrowFile:
    def __init__(self, file: Any) -> None:
        self._file = file

    def read_into(self, position: int, buffer: memoryview) -> int:
        data = self._file.read_at(len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()


def storage_of(path_or_url: str) -> tuple[Storage, str]:
    """Return the storage that a path or URL means, and the path in it.

    Args:
        path_or_url: a local path, ``file:///…``, or any URL that pyarrow knows (``s3://…``,
            ``gs://…``, ``hdfs://…``; credentials come from the environment).

    Raises:
        OptionError: no file system of that scheme, or the URL carries a password, which plans
            would show; the text of the error does not.
    """
    if not _SCHEME.match(path_or_url):
        return LocalStorage(), path_or_url
    if path_or_url.lower().startswith("file://"):
        return LocalStorage(), urlsplit(path_or_url).path
    filesystem, path = filesystem_of(path_or_url)
    return ArrowStorage(filesystem), path


def filesystem_of(url: str) -> tuple[Any, str]:
    """Return pyarrow's file system for a URL, and the path in it.

    Raises:
        OptionError: as for `storage_of`.
    """
    if ":" in urlsplit(url).netloc.rpartition("@")[0]:
        raise OptionError(
            f"met a password in the URL of {shown(url)}: plans show options, so put it"
            " where the file system's own client looks for it, for example in AWS_ACCESS_KEY_ID"
            " and AWS_SECRET_ACCESS_KEY"
        )
    from pyarrow import ArrowException, fs

    try:
        filesystem, path = fs.FileSystem.from_uri(url)
    except (ArrowException, OSError, ValueError) as problem:
        text = f"met {shown(url)}, expected a path or a URL of a file system: "
        raise OptionError(text + type(problem).__name__) from None
    return filesystem, cast(str, path)


def shown(path_or_url: str) -> str:
    """Return a path or URL without what it may carry of passwords and keys."""
    if not _SCHEME.match(path_or_url):
        return path_or_url
    scheme, rest = path_or_url.split("://", 1)
    place = rest.split("?", 1)[0]
    host, slash, path = place.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def parent(path: str) -> str:
    """Return the directory that a path is in."""
    return str(PurePosixPath(path).parent)
