"""Users, policies and plain accounts, as brokers have them.

Each broker has its own. A row names the brokers that have it, unless all that were asked do. No
result has a password or a secret key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from cometmq.console.pages import (
    NAME_MAX,
    Page,
    PageNumber,
    Paging,
    Query,
    Role,
    Search,
    paged,
    registered,
)
from cometmq.console.reads import Reads
from cometmq.model.errors import CometError, ResponseError
from cometmq.protocol.bodies.auth import AclInfo
from cometmq.protocol.bodies.base import decode_body
from cometmq.protocol.bodies.route import RegisteredBroker
from cometmq.protocol.codes import RequestCode, ResponseCode

R = TypeVar("R", "UserRow", "PolicyRow", "AccountRow")

BROKERS_ASKED_MAX = 8
"""Brokers that a page asks, unless it is of one broker."""


class Kind(NamedTuple):
    """A kind of access control, and what is said of a broker without it."""

    without: str
    """It does not serve the requests."""
    needed: str
    """It serves them, and lacks a setting: RocketMQ's brokers fail then, or do not respond."""


USERS = Kind(
    "has no users and policies: brokers of CometMQ and of RocketMQ 5.3 have them",
    "users need authenticationMetadataProvider, and policies authorizationMetadataProvider too, in"
    " the settings of the broker",
)
ACCOUNTS = Kind(
    "has no plain accounts: brokers of CometMQ and of RocketMQ up to 5.3.2 have them",
    "plain accounts need aclEnable=true in the settings of the broker",
)
LISTED = ACCOUNTS._replace(
    without="shows no plain accounts: brokers of CometMQ and of RocketMQ 4.6 to 4.9.7 do"
)


class AccountsQuery(Query):
    """Which part of the list."""

    broker: Annotated[
        str, msgspec.Meta(max_length=NAME_MAX, description="Address of a broker; empty for all.")
    ] = ""
    search: Search = ""
    page: PageNumber = 1


class Asked(msgspec.Struct):
    """The brokers that a page has asked."""

    brokers: list[str]
    is_cut: bool
    """Whether there are others."""
    errors: list[str]


class UserRow(msgspec.Struct):
    """A user."""

    user: str
    type: str
    """``Super`` may do everything, ``Normal`` what its policies say."""
    status: str
    brokers: list[str]
    """The brokers that have it; empty for all that were asked."""


class UsersFound(msgspec.Struct):
    """A part of the list of users."""

    asked: Asked
    paging: Paging
    users: list[UserRow]


class PolicyRow(msgspec.Struct):
    """An entry of the policies of a user."""

    subject: str
    type: str
    resource: str
    actions: list[str]
    source_ips: list[str]
    decision: str
    brokers: list[str]
    """The brokers that have it; empty for all that were asked."""


class PoliciesFound(msgspec.Struct):
    """A part of the list of policies."""

    asked: Asked
    paging: Paging
    policies: list[PolicyRow]


class AccountRow(msgspec.Struct):
    """A plain account, without its secret key."""

    access_key: str
    administrator: bool
    white_address: str
    topic_permission: str
    """For topics without an entry."""
    group_permission: str
    topics: list[str]
    groups: list[str]
    brokers: list[str]
    """The brokers that have it; empty for all that were asked."""


class WhiteAddresses(msgspec.Struct):
    """The addresses from which no request to a broker needs a plain account."""

    broker: str
    addresses: list[str]


class PlainFound(msgspec.Struct):
    """A part of the list of plain accounts."""

    asked: Asked
    paging: Paging
    accounts: list[AccountRow]
    white_addresses: list[WhiteAddresses]


async def users(reads: Reads, query: AccountsQuery) -> UsersFound:
    """Return users; each broker of the page gets one request."""

    async def users_of(broker: RegisteredBroker) -> list[UserRow]:
        return [
            UserRow(each.username or "", each.user_type or "", each.user_status or "", [])
            for each in await reads.admin.users(broker.address)
        ]

    asked, rows = await _rows(reads, query.broker, users_of, USERS)
    rows = [each for each in rows if query.search.strip().lower() in each.user.lower()]
    shown, paging = paged(sorted(rows, key=lambda each: each.user), query.page)
    return UsersFound(asked, paging, list(shown))


async def policies(reads: Reads, query: AccountsQuery) -> PoliciesFound:
    """Return policies; each broker of the page gets one request."""

    async def policies_of(broker: RegisteredBroker) -> list[PolicyRow]:
        return [
            row for each in await reads.admin.policies(broker.address) for row in policy_rows(each)
        ]

    asked, rows = await _rows(reads, query.broker, policies_of, USERS)
    wanted = query.search.strip().lower()
    rows = [each for each in rows if wanted in f"{each.subject} {each.resource}".lower()]
    rows.sort(key=lambda each: (each.subject, each.resource))
    shown, paging = paged(rows, query.page)
    return PoliciesFound(asked, paging, list(shown))


