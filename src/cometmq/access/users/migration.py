"""Makes users and policies of the accounts of plain access control.

    administrator                user of type Super
    topicPerms, groupPerms       custom entries
    default permissions          default entries for every topic and every group

Source: AuthMigrator, RocketMQ 5.3. There a permission that is misspelled, which denies as long as
it stands in a file of accounts, becomes an entry that allows everything.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from cometmq.access.needs import Action
from cometmq.access.plain.account import AccountEntry, permission
from cometmq.access.plain.accounts import PlainAccounts
from cometmq.access.users.accounts import UserAccounts
from cometmq.access.users.policies import (
    ActionCode,
    Decision,
    Environment,
    Pattern,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourceTypeCode,
)
from cometmq.access.users.user import User, UserType
from cometmq.model.topic import RETRY_PREFIX

log = logging.getLogger(__name__)


def migrate(plain: PlainAccounts, users: UserAccounts) -> None:
    """Create a user for each account that is none yet, with its policies.

    Raises:
        ConfigError: a file of accounts cannot be used.
        ResponseError: an account has a name that no user can have.
        StoreError: the disk refuses; the users so far are created.
    """
    if not plain.has_files:
        log.info("there are no accounts to make users of file=%s", plain.main_file)
        return
    plain.load()
    for entry in plain.entries():
        if users.user(entry.access_key) is not None:
            continue
        kind = UserType.SUPER if entry.admin else UserType.NORMAL
        users.create(User(entry.access_key, entry.secret_key, kind), policies_of(entry))
        log.info("user made of an account name=%s type=%s", entry.access_key[:200], kind.text)
        if entry.white_remote_address:
            log.warning(
                "the white address of an account is left out, add it to entries as a source ip"
                " name=%s address=%s",
                entry.access_key[:200],
                entry.white_remote_address[:200],
            )


def policies_of(entry: AccountEntry) -> list[tuple[PolicyType, list[PolicyEntry]]]:
    """Return the entries of an account."""
    custom = [
        *_named(ResourceTypeCode.TOPIC, entry.topic_perms or ()),
        *_named(ResourceTypeCode.GROUP, entry.group_perms or ()),
    ]
    defaults = [
        _entry(Resource.of(kind, Pattern.ANY), text)
        for kind, text in (
            (ResourceTypeCode.TOPIC, entry.default_topic_perm),
            (ResourceTypeCode.GROUP, entry.default_group_perm),
        )
        if text.strip()
    ]
    return [(PolicyType.CUSTOM, custom), (PolicyType.DEFAULT, defaults)]


def _named(kind: ResourceTypeCode, permissions: Sequence[str]) -> Iterator[PolicyEntry]:
    for text in permissions:
        name, _, value = text.partition("=")
        name = name.strip()
        if kind == ResourceTypeCode.GROUP:
            name = name.removeprefix(RETRY_PREFIX)
        yield _entry(Resource.of(kind, Pattern.LITERAL, name), value)


def _entry(resource: Resource, text: str) -> PolicyEntry:
    owned = permission(text)
    actions = tuple(
        code
        for code, action in ((ActionCode.PUB, Action.PUB), (ActionCode.SUB, Action.SUB))
        if owned & action
    )
    if not actions:
        return PolicyEntry((ActionCode.ALL,), Decision.DENY, Environment(), resource)
    return PolicyEntry(actions, Decision.ALLOW, Environment(), resource)
