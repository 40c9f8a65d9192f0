"""A user: its password, whether it is a super user, whether it is enabled.

    {"password":"…","subjectType":1,"userStatus":1,"userType":2,"username":"…"}

is a value of the database ``users``, whose key is the name; the numbers are those of `UserType` and
`UserStatus`. Source: User and LocalAuthenticationMetadataProvider, RocketMQ 5.3.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

from cometmq.model.errors import ConfigError

NAME_CHARS_MAX: Final = 1_024
"""The limit of a name, and of a password."""
USER_SUBJECT: Final = 1
"""The number of users among the types of subjects, of which there are no others."""


class UserType(IntEnum):
    """The type of a user; the names are the names in requests."""

    SUPER = 1
    """Everything."""
    NORMAL = 2
    """The user may do what its policies allow."""

    @classmethod
    def named(cls, text: str | None) -> UserType | None:
        """Return the type of a name, in any case; None for another text."""
        return _TYPES.get((text or "").lower())

    @property
    def text(self) -> str:
        """The name as responses have it."""
        return self.name.capitalize()


class UserStatus(IntEnum):
    """Whether a user's requests are accepted; requests have these names."""

    ENABLE = 1
    DISABLE = 2

    @classmethod
    def named(cls, text: str | None) -> UserStatus | None:
        """Return the status of a name, in any case; None for another text."""
        return _STATUSES.get((text or "").lower())

    @property
    def text(self) -> str:
        """The name as responses have it."""
        return self.name.lower()


_TYPES: Final = {each.name.lower(): each for each in UserType}
_STATUSES: Final = {each.name.lower(): each for each in UserStatus}


class User(msgspec.Struct, frozen=True):
    """One user."""

    name: str
    password: str
    type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE

    def __repr__(self) -> str:
        """Return a text without the password."""
        return f"<User {self.name!r} {self.type.text} {self.status.text}>"

    @property
    def is_super(self) -> bool:
        """Whether it is a super user."""
        return self.type == UserType.SUPER


class _Stored(msgspec.Struct, rename="camel", omit_defaults=True):
    password: str
    subject_type: int | None = None
    user_status: UserStatus | None = None
    user_type: UserType | None = None
    username: str | None = None


def encode_user(user: User) -> bytes:
    """Return a user as the database has it."""
    stored = _Stored(user.password, USER_SUBJECT, user.status, user.type, user.name)
    return msgspec.json.encode(stored)


def decode_user(name: str, data: bytes) -> User:
    """Read a user of the database.

    Args:
        name: the key.
        data: the value.

    Raises:
        ConfigError: the value is malformed; the text does not show it.
    """
    try:
        stored = msgspec.json.decode(data, type=_Stored)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise ConfigError(
            f"user {name[:100]!r}: expected JSON with password, userType 1 or 2 and userStatus"
            f" 1 or 2, met {len(data)} other bytes"
        ) from None
    return User(
        name,
        stored.password,
        stored.user_type or UserType.NORMAL,
        stored.user_status or UserStatus.ENABLE,
    )
