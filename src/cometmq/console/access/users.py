"""The users of the console: a file with a line ``name:role:hash`` for each.

The hashes are Argon2id with the parameters that OWASP recommends for little memory: 19 MiB. The
file is read again when it changes, so a removed user is signed out at the next request.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import NamedTuple

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from cometmq.console.pages import Role
from cometmq.model.errors import ConfigError
from cometmq.system.log_format import printable

FILE_BYTES_MAX = 1024 * 1024
PASSWORD_CHARS_MIN, PASSWORD_CHARS_MAX = 12, 256
"""NIST SP 800-63B asks for at least 8, and for no rules about letters and digits."""
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_HASHER = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)


class User(NamedTuple):
    """A line of the file."""

    name: str
    role: Role
    hash: str


class Users:
    """The users of a file.

    Args:
        path: the file.

    Raises:
        ConfigError: it cannot be read, or a line is malformed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = (0, 0, 0)
        self._users: dict[str, User] = {}
        self._read_changes()
        _hash_of_nobody()  # an unknown user takes as long as a wrong password, the first one too

    def find(self, name: str) -> User | None:
        """Return the user of a name.

        Raises:
            ConfigError: the file has changed, and cannot be read.
        """
        self._read_changes()
        return self._users.get(name)

    def _read_changes(self) -> None:
        try:
            now = self._path.stat()
            state = now.st_mtime_ns, now.st_size, now.st_ino
            if state != self._state:
                self._users = read_users(self._path)
                self._state = state
        except OSError as error:
            raise ConfigError(
                f"{self._path}: {error.strerror}; 'cometmq console-user' makes the file"
            ) from None


def read_users(path: Path) -> dict[str, User]:
    """Return the users of a file by name.

    Raises:
        OSError: it cannot be read.
        ConfigError: it is too large, or a line is malformed.
    """
    with path.open("rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: larger than {FILE_BYTES_MAX} bytes, expected a file of users")
    users: dict[str, User] = {}
    for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.strip().partition(":")
        role, _, hashed = rest.partition(":")
        if not _NAME.fullmatch(name) or name in users or not hashed.startswith("$argon2id$"):
            raise ConfigError(
                f"{path}:{number}: expected name:role:hash with a name that is in no other line;"
                " 'cometmq console-user' writes such lines"
            )
        users[name] = User(name, role_of(role, f"{path}:{number}: "), hashed)
    return users


def role_of(text: str, where: str = "") -> Role:
    """Return the role of a name.

    Raises:
        ConfigError: there is no such role.
    """
    try:
        return Role[text.upper()]
    except KeyError:
        names = ", ".join(each.name.lower() for each in Role)
        raise ConfigError(f"{where}role {printable(text):.40}: expected one of {names}") from None


def is_password_of(user: User | None, password: str) -> bool:
    """Whether a user has this password; takes as long for a user that does not exist."""
    try:
        _HASHER.verify(_hash_of_nobody() if user is None else user.hash, password)
    except (VerificationError, InvalidHashError):
        return False
    return user is not None


@functools.cache
def _hash_of_nobody() -> str:
    """Return a hash that fits no password."""
    return _HASHER.hash(os.urandom(16).hex())


def add_user(path: Path, name: str, role: Role, password: str) -> None:
    """Write a user into a file, which is made if there is none; replaces a user of this name.

    Raises:
        ConfigError: the name or the password cannot be used, or the file is malformed.
        OSError: the file cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"user {printable(name):.80}: expected 1 to 64 of the characters A-Z a-z 0-9 _ . @ -"
        )
    if not PASSWORD_CHARS_MIN <= len(password) <= PASSWORD_CHARS_MAX:
        raise ConfigError(
            f"the password has {len(password)} characters: expected {PASSWORD_CHARS_MIN} to"
            f" {PASSWORD_CHARS_MAX}"
        )
    users = read_users(path) if path.exists() else {}
    users[name] = User(name, role, _HASHER.hash(password))
    lines = [f"{each.name}:{each.role.name.lower()}:{each.hash}\n" for each in users.values()]
    fresh = path.with_name(f"{path.name}.tmp")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
