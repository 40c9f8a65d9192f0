"""The JSON files beside the messages: topics.json, subscriptionGroup.json and their like.

    file   := a JSON object, indented by tabs, one member a line, members in the order of names
    number := a key that is a number may have no quotes, as RocketMQ writes it; CometMQ writes
    quotes

A file is replaced as a whole: the new text goes to ``X.tmp``, the old one to ``X.bak``, then
``X.tmp`` becomes ``X``; each step is on the disk before the next. If ``X`` is missing, empty or
damaged, ``X.bak`` is read.

Source: ConfigManager and MixAll.string2File, RocketMQ 4.9, which does not sync.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from cometmq.model.errors import StoreError
from cometmq.protocol import fastjson
from cometmq.system.files import Files, load_with_backup, save_with_backup


class JsonFile:
    """One such file.

    Args:
        path: of the file itself.
        files: the file system.
    """

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self._files = files
        self._saving = threading.Lock()
        self._is_closed = False

    def beside(self, name: str) -> JsonFile:
        """Return another file in the same directory."""
        return JsonFile(self.path.with_name(name), self._files)

    def load(self) -> dict[str, Any] | None:
        """Return the object in the file or its backup; None if neither has one.

        A process that was killed may have renamed the file without a sync of the directory; so the
        directory is synced.

        Raises:
            StoreError: there is content and none of it can be read; names the file.
        """
        try:
            content = load_with_backup(self._files, self.path, _parsed)
            if content is not None:
                self._files.sync_dir(self.path.parent)
            return content
        except ValueError as problem:  # it names the file
            raise StoreError(f"cannot read {problem}") from problem
        except OSError as problem:
            raise StoreError(f"cannot read {self.path}: {problem}") from problem

    def save(self, content: Any) -> None:
        """Replace the file by ``content``: an object of text, numbers, lists and structs.

        Raises:
            StoreError: the disk refused; the file is as it was.
        """
        self.save_text(entry_text(content, depth=0))

    def save_text(self, text: str) -> None:
        """Replace the file by a text; from any thread.

        Raises:
            StoreError: the disk refused, or the file is closed; the file is as it was.
        """
        self._write(lambda: save_with_backup(self._files, self.path, text.encode()))

    def read(self) -> bytes:
        """Return the bytes of the file, nothing if there is none.

        Raises:
            StoreError: the file cannot be read.
        """
        try:
            return self._files.read(self.path) or b""
        except OSError as problem:
            raise StoreError(f"cannot read {self.path}: {problem}") from problem

    def overwrite(self, data: bytes) -> None:
        """Write bytes at the start of the file, and sync them; from any thread.

        What a longer file had behind them stays. After a failure, or a crash, any part of the new
        bytes may be there.

        Raises:
            StoreError: the disk refused, or the file is closed.
        """
        self._write(lambda: self._files.overwrite(self.path, data))

    def remove(self) -> None:
        """Remove the file; from any thread.

        Raises:
            StoreError: the disk refused.
        """
        with self._saving:
            try:
                if self._files.exists(self.path):
                    self._files.remove(self.path)
            except OSError as problem:
                raise StoreError(f"cannot remove {self.path}: {problem}") from problem

    def _write(self, write: Callable[[], None]) -> None:
        with self._saving:
            if self._is_closed:
                raise StoreError(f"cannot write {self.path}: the broker has stopped")
            try:
                write()
            except OSError as problem:
                raise StoreError(f"cannot write {self.path}: {problem}") from problem

    def close(self) -> None:
        """Return when no thread writes the file; further writes are refused.

        The next process that opens the store must not find its own file replaced by ours.
        """
        with self._saving:
            self._is_closed = True


def entry_text(content: Any, *, depth: int) -> str:
    """Return ``content`` as indented JSON, for a position inside ``depth`` objects.

    Members that are None are left out.
    """
    plain = msgspec.to_builtins(content, str_keys=True, order="sorted")
    parts: list[str] = []
    _write(plain, "\n" + "\t" * depth, parts)
    return "".join(parts)


def member_text(name: str, text: str, *, depth: int) -> str:
    """Return a member of an object, on a line of its own."""
    indent = "\t" * depth
    return f"\n{indent}\t{msgspec.json.encode(name).decode()}:{text}"


def object_text(members: Mapping[str, str], *, depth: int) -> str:
    """Return an object of members made by `member_text`, in order of names."""
    if not members:
        return "{}"
    lines = [members[name] for name in sorted(members)]
    return "{" + ",".join(lines) + "\n" + "\t" * depth + "}"


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        value = fastjson.loads(data)
    except fastjson.FastJsonError as problem:
        raise ValueError(str(problem)) from problem
    if not isinstance(value, dict):
        raise ValueError(f"met {str(value)[:40]!r}, expected a JSON object")
    return value


def _write(value: Any, indent: str, parts: list[str]) -> None:
    """Append the text of ``value``; ``indent`` is what begins a line at its depth."""
    if isinstance(value, dict):
        _write_object(value, indent, parts)
    elif isinstance(value, list):
        _write_list(value, indent, parts)
    else:
        parts.append(msgspec.json.encode(value).decode())


def _write_object(members: dict[str, Any], indent: str, parts: list[str]) -> None:
    separator = "{"
    for name, value in members.items():
        if value is not None:
            parts.append(f"{separator}{indent}\t{msgspec.json.encode(name).decode()}:")
            _write(value, indent + "\t", parts)
            separator = ","
    parts.append("{}" if separator == "{" else indent + "}")


def _write_list(values: list[Any], indent: str, parts: list[str]) -> None:
    separator = "["
    for value in values:
        parts.append(separator)
        _write(value, indent, parts)
        separator = ","
    parts.append("]" if values else "[]")
