"""The id that a controller gave to this broker, kept for all later starts.

    brokerIdentity         := cluster "#" name "#" id
    brokerIdentity-temp    := cluster "#" name "#" id "#" check_code

The second file is written before the request for the id. After a crash the broker repeats the
request with the same check code, by which the controller recognizes it.

Source: BrokerMetadata, TempBrokerMetadata and ReplicasManager, RocketMQ 5.3.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from cometmq.model.errors import ConfigError, StoreError
from cometmq.system.files import Files, save

FILE_NAME: Final = "brokerIdentity"
TEMP_NAME: Final = "brokerIdentity-temp"
_ID_MAX: Final = 2**63 - 1
_ID_DIGITS_MAX: Final = 19


class Applied(NamedTuple):
    """An id for which this broker has applied, or is about to."""

    broker_id: int
    check_code: str


class IdentityFiles:
    """The files of one broker.

    Args:
        folder: the root of the store.
        files: the file system.
        cluster, name: of this broker, as configured.
    """

    def __init__(self, folder: Path, files: Files, *, cluster: str, name: str) -> None:
        self._path = folder / FILE_NAME
        self._temp = folder / TEMP_NAME
        self._files = files
        self._prefix = f"{cluster}#{name}#"

    def broker_id(self) -> int | None:
        """Return the id of this broker; None if it has none yet.

        Raises:
            ConfigError: the store belongs to a broker of another name or cluster.
            StoreError: the file is damaged, or the disk refused.
        """
        text = self._read(self._path)
        return None if text is None else self._id_of(self._path, text)

    def applied(self) -> Applied | None:
        """Return the id for which this broker has applied; None if there is none.

        Raises:
            ConfigError: the store belongs to a broker of another name or cluster.
            StoreError: the file is damaged, or the disk refused.
        """
        text = self._read(self._temp)
        if text is None:
            return None
        id_text, separator, check_code = text.partition("#")
        if not separator or not check_code:
            raise StoreError(f"{self._temp}: met no check code, expected one behind the id")
        return Applied(self._id_of(self._temp, id_text), check_code)

    def save_application(self, applied: Applied) -> None:
        """Save the id that is about to be requested from the controller.

        Raises:
            StoreError: the disk refused.
        """
        self._write(self._temp, f"{applied.broker_id}#{applied.check_code}")

    def remove_application(self) -> None:
        """Remove the file of the id for which this broker has applied.

        Raises:
            StoreError: the disk refused.
        """
        try:
            self._files.remove(self._temp)
            self._files.sync_dir(self._temp.parent)
        except OSError as problem:
            raise StoreError(f"cannot remove {self._temp}: {problem}") from problem

    def save_id(self, broker_id: int) -> None:
        """Save the id that the controller gave to this broker.

        Raises:
            StoreError: the disk refused.
        """
        self._write(self._path, f"{broker_id}")
        self.remove_application()

    def _read(self, path: Path) -> str | None:
        """Return what follows cluster and name in a file; None if it is missing or empty."""
        try:
            text = (self._files.read(path) or b"").decode().strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise StoreError(f"cannot read {path}: {problem}") from problem
        if not text:
            return None
        if not text.startswith(self._prefix):
            raise ConfigError(
                f"{path}: met {text[:200]!r}, expected {self._prefix!r} and an id: this store"
                " belongs to another broker, or brokerClusterName or brokerName was changed"
            )
        return text.removeprefix(self._prefix)

    def _id_of(self, path: Path, text: str) -> int:
        is_number = text.isascii() and text.isdigit() and len(text) <= _ID_DIGITS_MAX
        if not is_number or not 1 <= int(text) <= _ID_MAX:
            raise StoreError(f"{path}: met the id {text[:40]!r}, expected a number of 1 or more")
        return int(text)

    def _write(self, path: Path, text: str) -> None:
        try:
            save(self._files, path, (self._prefix + text).encode())
        except OSError as problem:
            raise StoreError(f"cannot write {path}: {problem}") from problem
