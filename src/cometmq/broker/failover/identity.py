"""The id that a controller gave to this broker, and the names of its set, store and process.

    brokerIdentity         := cluster "#" name "#" id
    brokerIdentity-temp    := cluster "#" name "#" id "#" check_code
    storeIdentity          := checksum "\n" line*
    line                   := key "=" value "\n"     (setId, storeId, incarnations, stopped)
    checksum               := CRC-32 of the lines

The second file is written before the request for the id. After a crash the broker repeats the
request with the same check code, by which the controller recognizes it. RocketMQ has the first two
files, and does not read the third one.

The names are random. Each start makes an incarnation, and saves it before it registers. The file is
replaced as a whole; if it is damaged all the same, its backup counts. That one lacks the newest
incarnation, so the controller takes the store for a copy, and lets a master compare its log first.

Source: BrokerMetadata, TempBrokerMetadata and ReplicasManager, RocketMQ 5.3.
"""

from __future__ import annotations

import secrets
import zlib
from pathlib import Path
from typing import Final, NamedTuple

from cometmq.model.errors import ConfigError, StoreError
from cometmq.system.files import Files, load_with_backup, save, save_with_backup

FILE_NAME: Final = "brokerIdentity"
TEMP_NAME: Final = "brokerIdentity-temp"
_ID_MAX: Final = 2**63 - 1
_ID_DIGITS_MAX: Final = 19
NAMES_FILE: Final = "storeIdentity"
NAME_BYTES: Final = 16
"""The size of a random name; it is written as twice as many hexadecimal digits."""
INCARNATIONS_MAX: Final = 16
"""How many incarnations are kept: the controller must have met one of them."""
_CLEANLY, _UNCLEANLY = "cleanly", "uncleanly"


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


class StoreIdentity(NamedTuple):
    """The names of a store, of its broker set and of its process."""

    store_id: str
    """The store to which the broker id belongs; a copy of the store has this id, too."""
    set_id: str
    """The broker set; empty before a controller has named it."""
    incarnation: str
    """This process."""
    earlier: tuple[str, ...]
    """The incarnations of the starts before, the newest first."""
    stopped_cleanly: bool
    """Whether all starts since the last registration were preceded by a clean stop."""


class StoreIdentityFile:
    """The file with the names of one store.

    Args:
        folder: the root of the store.
        files: the file system.

    Raises:
        StoreError: the file and its backup are damaged, or the disk refused.
    """

    def __init__(self, folder: Path, files: Files) -> None:
        self._path = folder / NAMES_FILE
        self._files = files
        self._is_begun = False
        try:
            self._saved = load_with_backup(files, self._path, _parse_names)
        except (OSError, ValueError) as problem:
            raise StoreError(
                f"cannot read {self._path}: {problem}; remove it and its backup, then a master"
                " compares the log before this broker can be elected"
            ) from problem

    @property
    def identity(self) -> StoreIdentity | None:
        """The names of this start; None before `begin`."""
        return self._saved if self._is_begun else None

    def begin(
        self, *, has_id: bool, stopped_cleanly: bool, is_new_store: bool = False
    ) -> StoreIdentity:
        """Name this process, and save that; a second call returns what the first did.

        Args:
            has_id: whether the store has a broker id; else it gets a new store id.
            stopped_cleanly: whether the process before stopped cleanly.
            is_new_store: whether there is nothing but the files of the id: then it gets a new store
                id, so that the controller takes the store for a replaced one.

        Raises:
            StoreError: the disk refused; call it again.
        """
        saved = self._saved
        if self._is_begun and saved is not None:
            return saved
        earlier: tuple[str, ...] = ()
        kept = saved if has_id and not is_new_store else None
        if kept is not None:
            earlier = (kept.incarnation, *kept.earlier)[: INCARNATIONS_MAX - 1]
            stopped_cleanly &= kept.stopped_cleanly
        begun = StoreIdentity(
            _new_name() if kept is None else kept.store_id,
            saved.set_id if saved is not None else "",
            _new_name(),
            earlier,
            stopped_cleanly,
        )
        self._save(begun)
        self._is_begun = True
        return begun

    def registered(self, set_id: str) -> None:
        """Note that the controller knows this process, and which set it belongs to.

        Raises:
            StoreError: the disk refused; call it again.
        """
        assert self._saved is not None
        known = self._saved._replace(set_id=set_id or self._saved.set_id, stopped_cleanly=True)
        if known != self._saved:
            self._save(known)

    def _save(self, identity: StoreIdentity) -> None:
        try:
            save_with_backup(self._files, self._path, _names_text(identity).encode())
        except OSError as problem:
            raise StoreError(f"cannot write {self._path}: {problem}") from problem
        self._saved = identity


def _new_name() -> str:
    return secrets.token_hex(NAME_BYTES)


def _names_text(identity: StoreIdentity) -> str:
    lines = (
        f"setId={identity.set_id}\nstoreId={identity.store_id}\n"
        f"incarnations={';'.join((identity.incarnation, *identity.earlier))}\n"
        f"stopped={_CLEANLY if identity.stopped_cleanly else _UNCLEANLY}\n"
    )
    return f"{zlib.crc32(lines.encode())}\n{lines}"


def _parse_names(data: bytes) -> StoreIdentity:
    """Return the names in a file.

    Raises:
        ValueError: it is damaged.
    """
    checksum, _, lines = data.decode("ascii").partition("\n")
    found = zlib.crc32(lines.encode())
    if checksum != str(found):
        raise ValueError(f"met lines with the checksum {found}, expected {checksum[:20]!r}")
    values = dict(line.split("=", 1) for line in lines.splitlines() if "=" in line)
    incarnations = values.get("incarnations", "").split(";")
    names = [values.get("storeId", ""), *incarnations]
    if set_id := values.get("setId", ""):
        names.append(set_id)
    for name in names:
        if len(name) != 2 * NAME_BYTES or name.strip("0123456789abcdef"):
            raise ValueError(f"met the name {name[:40]!r}, expected {2 * NAME_BYTES} digits")
    return StoreIdentity(
        values["storeId"],
        set_id,
        incarnations[0],
        tuple(incarnations[1:]),
        values.get("stopped") == _CLEANLY,
    )
