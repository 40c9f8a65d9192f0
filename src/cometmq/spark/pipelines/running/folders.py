"""Folders: where pipelines keep their files, on a disk or in object storage.

A file is there as a whole or not at all: on a disk it is written under a temporary name, synced and
renamed; object storage shows an object when its upload has ended. Names are relative, with ``/``.
Whatever begins with ``_`` or ``.`` is not data, as for Spark.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from cometmq.model.errors import ConfigError
from cometmq.spark.errors import OptionError
from cometmq.spark.logs.storage import filesystem_of
from cometmq.system.platforms import SYSTEM

CLAIM_S = 600
"""How long the claim of a process that was killed keeps others from creating an object."""


class Folder(Protocol):
    """A folder with files in it."""

    @property
    def place(self) -> str:
        """What `open_folder` finds it by."""

    def path(self, name: str) -> str:
        """Return the whole path or address of a file."""

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes, or None where it is missing."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file, replacing one that is there; it is never seen half written."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a file unless it is there; return whether this call has written it.

        Of several calls at the same time one at most returns True.
        """

    def append(self, name: str, data: bytes) -> None:
        """Write bytes behind those of a file; after a crash a part of them may be there."""

    def names(self, under: str = "") -> list[str]:
        """Return the files in it and in the folders below, sorted."""

    def remove(self, name: str) -> None:
        """Delete a file; a missing one is no error."""

    def writing(self, name: str) -> Any:
        """Give a binary file to write to; it appears when the context ends without an error."""

    def reading(self, name: str) -> Any:
        """Return a seekable binary file that pyarrow reads."""


def open_folder(place: str | Path) -> Folder:
    """Return the folder at a path or an address such as ``s3://bucket/archive``.

    Raises:
        ConfigError: no file system is known for the address, or there is a password in it, which
            run records would show.
    """
    text = str(place)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" not in text:
        return DiskFolder(Path(text).expanduser().absolute())
    try:
        system, path = filesystem_of(text)
    except OptionError as problem:
        raise ConfigError(str(problem)) from None
    return RemoteFolder(system, path, text)


def extended(place: str, end: str) -> str:
    """Return a path or an address with more behind it; the query of an address stays last."""
    path, query = _without_query(place)
    return path.rstrip("/") + end + query


def divided(place: str) -> tuple[str, str]:
    """Return the folder that a path or an address leads into, and the name of the file there."""
    path, query = _without_query(place)
    above, _, name = path.rpartition("/")
    return (above or ("/" if path.startswith("/") else ".")) + query, name


def _without_query(place: str) -> tuple[str, str]:
    """Divide an address such as ``s3://bucket/archive?region=us-east-1``; a path has no query."""
    path, mark, query = place.partition("?") if "://" in place else (place, "", "")
    return path, mark + query


