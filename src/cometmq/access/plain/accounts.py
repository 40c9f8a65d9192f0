"""The accounts of all files below a home directory, as they are now.

    conf/plain_acl.yml      the main file
    conf/acl/**/*.yml       further files, also *.yaml; tools.yml there is not for servers

An access key that is in two files counts as the first of them says: the main file first, then the
others by their paths. A changed file is read again; if it is broken, what it said before stays in
force. The accounts of a file that is gone are gone, too. If the disk does not say whether a file is
there, or no file can be opened, all accounts stay as they are, and the next look tries again.

Source: PlainPermissionManager, RocketMQ 4.9. There a change by request takes effect in two steps,
and in between denies more than either.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from cometmq.access.gate import NAMES_SHOWN_MAX, Account
from cometmq.access.plain.account import WHITE_SENDER, AccountEntry, PlainAccount
from cometmq.access.plain.account_file import (
    AccountFile,
    Document,
    of_document,
    parse,
    render,
    with_account,
    with_addresses,
    without_account,
)
from cometmq.access.senders import Senders
from cometmq.model.errors import ConfigError, ResponseError, StoreError
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting.wire import Wire
from cometmq.system.clock import Clock
from cometmq.system.failure_log import FailureLog
from cometmq.system.files import Files, save

log = logging.getLogger(__name__)

RELOAD_S: Final = 1.0
"""How often the files are looked at."""
FILES_MAX: Final = 1_000
_FOR_TOOLS: Final = "tools.yml"
_ONLY_OWNER: Final = 0o600
_GONE: Final = (FileNotFoundError, NotADirectoryError)

_Stamp = tuple[int, int, int, int]


class _Loaded(NamedTuple):
    stamp: _Stamp
    file: AccountFile


class _Table(NamedTuple):
    """The content of all files; a change replaces the whole."""

    files: Mapping[Path, _Loaded]
    accounts: Mapping[str, PlainAccount]


class PlainAccounts:
    """The accounts of a server, found by the access keys of requests.

    Args:
        home: RocketMQ's home directory.
        files: the disk.
        clock: stamps the versions of the files.
    """

    def __init__(self, home: Path, files: Files, clock: Clock) -> None:
        self.main_file = home / "conf" / "plain_acl.yml"
        self._folder = home / "conf" / "acl"
        self._files = files
        self._clock = clock
        self._changing = Lock()
        self._broken: dict[Path, _Stamp] = {}
        """Files whose content could not be used, with the stamp of that attempt."""
        self._failures = FailureLog(
            log,
            fails="accounts are unchanged, because their files cannot be read",
            works="files of accounts can be read again",
            name="folder",
        )
        self._table = _Table({}, {})
        self._senders = Senders(self._find)

    # --- deciding -------------------------------------------------------------------------------

    def sender_of(self, connection: Wire, access_key: str) -> Account:
        """Return the account with an access key; `WHITE_SENDER` if the address is white.

        Raises:
            ResponseError: 1, there is no such account.
        """
        return self._senders.account(connection, access_key, self._table)

    def _find(self, host: str, access_key: str) -> Account:
        if any(host in each.file.white for each in self._table.files.values()):
            return WHITE_SENDER
        account = self._account(access_key)
        return WHITE_SENDER if host in account.white else account

    def named(self, connection: Wire, access_key: str) -> Account:
        """Return the account that a request names, also if the address is white.

        Raises:
            ResponseError: 1, there is no such account.
        """
        return self._account(access_key)

    def _account(self, access_key: str) -> PlainAccount:
        if not access_key:
            raise _refused("No accessKey is configured")
        account = self._table.accounts.get(access_key)
        if account is None:
            raise _refused(f"No acl config for {_short(access_key)}")
        return account

    @property
    def state(self) -> object:
        """An object that is another one after each change."""
        return self._table

    # --- files ----------------------------------------------------------------------------------

    @property
    def has_files(self) -> bool:
        """Whether there is a file of accounts.

        Raises:
            ConfigError: the disk does not say so.
        """
        return bool(self._found_at_start())

    def load(self) -> None:
        """Read all files, for the first time.

        Raises:
            ConfigError: there is none, or one is broken.
        """
        with self._changing:
            found = self._found_at_start()
            if not found:
                raise ConfigError(
                    f"aclEnable=true, but there is no file of accounts: expected {self.main_file},"
                    f" or files *.yml below {self._folder}"
                )
            loaded = {path: _Loaded(stamp, self._read(path)) for path, stamp in found.items()}
            self._put(loaded)
        for path in loaded:
            _warn_of_mode(path)
        log.info("access control is on accounts=%d", len(self._table.accounts))

    def reload(self) -> None:
        """Read the files that have changed; a broken one keeps what it said before."""
        with self._changing:
            try:
                self._reload()
            except OSError as problem:
                self._failures.failed(str(self.main_file.parent), StoreError(str(problem)))
            else:
                self._failures.succeeded(str(self.main_file.parent))

    def _reload(self) -> None:
        found = self._found()
        old = self._table.files
        if found == {path: each.stamp for path, each in old.items()}:
            self._broken.clear()
            return
        loaded: dict[Path, _Loaded] = {}
        for path, stamp in found.items():
            before = old.get(path)
            if before is not None and before.stamp == stamp:
                loaded[path] = before
            elif (fresh := self._reread(path, stamp)) is not None:
                loaded[path] = fresh
            elif before is not None:
                loaded[path] = before
        if loaded != old:
            self._put(loaded)

    def _reread(self, path: Path, stamp: _Stamp) -> _Loaded | None:
        """Read a file that has changed; None if it is broken, which is logged once."""
        if self._broken.get(path) == stamp:
            return None
        try:
            fresh = _Loaded(stamp, self._parsed(path))
        except PermissionError as problem:  # of this file alone: the others count
            self._broken[path] = stamp
            log.error("accounts are unchanged, because %s: %s", path, problem.strerror)
            return None
        except ConfigError as problem:
            self._broken[path] = stamp
            log.error("accounts are unchanged, because their file cannot be used: %s", problem)
            return None
        if _stamp(path) != stamp:  # it was written meanwhile, and may be half of the new one
            return None
        self._broken.pop(path, None)
        log.info("accounts changed file=%s accounts=%d", path, len(fresh.file.accounts))
        return fresh

    def _found_at_start(self) -> dict[Path, _Stamp]:
        try:
            return self._found()
        except OSError as problem:
            raise ConfigError(
                f"cannot look for files of accounts: {problem.filename}: {problem.strerror}"
            ) from None

    def _found(self) -> dict[Path, _Stamp]:
        """Return the files that exist, in the order of their precedence, with their stamps.

        Raises:
            OSError: the disk does not say which ones exist.
        """
        further: list[Path] = []
        for folder, _, names in os.walk(self._folder, onerror=_unless_gone):
            further += [
                Path(folder, name)
                for name in names
                if name.endswith((".yml", ".yaml")) and name != _FOR_TOOLS
            ]
        paths = [self.main_file, *sorted(further)[:FILES_MAX]]
        return {path: stamp for path in paths if (stamp := _stamp(path)) is not None}

    def _read(self, path: Path) -> AccountFile:
        try:
            return self._parsed(path)
        except OSError as problem:
            raise ConfigError(f"{path}: {problem.strerror}") from None

    def _parsed(self, path: Path) -> AccountFile:
        data = self._files.read(path)
        try:
            return parse(data or b"")
        except ConfigError as problem:
            raise ConfigError(f"{path}: {problem}") from None

    def _put(self, loaded: Mapping[Path, _Loaded]) -> None:
        accounts: dict[str, PlainAccount] = {}
        for path, each in loaded.items():
            for access_key, account in each.file.accounts.items():
                if accounts.setdefault(access_key, account) is not account:
                    log.warning(
                        "an account is in two files, the first one counts accessKey=%s file=%s",
                        _short(access_key),
                        path,
                    )
        self._table = _Table(loaded, accounts)

    # --- requests of administrators -------------------------------------------------------------

    def put_account(
        self, access_key: str, change: Callable[[AccountEntry | None], AccountEntry]
    ) -> None:
        """Add or replace an account, in its file and here.

        Args:
            access_key: of the account.
            change: returns the new entry; gets the old one, or None.

        Raises:
            ConfigError: the entry is wrong, or the file cannot be written; nothing has changed.
        """
        with self._changing:
            path = self._file_of(access_key) or self.main_file
            file = self._file(path)
            entry = change(file.entry(access_key))
            self._write(path, with_account(file, entry, self._clock.now_ms()))

    def delete_account(self, access_key: str) -> None:
        """Remove an account from its file and from here.

        Raises:
            ConfigError: there is none, or the file cannot be written; nothing has changed.
        """
        with self._changing:
            path = self._file_of(access_key)
            if path is None:
                raise ConfigError(f"no account has the accessKey {_short(access_key)}")
            file = self._file(path)
            self._write(path, without_account(file, access_key, self._clock.now_ms()))

    def put_addresses(self, path: str | None, addresses: list[str]) -> None:
        """Replace the white addresses of a file.

        Args:
            path: the file; None for the main one.
            addresses: the addresses.

        Raises:
            ConfigError: it is no file of accounts, an address is wrong, or the file cannot be
                written; nothing has changed.
        """
        with self._changing:
            target = Path(path) if path else self.main_file
            if target not in self._table.files:
                known = ", ".join(map(str, self._table.files))
                raise ConfigError(f"{str(target)[:300]!r} is no file of accounts, expected {known}")
            file = self._file(target)
            self._write(target, with_addresses(file, addresses, self._clock.now_ms()))

    def versions(self) -> dict[Path, DataVersion]:
        """Return how often requests have changed each file."""
        return {path: each.file.version for path, each in self._table.files.items()}

    def entries(self) -> list[AccountEntry]:
        """Return all accounts as their files say them."""
        return [entry for each in self._table.files.values() for entry in each.file.entries()]

    def addresses(self) -> list[str]:
        """Return the white addresses of all files."""
        return [text for each in self._table.files.values() for text in each.file.addresses]

    def _file_of(self, access_key: str) -> Path | None:
        """Return the file whose entry of an account counts."""
        for path, each in self._table.files.items():
            if access_key in each.file.accounts:
                return path
        return None

    def _file(self, path: Path) -> AccountFile:
        """Return the content of a file, read again if it has changed."""
        loaded = self._table.files.get(path)
        try:
            if loaded is not None and loaded.stamp == _stamp(path):
                return loaded.file
        except OSError as problem:
            raise ConfigError(f"{path}: {problem.strerror}") from None
        return self._read(path)

    def _write(self, path: Path, document: Document) -> None:
        file = of_document(document)
        try:
            _make_private(path)
            save(self._files, path, render(document))
            stamp = _stamp(path)
        except OSError as problem:
            with suppress(OSError):
                _unfinished(path).unlink(missing_ok=True)
            raise ConfigError(f"cannot write {path}: {problem.strerror}") from None
        assert stamp is not None
        self._put({**self._table.files, path: _Loaded(stamp, file)})


def _stamp(path: Path) -> _Stamp | None:
    """Return what differs after each change of a file; None if there is no such file.

    Raises:
        OSError: the disk does not say so.
    """
    try:
        found = path.stat()
    except _GONE:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _unless_gone(problem: OSError) -> None:
    """Raise an error that does not mean that a folder is not there."""
    if not isinstance(problem, _GONE):
        raise problem


def _mode(path: Path) -> int:
    """Return the permissions of a file, or the permissions of a new file if there is none."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return _ONLY_OWNER


def _unfinished(path: Path) -> Path:
    """Return the file that `save` writes first."""
    return path.with_name(path.name + ".tmp")


def _make_private(path: Path) -> None:
    """Make the unfinished file: its secret keys are never there for more readers."""
    fresh = _unfinished(path)
    fresh.unlink(missing_ok=True)
    os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _ONLY_OWNER))
    fresh.chmod(_mode(path))


def _warn_of_mode(path: Path) -> None:
    if _mode(path) & 0o007:
        log.warning("every user of this machine may read the secret keys in %s: chmod 640", path)


def _short(access_key: str) -> str:
    return access_key[:NAMES_SHOWN_MAX]


def _refused(remark: str) -> ResponseError:
    return ResponseError(ResponseCode.SYSTEM_ERROR, remark)
