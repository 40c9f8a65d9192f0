"""The files of ``cometmq admin dlq``: exports of dead letters, and reports of sending them again.

Both have one JSON object in each line. A line of a report has a ``status``: ``sending`` before
dead letters are sent, then what happened. If the last line of a report is torn, a run was killed
while it wrote; the line is cut off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from cometmq.model.errors import ConfigError, InvalidMessageError, InvalidMessageIdError
from cometmq.model.nouns import counted

if TYPE_CHECKING:
    from cometmq.client.admin import DeadLetter, Resent

LINE_BYTES_MAX = 256 * 1024 * 1024
"""A line of an export: the largest body that a broker stores, in Base64, and its properties."""
REPORT_LINES_MAX = 2_000_000
"""Dead letters of a report; what they become is in memory, about 200 bytes for each."""
SENDING = "sending"
UNKNOWN = "an interrupted run may have sent it, and the report does not say so"


class Export:
    """Writes dead letters to a new file, which gets its name when it is complete.

    Raises:
        ConfigError: the file exists, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise ConfigError(f"{path} exists: expected the name of a new file")
        self._path = path
        self._partial = path.with_name(f"{path.name}.partial")
        self.letters = 0
        """The dead letters written so far."""
        try:
            self._file: IO[str] = self._partial.open("w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {self._partial}: {error.strerror}") from None

    def add(self, letter: DeadLetter) -> None:
        """Write one dead letter."""
        json.dump(letter.encode(), self._file)
        self._file.write("\n")
        self.letters += 1

    def finish(self) -> None:
        """Sync the file, read it again, and give it its name.

        Raises:
            ConfigError: the file does not have the dead letters that were written.
        """
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        found = sum(1 for _ in letters_in(self._partial))
        if found != self.letters:
            raise ConfigError(
                f"{self._partial} has {counted(found, 'dead letter')}: expected {self.letters}"
            )
        self._partial.rename(self._path)

    def abandon(self) -> None:
        """Close the file, and leave what was written as ``.partial``."""
        self._file.close()


def letters_in(path: Path) -> Iterator[DeadLetter]:
    """Return the dead letters of an export, one after the other.

    Raises:
        ConfigError: the file cannot be read, or a line is no dead letter; the text names the line.
    """
    from cometmq.client.admin import DeadLetter

    for number, row in _rows(path):
        try:
            yield DeadLetter.decode(row)
        except (InvalidMessageError, InvalidMessageIdError) as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return the objects of a file with their line numbers; empty lines are passed over."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LINE_BYTES_MAX):
                number += 1
                if line.isspace():
                    continue
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise ConfigError(f"{path}, line {number}: no JSON: {error}") from None
                if not isinstance(row, dict):
                    raise ConfigError(f"{path}, line {number}: expected a JSON object")
                yield number, row
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


RESULT_KEYS = (
    "message_id", "dlq_position", "status", "topic", "reason", "new_message_id",
    "new_offset_message_id",
)  # fmt: skip
"""The keys of a result, in a report and in JSON."""


def result_row(result: Resent) -> tuple[object, ...]:
    """Return the values of a result, in the order of `RESULT_KEYS`."""
    return (
        result.letter.message_id,
        result.letter.position,
        result.status.value,
        result.topic,
        result.reason,
        result.message_id,
        result.offset_message_id,
    )


class Report:
    """Notes what was sent again, and knows what earlier runs noted in the same file.

    Args:
        path: a new file, or the file of an earlier run; None to note nothing.
        writes: whether to note something.

    Raises:
        ConfigError: the file cannot be read or written, or is no report.
    """

    def __init__(self, path: Path | None, *, writes: bool = True) -> None:
        self._states: dict[str, str] = {}
        self._file: IO[str] | None = None
        if path is None:
            return
        try:
            if path.exists():
                if writes:
                    _cut_torn_line(path)
                self._read(path)
            if writes:
                self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from None

    def _read(self, path: Path) -> None:
        for number, row in _rows(path):
            position, state = row.get("dlq_position"), row.get("status")
            if not isinstance(position, str) or not isinstance(state, str):
                raise ConfigError(
                    f"{path}, line {number}: expected a line of a report, with dlq_position and"
                    " status"
                )
            if number > REPORT_LINES_MAX:
                raise ConfigError(f"{path} has more than {REPORT_LINES_MAX} lines: begin a new one")
            self._states[position] = state

    def state_of(self, letter: DeadLetter) -> str | None:
        """Return what earlier runs noted of a dead letter last."""
        return self._states.get(letter.position)

    def begin(self, letters: Iterable[DeadLetter]) -> None:
        """Note that dead letters are being sent."""
        self._write({"dlq_position": each.position, "status": SENDING} for each in letters)

    def add(self, results: Iterable[Resent]) -> None:
        """Note what happened to dead letters."""
        self._write(dict(zip(RESULT_KEYS, result_row(each), strict=True)) for each in results)

    def _write(self, rows: Iterable[dict[str, object]]) -> None:
        if self._file is None:
            return
        for row in rows:
            self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _cut_torn_line(path: Path) -> None:
    """Remove the end of a file after its last line break."""
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(end - 65_536, 0)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                file.truncate(start + found + 1)
                return
            end = start
        file.truncate(0)
