"""The users of a server and their policies, as they are now.

    users/      RocksDB: name → user
    acls/       RocksDB: User:name → policies

All of them are in memory; a change is on the disk first, and in force as a whole when it returns.
The users whose passwords the configuration file names are created at a start if there are none.

Source: AuthenticationMetadataManagerImpl and AuthorizationMetadataManagerImpl, RocketMQ 5.3. There
a user that is deleted loses its policies in a second step, which a crash may leave out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from cometmq.access.gate import NAMES_SHOWN_MAX, Account
from cometmq.access.needs import Need, Needs
from cometmq.access.senders import SENDERS_MAX, Senders
from cometmq.access.users.policies import (
    SUBJECT_PREFIX,
    Policy,
    PolicyEntry,
    PolicyType,
    Resource,
    Rules,
    decode_policies,
    encode_policies,
    with_entries,
    without_resource,
)
from cometmq.access.users.storage import Database
from cometmq.access.users.user import (
    NAME_CHARS_MAX,
    User,
    UserStatus,
    UserType,
    decode_user,
    encode_user,
)
from cometmq.model.errors import ConfigError, ResponseError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.signature import SigningKey
from cometmq.remoting.wire import Wire

log = logging.getLogger(__name__)

USERS_MAX: Final = 100_000

LONG_ENTRIES_MIN: Final = 100
"""Policies with this number of entries or more are made ready at the start, not by the first
request that needs them."""

Entries = Iterable[tuple[PolicyType, Sequence[PolicyEntry]]]


class UserError(ResponseError):
    """A request about users or policies cannot be carried out; the code is 16, as in RocketMQ."""

    def __init__(self, text: str) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, text)


class _Table(NamedTuple):
    """All users and policies; a change replaces the whole."""

    users: Mapping[str, User]
    policies: Mapping[str, tuple[Policy, ...]]


class UserSender:
    """A user at an address.

    Args:
        user: the user.
        rules: its policies; None if every user may do everything.
        host: the address.
    """

    __slots__ = ("_host", "_rules", "is_administrator", "may_do_everything", "name", "signing_key")

    def __init__(self, user: User, rules: Rules | None, host: str) -> None:
        self.name = user.name
        self._rules = rules
        self._host = host
        self.is_administrator = user.is_super
        self.may_do_everything = user.is_super or rules is None
        self.signing_key = SigningKey(user.password)

    def refusal(self, code: int, needs: Needs) -> str | None:
        """Return why a request is refused; None if it is not."""
        rules = self._rules
        if self.may_do_everything or rules is None:
            return None
        if needs.administrator:
            return f"{self._subject} has no permission for request code={code}: no super user"
        for need in needs.resources:
            decided = rules.decision(need, self._host)
            if not decided:
                why = "no matched policies" if decided is None else "the decision is deny"
                return (
                    f"{self._subject} has no permission to access"
                    f" {need.resource_type}:{need.name[:300]} from {self._host}, {why}."
                )
        return None

    def creation_refusal(self, need: Need, needs_right: bool) -> str | None:
        """Return why the user may not create a topic or a group by using it; None if it may."""
        return self.refusal(0, Needs(resources=(need,))) if needs_right else None

    @property
    def _subject(self) -> str:
        return f"{SUBJECT_PREFIX}{self.name[:NAMES_SHOWN_MAX]}"


class UserAccounts:
    """The users of a server, found by the access keys of requests.

    Args:
        folder: the directory of the two databases.
        first: users that are created if there are none of their names.
        authorizes: whether the policies of a user count; else every user may do everything.

    Raises:
        ConfigError: the database is not installed, or its content cannot be read.
        StoreError: the disk refuses, or another process uses the folder.
    """

    def __init__(self, folder: Path, first: Iterable[User] = (), *, authorizes: bool) -> None:
        self._authorizes = authorizes
        self._changing = Lock()
        self._senders = Senders(self._find)
        self._rules: dict[str, tuple[tuple[Policy, ...], Rules]] = {}
        """Prepared rules, with the policies that they were made of: for users that have sent a
        request, and for long policies."""
        self._users = Database(folder / "users")
        try:
            self._acls = Database(folder / "acls")
        except BaseException:
            self._users.close()
            raise
        try:
            self._table = self._read()
            for user in first:
                if user.name not in self._table.users:
                    self.create(user)
        except UserError as refusal:
            self.close()
            raise ConfigError(f"cannot create a user of the settings: {refusal.remark}") from None
        except BaseException:
            self.close()
            raise

    def _read(self) -> _Table:
        users = {name: decode_user(name, data) for name, data in self._users.items()}
        policies = {
            subject.removeprefix(SUBJECT_PREFIX): decode_policies(subject, data)
            for subject, data in self._acls.items()
        }
        for name, each in policies.items():
            rules = Rules(each)
            if sum(len(policy.entries) for policy in each) >= LONG_ENTRIES_MIN:
                self._remember_rules(name, each, rules)
        log.info("users are read users=%d with-policies=%d", len(users), len(policies))
        return _Table(users, policies)

    def close(self) -> None:
        """Close the databases; what was changed is on the disk already."""
        with self._changing:
            self._users.close()
            self._acls.close()

    # --- deciding -------------------------------------------------------------------------------

    @property
    def state(self) -> object:
        """An object that is another one after each change."""
        return self._table

    def sender_of(self, connection: Wire, access_key: str) -> Account:
        """Return the user with a name, whose signature is not checked yet.

        Raises:
            ResponseError: 16, there is none, or it is disabled.
        """
        return self._senders.account(connection, access_key, self._table)

    def named(self, connection: Wire, access_key: str) -> Account:
        """Return the user with a name: no connection proves another one.

        Raises:
            ResponseError: 16, there is none, or it is disabled.
        """
        return self.sender_of(connection, access_key)

    def _find(self, host: str, name: str) -> UserSender:
        if not name:
            raise UserError("username cannot be null.")
        table = self._table
        user = table.users.get(name)
        if user is None:
            raise UserError(f"User:{name[:NAMES_SHOWN_MAX]} is not found.")
        if user.status == UserStatus.DISABLE:
            raise UserError(f"User:{name[:NAMES_SHOWN_MAX]} is disabled.")
        return UserSender(user, self._rules_of(table, name) if self._authorizes else None, host)

    def _rules_of(self, table: _Table, name: str) -> Rules:
        policies = table.policies.get(name, ())
        known = self._rules.get(name)
        if known is not None and known[0] is policies:
            return known[1]
        rules = Rules(policies)
        self._remember_rules(name, policies, rules)
        return rules

    def _remember_rules(self, name: str, policies: tuple[Policy, ...], rules: Rules) -> None:
        if len(self._rules) >= SENDERS_MAX:
            self._rules.clear()
        self._rules[name] = policies, rules

    # --- users ----------------------------------------------------------------------------------

    def user(self, name: str) -> User | None:
        """Return the user of a name."""
        return self._table.users.get(name)

    def users(self, part: str = "") -> list[User]:
        """Return the users whose names contain a text, in the order of their names."""
        users = self._table.users
        return [users[name] for name in sorted(users) if part in name]

    def create(self, user: User, entries: Entries = (), *, by_super: bool = True) -> None:
        """Add a user.

        Args:
            user: the user.
            entries: its policies.
            by_super: whether the sender of the request may manage super users.

        Raises:
            ResponseError: there is one of that name, there are too many, or the sender may not.
            StoreError: the disk refuses; nothing has changed.
        """
        _check_text("username", user.name)
        _check_text("password", user.password)
        with self._changing:
            users = self._table.users
            if user.is_super and not by_super:
                raise ResponseError(
                    ResponseCode.SYSTEM_ERROR, "The super user can only be create by super user"
                )
            if user.name in users:
                raise UserError("The user is existed")
            if len(users) >= USERS_MAX:
                raise UserError(f"there are {USERS_MAX} users already, which is the limit")
            policies = with_entries((), entries)
            if policies or user.name in self._table.policies:  # left behind by a crash
                self._put_policies(user.name, policies)
            self._put_user(user)

    def update(
        self,
        name: str,
        *,
        password: str | None,
        type: UserType | None,
        status: UserStatus | None,
        by_super: bool = True,
    ) -> None:
        """Change a user; None leaves a value as it is.

        Raises:
            ResponseError: there is none of that name, or the sender may not.
            StoreError: the disk refuses; nothing has changed.
        """
        if password:
            _check_text("password", password)
        with self._changing:
            if type == UserType.SUPER and not by_super:
                raise ResponseError(ResponseCode.SYSTEM_ERROR, _ONLY_SUPER)
            old = self._table.users.get(name)
            if old is None:
                raise UserError("The user is not exist")
            if old.is_super and not by_super:
                raise UserError(_ONLY_SUPER)
            self._put_user(
                User(name, password or old.password, type or old.type, status or old.status)
            )

    def delete(self, name: str, *, by_super: bool = True) -> None:
        """Remove a user, if there is one, and its policies.

        Raises:
            ResponseError: the sender may not.
            StoreError: the disk refuses; the user may have lost its policies.
        """
        with self._changing:
            old = self._table.users.get(name)
            if old is None:
                return
            if old.is_super and not by_super:
                raise UserError(_ONLY_SUPER)
            # Policies first: left behind, they would be those of the next user with this name.
            self._put_policies(name, ())
            self._users.delete(name)
            users = {**self._table.users}
            del users[name]
            self._table = self._table._replace(users=users)

    def _put_user(self, user: User) -> None:
        self._users.put(user.name, encode_user(user))
        self._table = self._table._replace(users={**self._table.users, user.name: user})

    # --- policies -------------------------------------------------------------------------------

    def policies(self, name: str) -> tuple[Policy, ...]:
        """Return the policies of a user; none if it has none.

        Raises:
            ResponseError: there is no such user.
        """
        table = self._table
        if name not in table.users:
            raise UserError("The subject is not exist.")
        return table.policies.get(name, ())

    def all_policies(self, part: str = "") -> list[tuple[str, tuple[Policy, ...]]]:
        """Return the policies of all users whose subject contains a text, with their names."""
        policies = self._table.policies
        return [
            (name, policies[name])
            for name in sorted(policies)
            if part in f"{SUBJECT_PREFIX}{name}" and policies[name]
        ]

    def put_entries(self, name: str, entries: Entries) -> None:
        """Add entries to the policies of a user; one for the same resource is replaced.

        Raises:
            ResponseError: there is no such user.
            ConfigError: there are too many entries.
            StoreError: the disk refuses; nothing has changed.
        """
        with self._changing:
            if name not in self._table.users:
                subject = f"{SUBJECT_PREFIX}{name[:NAMES_SHOWN_MAX]}"
                raise UserError(f"The subject of {subject} is not exist.")
            old = self._table.policies.get(name, ())
            self._put_policies(name, with_entries(old, entries))

    def delete_entries(
        self, name: str, kind: PolicyType = PolicyType.CUSTOM, resource: Resource | None = None
    ) -> None:
        """Remove the entry of a resource, or all policies of a user.

        Raises:
            ResponseError: there is no such user, or it has no policies.
            StoreError: the disk refuses; nothing has changed.
        """
        with self._changing:
            old = self.policies(name)
            if not old:
                raise UserError("The acl is not exist.")
            left = () if resource is None else without_resource(old, kind, resource)
            self._put_policies(name, left)

    def _put_policies(self, name: str, policies: tuple[Policy, ...]) -> None:
        subject = f"{SUBJECT_PREFIX}{name}"
        table = {**self._table.policies}
        if policies:
            self._acls.put(subject, encode_policies(name, policies))
            self._remember_rules(name, policies, Rules(policies))
            table[name] = policies
        else:
            self._acls.delete(subject)
            table.pop(name, None)
            self._rules.pop(name, None)
        self._table = self._table._replace(policies=table)


_ONLY_SUPER: Final = "The super user can only be update by super user"


def _check_text(name: str, value: str) -> None:
    if not value.strip():
        raise UserError(f"{name} can not be blank")
    if not value.isprintable():
        raise UserError(f"{name} has a control character, expected printable ones")
    if len(value) > NAME_CHARS_MAX:
        raise UserError(f"{name} has {len(value)} characters, expected at most {NAME_CHARS_MAX}")
