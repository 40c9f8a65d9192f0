"""The audit log: one JSON object for each sign-in and sign-out, with who, when and from where."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from cometmq.model.errors import ConfigError
from cometmq.system.log_format import utc_text

TEXT_MAX = 128
"""Characters of a value that a visitor chooses."""


class Entry(msgspec.Struct):
    """A line of the log."""

    time: str
    user: str
    address: str
    action: str
    result: str


class AuditLog:
    """Appends to a file, which may be renamed meanwhile: each line opens it.

    Args:
        path: the file; None for no log.

    Raises:
        ConfigError: it cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None:
            try:
                self._append(b"")
            except OSError as error:
                raise ConfigError(
                    f"{path}: {error.strerror}; expected an audit log that can be written"
                ) from None

    def add(self, *, user: str, address: str, action: str, result: str) -> None:
        """Append a line.

        Raises:
            OSError: it cannot be written, so the action must not happen.
        """
        if self._path is None:
            return
        user = user[:TEXT_MAX].encode(errors="replace").decode()
        entry = Entry(utc_text(time.time()), user, address, action, result)
        self._append(msgspec.json.encode(entry) + b"\n")

    def _append(self, line: bytes) -> None:
        assert self._path is not None
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = os.open(self._path, flags, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
