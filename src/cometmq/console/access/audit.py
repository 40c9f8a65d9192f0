"""The audit log: JSON objects of sign-ins, sign-outs and changes, with who, when and from where."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import msgspec

from cometmq.console.pages import encoded
from cometmq.model.errors import ConfigError
from cometmq.system.log_format import utc_text

TEXT_MAX, RESULT_MAX = 128, 2_048
"""Characters of a name that a visitor chooses, and of a result, which may be an error of a
broker."""
SHOWN_MAX = 1_000
"""Entries that the page has."""
SHOWN_BYTES_MAX = 1024 * 1024


class Entry(msgspec.Struct, omit_defaults=True):
    """A line of the log."""

    time: str
    user: str
    address: str
    action: str
    result: str
    """Of a change ``begun`` in the line before it, then ``done`` or what went wrong."""
    values: dict[str, str] = {}
    """Of the form of a change, without secrets."""


class AuditLog:
    """Appends to a file, which may be renamed meanwhile: each line opens it.

    Args:
        path: the file; None for none: the last entries are in memory then.

    Raises:
        ConfigError: it cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._is_cut_off = False
        """Whether a full disk has the beginning of a line only; another line comes after it."""
        self._recent: deque[Entry] = deque(maxlen=SHOWN_MAX)
        if path is not None:
            try:
                self._append(b"")
            except OSError as error:
                raise ConfigError(
                    f"{path}: {error.strerror}; expected an audit log that can be written"
                ) from None

    def add(
        self, *, user: str, address: str, action: str, result: str,
        values: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Append a line.

        Raises:
            OSError: it cannot be written, so the action must not happen.
        """
        user, result = user[:TEXT_MAX], result[:RESULT_MAX]
        entry = Entry(utc_text(time.time()), user, address, action, result, dict(values or {}))
        if self._path is None:
            self._recent.append(entry)
        else:
            self._append(encoded(entry) + b"\n")

    def recent(self) -> list[Entry]:
        """Return the last entries, the newest first.

        Raises:
            ConfigError: the file cannot be read.
        """
        if self._path is None:
            return list(reversed(self._recent))
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                begin = file.seek(max(size - SHOWN_BYTES_MAX, 0))
                lines = file.read(SHOWN_BYTES_MAX).split(b"\n")
        except OSError as error:
            raise ConfigError(
                f"{self._path}: {error.strerror}; expected an audit log that can be read"
            ) from None
        found = []
        for line in reversed(lines[1 if begin else 0 :]):
            with contextlib.suppress(msgspec.DecodeError):  # cut off by a full disk
                found.append(msgspec.json.decode(line, type=Entry))
            if len(found) == SHOWN_MAX:
                break
        return found

    def _append(self, line: bytes) -> None:
        assert self._path is not None
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = os.open(self._path, flags, 0o600)
        try:
            if self._is_cut_off:
                os.write(descriptor, b"\n")
            written = os.write(descriptor, line)
            self._is_cut_off = written < len(line)
            if self._is_cut_off:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)