def policy_rows(found: AclInfo) -> list[PolicyRow]:
    """Return the entries of the policies of one user."""
    return [
        PolicyRow(
            found.subject or "", policy.policy_type or "", entry.resource or "",
            entry.actions or [], entry.source_ips or [], entry.decision or "", [],
        )
        for policy in found.policies
        for entry in policy.entries
    ]  # fmt: skip


class _Account(msgspec.Struct, rename="camel"):
    """A plain account in the response of a broker, whose secret key is not decoded."""

    access_key: str
    admin: bool = False
    white_remote_address: str | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


class _Accounts(msgspec.Struct, rename="camel"):
    """The response to GET_BROKER_CLUSTER_ACL_CONFIG (54)."""

    global_white_addrs: list[str] | None = None
    plain_access_configs: list[_Account] | None = None


async def plain(reads: Reads, query: AccountsQuery) -> PlainFound:
    """Return plain accounts; each broker of the page gets one request."""
    addresses: list[WhiteAddresses] = []

    async def accounts_of(broker: RegisteredBroker) -> list[AccountRow]:
        code = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
        found = decode_body(_Accounts, (await reads.admin.call(broker.address, code)).body)
        addresses.append(WhiteAddresses(named(broker), found.global_white_addrs or []))
        return [
            AccountRow(
                each.access_key, each.admin, each.white_remote_address or "",
                each.default_topic_perm or "", each.default_group_perm or "",
                each.topic_perms or [], each.group_perms or [], [],
            )
            for each in found.plain_access_configs or ()
        ]  # fmt: skip

    asked, rows = await _rows(reads, query.broker, accounts_of, LISTED)
    wanted = query.search.strip().lower()
    rows = sorted(
        (each for each in rows if wanted in each.access_key.lower()),
        key=lambda each: each.access_key,
    )
    shown, paging = paged(rows, query.page)
    addresses.sort(key=lambda each: each.broker)
    return PlainFound(asked, paging, list(shown), addresses)


async def _rows(
    reads: Reads,
    broker: str,
    read: Callable[[RegisteredBroker], Awaitable[list[R]]],
    kind: Kind,
) -> tuple[Asked, list[R]]:
    """Return the rows of some brokers, each once, with the names of the brokers that have it.

    Args:
        reads: requests to the brokers.
        broker: the address of the only one; empty for all.
        read: returns the rows of a broker.
        kind: what is read.
    """
    brokers, asked = await _asked(reads, broker)
    found: list[tuple[RegisteredBroker, list[R]]] = []
    for each, rows in zip(brokers, await reads.each(brokers, read), strict=True):
        if isinstance(rows, CometError):
            asked.errors.append(f"{named(each)} {refusal(rows, kind)}")
        else:
            found.append((each, rows))
    where: dict[bytes, tuple[R, list[str]]] = {}
    for each, rows in found:
        for row in rows:
            key = msgspec.json.encode(row)
            names = where.setdefault(key, (row, []))[1]
            if named(each) not in names:
                names.append(named(each))
    for row, names in where.values():
        if len(names) < len(found):
            row.brokers = names
    return asked, [row for row, _ in where.values()]


async def _asked(reads: Reads, broker: str) -> tuple[list[RegisteredBroker], Asked]:
    """Return the brokers that a page asks."""
    if broker:
        found, total = [await registered(reads, broker)], 1
    else:
        brokers = await reads.brokers()
        found, total = brokers[:BROKERS_ASKED_MAX], len(brokers)
    return found, Asked([named(each) for each in found], total > len(found), [])


def refusal(error: CometError, kind: Kind) -> str:
    """Return what is said of a broker that has not done what was requested."""
    if not isinstance(error, ResponseError):
        return f"does not respond: {error}; {kind.needed}"
    if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return kind.without
    if error.code == ResponseCode.SYSTEM_ERROR or "is null" in str(error):
        return f"refuses: {error}; {kind.needed}"
    return f"refuses: {error}"


def named(broker: RegisteredBroker) -> str:
    """Return how pages name a broker."""
    return f"{broker.name} {broker.id}"


PAGES = (
    Page(
        "/accounts", "Accounts", "accounts/users.html", AccountsQuery, UsersFound, users,
        role=Role.ADMINISTRATOR, is_tab=True,
    ),
    Page(
        "/accounts/policies", "Policies", "accounts/policies.html",
        AccountsQuery, PoliciesFound, policies, role=Role.ADMINISTRATOR,
    ),
    Page(
        "/accounts/plain", "Plain accounts", "accounts/plain.html",
        AccountsQuery, PlainFound, plain, role=Role.ADMINISTRATOR,
    ),
)  # fmt: skip