class DiskFolder:
    """A directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def place(self) -> str:
        """The directory's path."""
        return str(self._root)

    def path(self, name: str) -> str:
        """Return the path of a file."""
        return str(self._root / name)

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes, or None where it is missing."""
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole."""
        with self.writing(name) as file:
            file.write(data)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file unless it is there, by a hard link, which never replaces a name."""
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                SYSTEM.sync_file(file.fileno())
            return _linked(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
            SYSTEM.sync_directory(path.parent)

    def append(self, name: str, data: bytes) -> None:
        """Write bytes behind those of a file and sync it."""
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)
            file.flush()
            SYSTEM.sync_file(file.fileno())

    def names(self, under: str = "") -> list[str]:
        """Return the files below, sorted; those being written are left out."""
        return sorted(
            path.relative_to(self._root).as_posix()
            for path in (self._root / under).rglob("*")
            if path.is_file() and not path.name.startswith(".")
        )

    def remove(self, name: str) -> None:
        """Delete a file."""
        (self._root / name).unlink(missing_ok=True)

    @contextmanager
    def writing(self, name: str) -> Iterator[Any]:
        """Give a file that gets its name at the end."""
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                SYSTEM.sync_file(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        SYSTEM.sync_directory(path.parent)

    def reading(self, name: str) -> Any:
        """Return the file, mapped."""
        import pyarrow as pa

        return pa.memory_map(str(self._root / name), "r")


class RemoteFolder:
    """A folder behind one of pyarrow's file systems.

    Args:
        system: the file system.
        root: the folder's path in it.
        place: the address that led here.
    """

    def __init__(self, system: Any, root: str, place: str) -> None:
        self._system = system
        self._root = root.rstrip("/")
        self._place = extended(place, "")

    @property
    def place(self) -> str:
        """The folder's address."""
        return self._place

    def path(self, name: str) -> str:
        """Return the address of a file."""
        return extended(self._place, f"/{name}")

    def read(self, name: str) -> bytes | None:
        """Return an object's bytes, or None where it is missing."""
        try:
            with self._system.open_input_file(self._inner(name)) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Put an object."""
        with self.writing(name) as file:
            file.write(data)

    def create(self, name: str, data: bytes) -> bool:
        """Put an object unless it is there.

        pyarrow offers no conditional put. So each caller puts a claim, and gives up if it sees
        another caller's claim or the object: what is put is listed at once, so that of two callers
        one at least sees the other. Both may give up. A claim that a killed process left counts for
        `CLAIM_S` seconds, by the storage's own clock.
        """
        folder, _, base = self._inner(name).rpartition("/")
        claim = f"{folder}/.claims/.{base}.{uuid4().hex}"
        self._system.create_dir(f"{folder}/.claims", recursive=True)
        try:
            with self._system.open_output_stream(claim) as file:
                file.write(b"claimed")
            if self._claimed_by_others(claim, base) or self.read(name) is not None:
                return False
            self.write(name, data)
            return True
        finally:
            with suppress(OSError):
                self._system.delete_file(claim)

    def _claimed_by_others(self, claim: str, base: str) -> bool:
        from pyarrow.fs import FileSelector

        claims, _, mine = claim.rpartition("/")
        found = {
            item.base_name: item.mtime_ns or 0
            for item in self._system.get_file_info(FileSelector(claims, allow_not_found=True))
            if item.base_name.startswith(f".{base}.")
        }
        oldest = found.get(mine, 0) - CLAIM_S * 1_000_000_000
        return any(at >= oldest for name, at in found.items() if name != mine)

    def append(self, name: str, data: bytes) -> None:
        """Put an object again with more bytes in it."""
        self.write(name, (self.read(name) or b"") + data)

    def names(self, under: str = "") -> list[str]:
        """Return the objects below, sorted."""
        from pyarrow.fs import FileSelector, FileType

        base = self._inner(under) if under else self._root
        selector = FileSelector(base, recursive=True, allow_not_found=True)
        found = (item for item in self._system.get_file_info(selector))
        return sorted(
            item.path.removeprefix(self._root + "/")
            for item in found
            if item.type == FileType.File and not item.base_name.startswith(".")
        )

    def remove(self, name: str) -> None:
        """Delete an object."""
        with suppress(FileNotFoundError):
            self._system.delete_file(self._inner(name))

    @contextmanager
    def writing(self, name: str) -> Iterator[Any]:
        """Give a stream whose object appears under its name when the upload has ended."""
        path = self._inner(name)
        folder, _, base = path.rpartition("/")
        self._system.create_dir(folder, recursive=True)
        temporary = f"{folder}/.{base}.{uuid4().hex}"
        try:
            with self._system.open_output_stream(temporary) as file:
                yield file
            self._system.move(temporary, path)
        except BaseException:
            with suppress(OSError):
                self._system.delete_file(temporary)
            raise

    def reading(self, name: str) -> Any:
        """Return the object as a file."""
        return self._system.open_input_file(self._inner(name))

    def _inner(self, name: str) -> str:
        return f"{self._root}/{name}"


def _linked(temporary: Path, path: Path) -> bool:
    """Give a file its name, unless the name is there; return whether it got the name."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as problem:
        if problem.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        return _copied(temporary, path)
    return True


def _copied(temporary: Path, path: Path) -> bool:
    """Do the same on a file system without hard links, where a crash may leave a part."""
    try:
        with path.open("xb") as file:
            file.write(temporary.read_bytes())
            file.flush()
            SYSTEM.sync_file(file.fileno())
    except FileExistsError:
        return False
    return True
