"""Creates, changes and deletes users, policies and plain accounts.

A change is made at each broker of the form. Forms with a password have no preview: it would have to
be typed twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Literal, TypeVar

import msgspec

from cometmq.client.errors import ClientError
from cometmq.console.accounts.page import (
    ACCOUNTS,
    USERS,
    Kind,
    PolicyRow,
    named,
    policy_rows,
    refusal,
)
from cometmq.console.changes import Change
from cometmq.console.forms import Form
from cometmq.console.pages import Name, NotFoundError, Role, address, registered
from cometmq.console.reads import Reads
from cometmq.model.errors import CometError, ConfigError
from cometmq.protocol.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from cometmq.protocol.bodies.route import RegisteredBroker

T = TypeVar("T")

SECRET_CHARS_MAX = 4096
ENTRIES_MAX = 200
Secret = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=SECRET_CHARS_MAX,
        extra={"secret": True},
        extra_json_schema={"format": "password", "writeOnly": True},
    ),
]
Lines = Annotated[list[str], msgspec.Meta(max_length=ENTRIES_MAX)]
Brokers = Annotated[
    list[str],
    msgspec.Meta(max_length=256, description="Addresses of brokers, one a line; all if none."),
]
User = Annotated[str, msgspec.Meta(min_length=1, max_length=255, description="Name of the user.")]
Subject = Annotated[
    str,
    msgspec.Meta(pattern="^User:.", max_length=260, description="The user, written User:NAME."),
]


class AtBroker(msgspec.Struct):
    """A broker that has the change."""

    broker: str
    address: str


class Done(msgspec.Struct):
    """The brokers that have the change."""

    brokers: list[AtBroker]


async def _brokers(reads: Reads, addresses: list[str]) -> list[RegisteredBroker]:
    """Return the brokers with some addresses; all, slaves too, if there is no address.

    Raises:
        NotFoundError: one is not registered, or none is.
    """
    if addresses:
        return [await registered(reads, each) for each in dict.fromkeys(addresses)]
    found = await reads.brokers()
    if not found:
        raise NotFoundError("no broker is registered")
    return found


async def _at_each(
    reads: Reads,
    addresses: list[str],
    make: Callable[[str], Awaitable[object]],
    kind: Kind = USERS,
) -> Done:
    """Make a change at some brokers.

    Args:
        reads: requests to the brokers.
        addresses: the brokers; all if there is none.
        make: makes the change at an address.
        kind: what is changed.

    Raises:
        ClientError: some refused; the text names them, and those that have the change.
    """
    brokers = await _brokers(reads, addresses)

    async def at(broker: RegisteredBroker) -> None:
        await make(broker.address)

    done, failed = list[AtBroker](), list[str]()
    for each, result in zip(brokers, await reads.each(brokers, at), strict=True):
        if isinstance(result, CometError):
            failed.append(f"{named(each)} ({each.address}) {refusal(result, kind)}")
        else:
            done.append(AtBroker(named(each), each.address))
    if failed:
        made = ", ".join(each.broker for each in done) or "no broker"
        raise ClientError(f"{'; '.join(failed)}; {made} has the change")
    return Done(done)


async def _from_each(
    reads: Reads, addresses: list[str], read: Callable[[RegisteredBroker], Awaitable[list[T]]]
) -> list[T]:
    """Return what some brokers have.

    Raises:
        CometError: a broker refuses.
    """
    rows: list[T] = []
    brokers = await _brokers(reads, addresses)
    for broker, found in zip(brokers, await reads.each(brokers, read), strict=True):
        if isinstance(found, CometError):
            raise ClientError(f"{named(broker)} {refusal(found, USERS)}") from found
        rows += found
    return rows


# --- users ----------------------------------------------------------------------------------------


class CreateUser(Form):
    """A new user."""

    user: User
    password: Secret
    type: Literal["Normal", "Super"] = "Normal"
    brokers: Brokers = msgspec.field(default_factory=list)


async def create_user(reads: Reads, form: CreateUser) -> Done:
    """Create a user."""
    info = UserInfo(username=form.user, password=form.password, user_type=form.type)
    return await _at_each(reads, form.brokers, lambda broker: reads.admin.create_user(broker, info))


class ChangeUser(Form):
    """What changes of a user; a field without a value stays."""

    user: User
    password: Secret | None = None
    type: Literal["Normal", "Super"] | None = None
    status: Literal["enable", "disable"] | None = None
    brokers: Brokers = msgspec.field(default_factory=list)


async def change_user(reads: Reads, form: ChangeUser) -> Done:
    """Change a user."""
    if not (form.password or form.type or form.status):
        raise ConfigError("expected a new password, type or status")
    info = UserInfo(
        username=form.user, password=form.password, user_type=form.type, user_status=form.status
    )
    return await _at_each(reads, form.brokers, lambda broker: reads.admin.update_user(broker, info))


class DeleteUser(Form):
    """A user that is deleted."""

    user: User
    brokers: Brokers = msgspec.field(default_factory=list)


class UserAtBroker(msgspec.Struct):
    """A user as a broker has it."""

    broker: str
    type: str
    status: str


class DeletedUser(msgspec.Struct):
    """A user and its policies, which are deleted with it."""

    user: str
    brokers: list[UserAtBroker]
    policies: list[PolicyRow]


async def deleted_user(reads: Reads, form: DeleteUser) -> DeletedUser:
    """Return what is deleted."""

    async def users_of(broker: RegisteredBroker) -> list[UserAtBroker]:
        return [
            UserAtBroker(named(broker), each.user_type or "", each.user_status or "")
            for each in await reads.admin.user(broker.address, form.user)
        ]

    users = await _from_each(reads, form.brokers, users_of)
    if not users:
        raise NotFoundError(f"there is no user {form.user}")
    return DeletedUser(form.user, users, await _policies(reads, form.brokers, f"User:{form.user}"))


async def _policies(reads: Reads, addresses: list[str], subject: str) -> list[PolicyRow]:
    """Return the entries of a subject at some brokers."""

    async def policies_of(broker: RegisteredBroker) -> list[PolicyRow]:
        rows = [
            row
            for each in await reads.admin.policy(broker.address, subject)
            for row in policy_rows(each)
        ]
        for row in rows:
            row.brokers = [named(broker)]
        return rows

    return await _from_each(reads, addresses, policies_of)


async def delete_user(reads: Reads, form: DeleteUser) -> Done:
    """Delete a user. Brokers acknowledge the deletion of a user that they do not have."""
    await deleted_user(reads, form)
    return await _at_each(
        reads, form.brokers, lambda broker: reads.admin.delete_user(broker, form.user)
    )


# --- policies -------------------------------------------------------------------------------------


class SetPolicy(Form):
    """Entries of the policies of a user. An entry for the same resource is replaced."""

    subject: Subject
    resources: Annotated[
        Lines,
        msgspec.Meta(
            min_length=1, description="One a line, such as Topic:orders, Group:*, Cluster:*."
        ),
    ]
    actions: Annotated[
        Lines,
        msgspec.Meta(
            min_length=1,
            description="One a line: All, or Pub, Sub, Create, Update, Delete, Get, List.",
        ),
    ]
    source_ips: Annotated[
        Lines, msgspec.Meta(description="Addresses or networks it is for; all if none.")
    ] = msgspec.field(default_factory=list)
    decision: Literal["Allow", "Deny"] = "Allow"
    brokers: Brokers = msgspec.field(default_factory=list)


class PolicyChange(msgspec.Struct):
    """The entries of a user before and after a change."""

    subject: str
    now: list[PolicyRow]
    then: list[PolicyRow]
    """The entries of the form."""


async def set_policy_plan(reads: Reads, form: SetPolicy) -> PolicyChange:
    """Return the entries of the user now, and those of the form."""
    now = await _policies(reads, form.brokers, form.subject)
    return PolicyChange(form.subject, now, policy_rows(_policy(form)))


def _policy(form: SetPolicy) -> AclInfo:
    entries = [
        PolicyEntryInfo(
            resource=each,
            actions=form.actions,
            source_ips=form.source_ips or None,
            decision=form.decision,
        )
        for each in form.resources
    ]
    return AclInfo(subject=form.subject, policies=[PolicyInfo(entries=entries)])


async def set_policy(reads: Reads, form: SetPolicy) -> Done:
    """Create the policies of a user, or change them."""
    policy = _policy(form)

    async def put(broker: str) -> None:
        if any(each.policies for each in await reads.admin.policy(broker, form.subject)):
            await reads.admin.update_policy(broker, policy)
        else:
            await reads.admin.create_policy(broker, policy)

    return await _at_each(reads, form.brokers, put)


class DeletePolicy(Form):
    """The policies of a user, or its entry for one resource."""

    subject: Subject
    resource: Annotated[
        Name | None,
        msgspec.Meta(description="Only the entry for it; all entries if none."),
    ] = None
    brokers: Brokers = msgspec.field(default_factory=list)


class DeletedPolicies(msgspec.Struct):
    """The entries that are deleted."""

    subject: str
    policies: list[PolicyRow]


async def deleted_policies(reads: Reads, form: DeletePolicy) -> DeletedPolicies:
    """Return the entries that are deleted."""
    found = await _policies(reads, form.brokers, form.subject)
    rows = [each for each in found if form.resource in (None, each.resource)]
    if not rows:
        of = f" for {form.resource}" if form.resource else ""
        raise NotFoundError(f"{form.subject} has no policy{of}")
    return DeletedPolicies(form.subject, rows)


async def delete_policy(reads: Reads, form: DeletePolicy) -> Done:
    """Delete the entries."""
    await deleted_policies(reads, form)
    return await _at_each(
        reads, form.brokers,
        lambda broker: reads.admin.delete_policy(broker, form.subject, form.resource),
    )  # fmt: skip


# --- plain accounts -------------------------------------------------------------------------------

AccessKey = Annotated[
    str, msgspec.Meta(min_length=1, max_length=255, description="Access key of the account.")
]
Entries = Annotated[
    Lines,
    msgspec.Meta(
        description="NAME=PERMISSION, one a line; none leaves them, a line with - takes all away."
    ),
]


class SetAccount(Form):
    """A plain account, or another secret key and other permissions for one."""

    access_key: AccessKey
    secret_key: Secret
    administrator: Literal["as it is", "yes", "no"] = "as it is"
    white_address: Annotated[
        Annotated[str, msgspec.Meta(max_length=4096)] | None,
        msgspec.Meta(description="No signature is needed there; - takes it away."),
    ] = None
    topic_permission: Annotated[
        Literal["DENY", "PUB", "SUB", "PUB|SUB"] | None,
        msgspec.Meta(description="For topics without an entry."),
    ] = None
    group_permission: Annotated[
        Literal["DENY", "SUB"] | None, msgspec.Meta(description="For groups without an entry.")
    ] = None
    topics: Entries = msgspec.field(default_factory=list)
    groups: Entries = msgspec.field(default_factory=list)
    brokers: Brokers = msgspec.field(default_factory=list)


async def set_account(reads: Reads, form: SetAccount) -> Done:
    """Create a plain account, or change it."""

    def listed(lines: list[str]) -> str | None:
        return ",".join(each for each in lines if each != "-") if lines else None

    white = "" if form.white_address == "-" else form.white_address
    return await _at_each(
        reads,
        form.brokers,
        lambda broker: reads.admin.set_account(
            broker,
            form.access_key,
            form.secret_key,
            admin=None if form.administrator == "as it is" else form.administrator == "yes",
            white_address=white,
            topic_perm=form.topic_permission,
            group_perm=form.group_permission,
            topic_perms=listed(form.topics),
            group_perms=listed(form.groups),
        ),
        ACCOUNTS,
    )


class DeleteAccount(Form):
    """A plain account that is deleted."""

    access_key: AccessKey
    brokers: Brokers = msgspec.field(default_factory=list)


async def delete_account(reads: Reads, form: DeleteAccount) -> Done:
    """Delete a plain account."""
    return await _at_each(
        reads,
        form.brokers,
        lambda broker: reads.admin.delete_account(broker, form.access_key),
        ACCOUNTS,
    )


class SetWhiteAddresses(Form):
    """The addresses from which no request needs a plain account; they replace those of now."""

    addresses: Annotated[Lines, msgspec.Meta(description="Addresses or patterns, one a line.")] = (
        msgspec.field(default_factory=list)
    )
    brokers: Brokers = msgspec.field(default_factory=list)


async def set_white_addresses(reads: Reads, form: SetWhiteAddresses) -> Done:
    """Replace the addresses."""
    text = ",".join(form.addresses)
    return await _at_each(
        reads,
        form.brokers,
        lambda broker: reads.admin.set_white_addresses(broker, text),
        ACCOUNTS,
    )


def _to_users(form: CreateUser | ChangeUser | DeleteUser) -> str:
    return address("/accounts", search=form.user)


def _to_policies(form: SetPolicy | DeletePolicy) -> str:
    return address("/accounts/policies", search=form.subject)


def _to_plain(_form: SetAccount | DeleteAccount | SetWhiteAddresses) -> str:
    return "/accounts/plain"


_change = partial(Change, result=Done, role=Role.ADMINISTRATOR)

CHANGES = (
    _change("/accounts/users/create", "Create a user", CreateUser, create_user, back=_to_users),
    _change("/accounts/users/change", "Change a user", ChangeUser, change_user, back=_to_users),
    _change(
        "/accounts/users/delete", "Delete a user", DeleteUser, delete_user, back=_to_users,
        preview=deleted_user, previewed=DeletedUser,
    ),
    _change(
        "/accounts/policies/set", "Set a policy", SetPolicy, set_policy, back=_to_policies,
        preview=set_policy_plan, previewed=PolicyChange,
    ),
    _change(
        "/accounts/policies/delete", "Delete a policy", DeletePolicy, delete_policy,
        back=_to_policies, preview=deleted_policies, previewed=DeletedPolicies,
    ),
    _change("/accounts/plain/set", "Set a plain account", SetAccount, set_account, back=_to_plain),
    _change(
        "/accounts/plain/delete", "Delete a plain account", DeleteAccount, delete_account,
        back=_to_plain,
    ),
    _change(
        "/accounts/plain/white-addresses", "Set white addresses", SetWhiteAddresses,
        set_white_addresses, back=_to_plain,
    ),
)  # fmt: skip
