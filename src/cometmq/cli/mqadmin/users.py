"""Commands about users and policies, the access control 2.0 of RocketMQ 5."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import msgspec

from cometmq.cli.mqadmin import texts
from cometmq.cli.mqadmin.call import Call, chosen_brokers
from cometmq.protocol import fastjson
from cometmq.protocol.bodies import (
    AclInfo,
    PolicyEntryInfo,
    PolicyInfo,
    UserInfo,
    decode_body,
)
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import (
    AuthCreateAclRequest,
    AuthCreateUserRequest,
    AuthDeleteAclRequest,
    AuthDeleteUserRequest,
    AuthGetAclRequest,
    AuthGetUserRequest,
    AuthListAclRequest,
    AuthListUserRequest,
    AuthUpdateAclRequest,
    AuthUpdateUserRequest,
    Header,
)

S = TypeVar("S", bound=msgspec.Struct)

USER_FORM = "%-16s  %-22s  %-22s  %-22s"
USER_HEADS = ("#UserName", "#Password", "#UserType", "#UserStatus")
ACL_FORM = "%-16s  %-10s  %-22s  %-20s  %-24s  %-10s"
ACL_HEADS = ("#Subject", "#PolicyType", "#Resource", "#Actions", "#SourceIp", "#Decision")


def _decoded(kind: type[S], body: bytes) -> list[S]:
    """Return the values in a body, which is one, a list of them, or empty."""
    found = fastjson.loads(bytes(body)) if body else []
    return [
        decode_body(kind, msgspec.json.encode(each))
        for each in (found if isinstance(found, list) else [found])
    ]


async def _change(call: Call, code: RequestCode, header: Header, body: bytes, done: str) -> None:
    """Send a change to the chosen brokers, and print that each has made it."""
    for broker in await chosen_brokers(call):
        await call.admin.call(broker, code, header, body)
        print(f"{done} to {broker} success.")


async def create_user(call: Call) -> None:
    """Create a user."""
    header = AuthCreateUserRequest(username=call.text("u"))
    await _change(call, RequestCode.AUTH_CREATE_USER, header, _user(call).encode(), "create user")


async def update_user(call: Call) -> None:
    """Change a user."""
    header = AuthUpdateUserRequest(username=call.text("u"))
    await _change(call, RequestCode.AUTH_UPDATE_USER, header, _user(call).encode(), "update user")


def _user(call: Call) -> UserInfo:
    given = call.values
    return UserInfo(
        username=call.text("u"),
        password=given.get("p"),
        user_type=given.get("t"),
        user_status=given.get("s"),
    )


async def delete_user(call: Call) -> None:
    """Delete a user."""
    header = AuthDeleteUserRequest(username=call.text("u"))
    await _change(call, RequestCode.AUTH_DELETE_USER, header, b"", "delete user")


async def _users(call: Call, broker: str, wanted: str | None) -> list[UserInfo]:
    header = AuthGetUserRequest(username=wanted)
    response = await call.admin.call(broker, RequestCode.AUTH_GET_USER, header)
    return _decoded(UserInfo, response.body)


async def _all_users(call: Call, broker: str, part: str | None = None) -> list[UserInfo]:
    header = AuthListUserRequest(filter=part)
    response = await call.admin.call(broker, RequestCode.AUTH_LIST_USER, header)
    return _decoded(UserInfo, response.body)


def _print_users(users: Iterable[UserInfo]) -> None:
    rows = [
        tuple(map(texts.java, (each.username, each.password, each.user_type, each.user_status)))
        for each in users
    ]
    if rows:
        texts.columns(USER_FORM, [USER_HEADS, *rows])


async def get_user(call: Call) -> None:
    """Show one user."""
    for broker in await call.chosen_masters():
        found = await _users(call, broker, call.values.get("u"))
        _print_users(found)
        if found:
            return


async def list_user(call: Call) -> None:
    """List users."""
    for broker in await call.chosen_masters():
        found = await _all_users(call, broker, call.values.get("f"))
        _print_users(found)
        if found and call.has("c"):
            print(f"get user from {broker} success.")
        if found:
            return


async def copy_user(call: Call) -> None:
    """Copy users from one broker to another."""
    source, target = call.text("f"), call.text("t")
    names = [name.strip() for name in call.text("u").split(",") if name.strip()]
    if not names:
        names = [each.username or "" for each in await _all_users(call, source)]
    for name in names:
        for user in await _users(call, source, name):
            if await _users(call, target, name):
                code, header = RequestCode.AUTH_UPDATE_USER, AuthUpdateUserRequest(username=name)
                await call.admin.call(target, code, header, user.encode())
            else:
                made = AuthCreateUserRequest(username=name)
                await call.admin.call(target, RequestCode.AUTH_CREATE_USER, made, user.encode())
            print(f"copy user of {name} from {source} to {target} success.")


async def create_acl(call: Call) -> None:
    """Create a policy."""
    header = AuthCreateAclRequest(subject=call.text("s"))
    await _change(call, RequestCode.AUTH_CREATE_ACL, header, _acl(call).encode(), "create acl")


async def update_acl(call: Call) -> None:
    """Change a policy."""
    header = AuthUpdateAclRequest(subject=call.text("s"))
    await _change(call, RequestCode.AUTH_UPDATE_ACL, header, _acl(call).encode(), "update acl")


def _acl(call: Call) -> AclInfo:
    def parts(flag: str) -> list[str]:
        return [part.strip() for part in call.text(flag).split(",") if part.strip()]

    entries = [
        PolicyEntryInfo(
            resource=resource,
            actions=parts("a"),
            source_ips=parts("i") or None,
            decision=call.text("d"),
        )
        for resource in parts("r")
    ]
    return AclInfo(subject=call.text("s"), policies=[PolicyInfo(entries=entries)])


async def delete_acl(call: Call) -> None:
    """Delete a policy, or what it says about one resource."""
    header = AuthDeleteAclRequest(subject=call.text("s"), resource=call.values.get("r"))
    await _change(call, RequestCode.AUTH_DELETE_ACL, header, b"", "delete acl")


async def _acls(call: Call, broker: str, subject: str | None) -> list[AclInfo]:
    header = AuthGetAclRequest(subject=subject)
    response = await call.admin.call(broker, RequestCode.AUTH_GET_ACL, header)
    return _decoded(AclInfo, response.body)


async def _all_acls(
    call: Call, broker: str, subject: str | None = None, resource: str | None = None
) -> list[AclInfo]:
    header = AuthListAclRequest(subject_filter=subject, resource_filter=resource)
    response = await call.admin.call(broker, RequestCode.AUTH_LIST_ACL, header)
    return _decoded(AclInfo, response.body)


def _print_acls(acls: Iterable[AclInfo]) -> None:
    rows = [
        tuple(
            map(
                texts.java,
                (
                    *(acl.subject, policy.policy_type, entry.resource, entry.actions),
                    *(entry.source_ips, entry.decision),
                ),
            )
        )
        for acl in acls
        for policy in acl.policies
        for entry in policy.entries
    ]
    if rows:
        texts.columns(ACL_FORM, [ACL_HEADS, *rows])


async def get_acl(call: Call) -> None:
    """Show the policies of one subject."""
    for broker in await call.chosen_masters():
        found = await _acls(call, broker, call.values.get("s"))
        _print_acls(found)
        if found:
            return


async def list_acl(call: Call) -> None:
    """List policies."""
    for broker in await call.chosen_masters():
        found = await _all_acls(call, broker, call.values.get("s"), call.values.get("r"))
        _print_acls(found)
        if found:
            return


async def copy_acl(call: Call) -> None:
    """Copy policies from one broker to another."""
    source, target = call.text("f"), call.text("t")
    subjects = [each.strip() for each in call.text("s").split(",") if each.strip()]
    if not subjects:
        subjects = [each.subject or "" for each in await _all_acls(call, source)]
    there = {each.subject for each in await _all_acls(call, target)}
    for subject in subjects:
        for acl in await _acls(call, source, subject):
            if subject in there:
                changed = AuthUpdateAclRequest(subject=subject)
                await call.admin.call(target, RequestCode.AUTH_UPDATE_ACL, changed, acl.encode())
            else:
                made = AuthCreateAclRequest(subject=subject)
                await call.admin.call(target, RequestCode.AUTH_CREATE_ACL, made, acl.encode())
            print(f"copy acl of {subject} from {source} to {target} success.")


COMMANDS: dict[str, Callable[[Call], Awaitable[None]]] = {
    "createUser": create_user,
    "updateUser": update_user,
    "deleteUser": delete_user,
    "getUser": get_user,
    "listUser": list_user,
    "copyUser": copy_user,
    "createAcl": create_acl,
    "updateAcl": update_acl,
    "deleteAcl": delete_acl,
    "getAcl": get_acl,
    "listAcl": list_acl,
    "copyAcl": copy_acl,
}
