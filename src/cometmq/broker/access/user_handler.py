"""Handles requests that show and change users and policies: 3001 to 3010.

A change is on the disk and in force when it is acknowledged. Only super users see passwords.

Source: AdminBrokerProcessor, UserConverter and AclConverter, RocketMQ 5.3. There every user with
the right to look at users sees their passwords.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from cometmq.access.gate import NAMES_SHOWN_MAX
from cometmq.access.users.accounts import UserAccounts, UserError
from cometmq.access.users.policies import (
    SUBJECT_PREFIX,
    Policy,
    PolicyEntry,
    PolicyType,
    Resource,
    policy_type,
    with_resources_like,
)
from cometmq.access.users.user import User, UserStatus, UserType
from cometmq.broker.checks import invalid
from cometmq.model.errors import ConfigError, ResponseError, StoreError
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from cometmq.protocol.bodies.base import Body, InvalidBodyError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.auth import (
    AuthCreateAclRequest,
    AuthCreateUserRequest,
    AuthDeleteAclRequest,
    AuthDeleteUserRequest,
    AuthGetAclRequest,
    AuthGetUserRequest,
    AuthListAclRequest,
    AuthListUserRequest,
    AuthUpdateUserRequest,
)
from cometmq.remoting import Request, Response
from cometmq.remoting.slices import off_loop
from cometmq.remoting.slow_requests import in_thread

log = logging.getLogger(__name__)

LISTED_BYTES_MAX: Final = 15 * 1024 * 1024
"""A client closes a connection that sends more than 16 MiB in one response."""

T = TypeVar("T")
R = TypeVar("R")


class UserHandler:
    """Shows and changes users and policies.

    Args:
        users: the users; None if the broker has none.
        is_super: returns whether the sender of a request is a super user.
    """

    def __init__(self, users: UserAccounts | None, is_super: Callable[[Request], bool]) -> None:
        self._users = users
        self._is_super = is_super

    # --- users ----------------------------------------------------------------------------------

    async def create_user(self, request: Request) -> Response:
        """AUTH_CREATE_USER (3001): a user of an unknown type is a normal one, as in RocketMQ."""
        users = self._required()
        name = _name(request.header(AuthCreateUserRequest).username)
        info = _user_body(request, name)
        user = User(
            name,
            info.password or "",
            UserType.named(info.user_type) or UserType.NORMAL,
            _status_of(info) or UserStatus.ENABLE,
        )
        await _change(partial(users.create, user, by_super=self._is_super(request)))
        return _done(request, "user created", name)

    async def update_user(self, request: Request) -> Response:
        """AUTH_UPDATE_USER (3002): change what the request names."""
        users = self._required()
        name = _name(request.header(AuthUpdateUserRequest).username)
        info = _user_body(request, name)
        await _change(
            partial(
                users.update,
                name,
                password=info.password,
                type=_type_of(info),
                status=_status_of(info),
                by_super=self._is_super(request),
            )
        )
        return _done(request, "user changed", name)

    async def delete_user(self, request: Request) -> Response:
        """AUTH_DELETE_USER (3003): remove a user, if there is one, and its policies."""
        users = self._required()
        name = request.header(AuthDeleteUserRequest).username or ""
        if not name.strip():
            raise UserError("username can not be blank")
        await _change(partial(users.delete, name, by_super=self._is_super(request)))
        return _done(request, "user deleted", name)

    def get_user(self, request: Request) -> Response:
        """AUTH_GET_USER (3004): no body if there is none."""
        users = self._required()
        user = users.user(_name(request.header(AuthGetUserRequest).username))
        if user is None:
            return Response()
        return Response(body=_user_info(user, self._is_super(request)).encode())

    async def list_users(self, request: Request) -> Response:
        """AUTH_LIST_USER (3005): the users whose names contain a text."""
        users = self._required()
        part = (request.header(AuthListUserRequest).filter or "").strip()
        shows = self._is_super(request)
        return await _listed(lambda: [_user_info(user, shows) for user in users.users(part)])

    # --- policies -------------------------------------------------------------------------------

    async def put_acl(self, request: Request) -> Response:
        """AUTH_CREATE_ACL (3006), AUTH_UPDATE_ACL (3007): add entries, or replace them."""
        users = self._required()
        subject = request.header(AuthCreateAclRequest).subject
        info = AclInfo.decode(request.body)
        name = _user_of(info.subject or subject)
        if subject and _user_of(subject) != name:
            raise _two_names(subject, info.subject)
        entries = _entries(info)
        await _change(partial(users.put_entries, name, entries))
        return _done(request, "policies changed", name)

    async def delete_acl(self, request: Request) -> Response:
        """AUTH_DELETE_ACL (3008): remove the entry of a resource, or all policies of a user."""
        users = self._required()
        header = request.header(AuthDeleteAclRequest)
        name = _user_of(header.subject)
        resource = _parsed(Resource.parse, header.resource) if header.resource else None
        kind = policy_type(header.policy_type)
        await _change(partial(users.delete_entries, name, kind, resource))
        return _done(request, "policies deleted", name)

    def get_acl(self, request: Request) -> Response:
        """AUTH_GET_ACL (3009): no body if the user has no policies."""
        users = self._required()
        name = _user_of(request.header(AuthGetAclRequest).subject)
        policies = users.policies(name)
        return Response(body=_acl_info(name, policies).encode() if policies else b"")

    async def list_acls(self, request: Request) -> Response:
        """AUTH_LIST_ACL (3010): the entries whose subject and resource contain texts."""
        users = self._required()
        header = request.header(AuthListAclRequest)
        subject = (header.subject_filter or "").strip()
        resource = (header.resource_filter or "").strip()

        def found() -> list[AclInfo]:
            chosen = (
                (name, with_resources_like(policies, resource))
                for name, policies in users.all_policies(subject)
            )
            return [_acl_info(name, policies) for name, policies in chosen if policies]

        return await _listed(found)

    def _required(self) -> UserAccounts:
        if self._users is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                "this broker has no users: authenticationEnabled=false, and no"
                " authenticationMetadataProvider",
            )
        return self._users


def _name(username: str | None) -> str:
    if not (username or "").strip():
        raise invalid("The username is blank")
    return username or ""


def _user_body(request: Request, name: str) -> UserInfo:
    """Return the body of a request about a user of a name.

    Raises:
        ResponseError: there is none, or it names another user.
    """
    try:
        info = UserInfo.decode(request.body)
    except InvalidBodyError:  # its text shows a part of the body, which has a password
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR,
            f"the body of {len(request.body)} bytes is no UserInfo: expected JSON with password,"
            " userType and userStatus",
        ) from None
    if info.username and info.username != name:
        raise _two_names(name, info.username)
    return info


def _two_names(in_header: str, in_body: str | None) -> UserError:
    return UserError(
        f"the header names {in_header[:NAMES_SHOWN_MAX]!r}, and the body"
        f" {(in_body or '')[:NAMES_SHOWN_MAX]!r}: expected the same user"
    )


def _type_of(info: UserInfo) -> UserType | None:
    """Return the type that a request names; None if it names none."""
    found = UserType.named(info.user_type)
    if info.user_type and found is None:
        raise UserError(f"userType={info.user_type[:200]!r}: expected Super or Normal")
    return found


def _status_of(info: UserInfo) -> UserStatus | None:
    """Return the status that a request names; None if it names none."""
    found = UserStatus.named(info.user_status)
    if info.user_status and found is None:
        raise UserError(f"userStatus={info.user_status[:200]!r}: expected enable or disable")
    return found


def _user_of(subject: str | None) -> str:
    """Return the name of a user in a subject such as ``User:NAME``."""
    kind, _, name = (subject or "").partition(":")
    if f"{kind}:".lower() != SUBJECT_PREFIX.lower() or not name.strip():
        raise UserError(f"The subject {(subject or '')[:200]!r} is none: expected User:NAME")
    return name


def _entries(info: AclInfo) -> list[tuple[PolicyType, list[PolicyEntry]]]:
    """Return the entries of a request, which are refused as a whole."""
    found = [
        (policy_type(policy.policy_type), [_parsed(_entry, each) for each in policy.entries])
        for policy in info.policies
        if policy.entries
    ]
    if not found:
        raise UserError("The policies is empty.")
    return found


def _entry(info: PolicyEntryInfo) -> PolicyEntry:
    return PolicyEntry.parse(info.resource, info.actions, info.source_ips, info.decision)


def _parsed(parse: Callable[[T], R], value: T) -> R:
    try:
        return parse(value)
    except ConfigError as problem:
        raise UserError(str(problem)) from None


def _user_info(user: User, shows_password: bool) -> UserInfo:
    return UserInfo(
        username=user.name,
        password=user.password if shows_password else None,
        user_type=user.type.text,
        user_status=user.status.text,
    )


def _acl_info(name: str, policies: tuple[Policy, ...]) -> AclInfo:
    return AclInfo(
        subject=f"{SUBJECT_PREFIX}{name}",
        policies=[
            PolicyInfo(
                policy_type=policy.policy_type.name.capitalize(),
                entries=[
                    PolicyEntryInfo(
                        resource=entry.resource.key,
                        actions=entry.action_names,
                        source_ips=list(entry.environment.source_ips or ()) or None,
                        decision=entry.decision.name.capitalize(),
                    )
                    for entry in policy.entries
                ],
            )
            for policy in policies
        ],
    )


async def _listed(find: Callable[[], Sequence[Body]]) -> Response:
    """Return a list, made in a thread because it may be long; no body for an empty one.

    Raises:
        ResponseError: 16, it is longer than a client reads.
    """

    def body() -> bytes:
        found = find()
        listed = fastjson.dumps(found) if found else b""
        if len(listed) > LISTED_BYTES_MAX:
            raise UserError(
                f"the list has {len(listed)} bytes, expected at most {LISTED_BYTES_MAX}: add a"
                " filter"
            )
        return listed

    return Response(body=await off_loop(body))


async def _change(change: Callable[[], None]) -> None:
    """Make a change in a thread, because it waits for the disk."""
    try:
        await in_thread(change)
    except ConfigError as problem:
        raise UserError(str(problem)) from None
    except StoreError as problem:
        log.error("users are unchanged: %s", problem)
        raise ResponseError(ResponseCode.SYSTEM_ERROR, str(problem)) from None


def _done(request: Request, text: str, name: str) -> Response:
    log.info("%s name=%s peer=%s", text, name[:NAMES_SHOWN_MAX], request.connection.peer_text)
    return Response()
