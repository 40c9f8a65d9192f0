"""An account of plain access control: its secret key, its permissions, its white addresses.

    permission := PUB | SUB | PUB|SUB | SUB|PUB | DENY      any other text denies

Source: PlainAccessResource, Permission and PlainPermissionManager, RocketMQ 4.9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cometmq.access.needs import Action, Need, Needs, ResourceType
from cometmq.access.plain.addresses import AddressSet
from cometmq.model.errors import ConfigError
from cometmq.model.topic import TRACE_TOPIC
from cometmq.protocol.signature import SigningKey

KEY_CHARS_MIN: Final = 7
KEY_CHARS_MAX: Final = 1024
_BOTH = int(Action.PUB | Action.SUB)
_PERMISSIONS: Final = {
    "DENY": 0,
    "PUB": int(Action.PUB),
    "SUB": int(Action.SUB),
    "PUB|SUB": _BOTH,
    "SUB|PUB": _BOTH,
}


class AccountEntry(msgspec.Struct, kw_only=True, rename="camel"):
    """An account as it stands in a file."""

    access_key: str
    secret_key: str
    white_remote_address: str = ""
    admin: bool = False
    default_topic_perm: str = ""
    default_group_perm: str = ""
    auto_create: str = ""
    """``true`` or ``false``: whether it creates topics and groups by using them; empty leaves that
    to the settings of the broker."""
    topic_perms: list[str] | None = None
    """Permissions such as ``T=PUB``; None without a list."""
    group_perms: list[str] | None = None

    def __repr__(self) -> str:
        """Return a text without the secret key."""
        return f"<AccountEntry accessKey={self.access_key!r}>"


class PlainAccount:
    """An account, ready to decide.

    Args:
        entry: what its file says.

    Raises:
        ConfigError: a key is too short, a permission has no ``=``, or an address is none. The
            text has no secret key.
    """

    __slots__ = (
        "auto_creates",
        "group_default",
        "groups",
        "is_administrator",
        "may_do_everything",
        "name",
        "signing_key",
        "topic_default",
        "topics",
        "white",
    )

    def __init__(self, entry: AccountEntry) -> None:
        self.name = entry.access_key
        _check_length("accessKey", entry.access_key, shown=entry.access_key)
        _check_length("secretKey", entry.secret_key, shown=entry.access_key)
        self.signing_key = SigningKey(entry.secret_key)
        self.is_administrator = entry.admin
        self.auto_creates = _auto_creates(entry.auto_create)
        self.topic_default = permission(entry.default_topic_perm)
        self.group_default = permission(entry.default_group_perm)
        self.topics = _permissions(entry.access_key, entry.topic_perms)
        self.groups = _permissions(entry.access_key, entry.group_perms)
        self.may_do_everything = entry.admin and not entry.topic_perms and not entry.group_perms
        """An administrator with a list of permissions is held to it."""
        try:
            self.white = AddressSet([entry.white_remote_address])
        except ConfigError as problem:
            raise ConfigError(f"account {entry.access_key[:100]!r}: {problem}") from None

    def refusal(self, code: int, needs: Needs) -> str | None:
        """Return why a request is refused; None if it is not."""
        if needs.administrator and not self.is_administrator:
            return (
                f"Need admin permission for request code={code}, but accessKey={self.name} is not"
            )
        if self.may_do_everything:
            return None
        for need in needs.resources:
            if not self.may(need):
                return f"No default permission for {need.resource_type.lower()}:{need.name[:300]}"
        return None

    def creation_refusal(self, need: Need, needs_right: bool) -> str | None:
        """Return why the account may not create a topic or a group by using it; None if it may."""
        may_create = self.auto_creates
        if may_create is None:
            may_create = self.is_administrator or not needs_right
        if may_create:
            return None
        return (
            f"accessKey={self.name} may not create the {need.resource_type.lower()}"
            f" {need.name[:300]} by using it: expected autoCreate: true of the account, or that"
            " an administrator creates it"
        )

    def may(self, need: Need) -> bool:
        """Return whether the account has a permission, by its list or its default."""
        if need.resource_type == ResourceType.GROUP:
            owned = self.groups.get(need.name, self.group_default)
        else:
            owned = self.topics.get(need.name, self.topic_default)
            if need.name == TRACE_TOPIC and need.action == Action.PUB:
                return True
        return owned & need.action == need.action


class _WhiteSender:
    """The sender of a request from a white address."""

    signing_key = None
    name = ""
    may_do_everything = True
    is_administrator = True

    def refusal(self, code: int, needs: Needs) -> str | None:
        """Refuse nothing."""
        return None

    def creation_refusal(self, need: Need, needs_right: bool) -> str | None:
        """Refuse nothing."""
        return None


WHITE_SENDER: Final = _WhiteSender()


def permission(text: str) -> int:
    """Return the actions that a permission allows."""
    return _PERMISSIONS.get(text.strip(), 0)


def _auto_creates(text: str) -> bool | None:
    """Return what ``autoCreate`` says; None if it says nothing. A misspelled word denies."""
    return text.strip().lower() == "true" if text.strip() else None


def check_permissions(kind: str, items: Sequence[str] | None) -> None:
    """Refuse a list with a permission that is misspelled; a file may have one, a request may not.

    Raises:
        ConfigError: names it.
    """
    for item in items or ():
        _, found, text = item.partition("=")
        if not found or text.strip() not in _PERMISSIONS:
            expected = ", ".join(_PERMISSIONS)
            raise ConfigError(
                f"{kind}: met {item[:100]!r}, expected NAME=PERMISSION with one of {expected}"
            )


def _permissions(access_key: str, items: Sequence[str] | None) -> Mapping[str, int]:
    permissions: dict[str, int] = {}
    for item in items or ():
        name, found, text = item.partition("=")
        if not found or "=" in text:
            raise ConfigError(
                f"account {access_key[:100]!r}: permission {item[:100]!r}: expected NAME=PERMISSION"
            )
        permissions[name.strip()] = permission(text)
    return permissions


def _check_length(name: str, key: str, *, shown: str) -> None:
    if not KEY_CHARS_MIN <= len(key) <= KEY_CHARS_MAX:
        raise ConfigError(
            f"account {shown[:100]!r}: {name} has {len(key)} characters, expected {KEY_CHARS_MIN}"
            f" to {KEY_CHARS_MAX}"
        )
