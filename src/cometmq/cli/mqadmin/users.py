"""Commands about users and policies, the access control 2.0 of RocketMQ 5."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from cometmq.cli.mqadmin import texts
from cometmq.cli.mqadmin.call import Call
from cometmq.protocol.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo

USER_FORM = "%-16s  %-22s  %-22s  %-22s"
USER_HEADS = ("#UserName", "#Password", "#UserType", "#UserStatus")
ACL_FORM = "%-16s  %-10s  %-22s  %-20s  %-24s  %-10s"
ACL_HEADS = ("#Subject", "#PolicyType", "#Resource", "#Actions", "#SourceIp", "#Decision")


Change = Callable[[str], Awaitable[None]]
T = TypeVar("T")


async def _change(call: Call, change: Change, done: str) -> None:
    """Make a change on the chosen brokers, and print that each has made it."""
    for broker in await call.chosen_brokers():
        await change(broker)
        print(f"{done} to {broker} success.")


async def _first(call: Call, find: Callable[[str], Awaitable[list[T]]]) -> list[T]:
    """Return what the first broker has that has anything."""
    for broker in await call.chosen_masters():
        if found := await find(broker):
            return found
    return []


async def create_user(call: Call) -> None:
    """Create a user."""
    await _change(call, lambda broker: call.admin.create_user(broker, _user(call)), "create user")


async def update_user(call: Call) -> None:
    """Change a user."""
    await _change(call, lambda broker: call.admin.update_user(broker, _user(call)), "update user")


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
    name = call.text("u")
    await _change(call, lambda broker: call.admin.delete_user(broker, name), "delete user")


def _print_users(users: Iterable[UserInfo]) -> None:
    rows = [
        tuple(map(texts.java, (each.username, each.password, each.user_type, each.user_status)))
        for each in users
    ]
    if rows:
        texts.columns(USER_FORM, [USER_HEADS, *rows])


async def get_user(call: Call) -> None:
    """Show one user."""
    _print_users(await _first(call, lambda broker: call.admin.user(broker, call.values.get("u"))))


async def list_user(call: Call) -> None:
    """List users."""
    for broker in await call.chosen_masters():
        found = await call.admin.users(broker, call.values.get("f"))
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
        names = [each.username or "" for each in await call.admin.users(source)]
    for name in names:
        for user in await call.admin.user(source, name):
            if await call.admin.user(target, name):
                await call.admin.update_user(target, user)
            else:
                await call.admin.create_user(target, user)
            print(f"copy user of {name} from {source} to {target} success.")


async def create_acl(call: Call) -> None:
    """Create a policy."""
    await _change(call, lambda broker: call.admin.create_policy(broker, _acl(call)), "create acl")


async def update_acl(call: Call) -> None:
    """Change a policy."""
    await _change(call, lambda broker: call.admin.update_policy(broker, _acl(call)), "update acl")


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
    subject, resource = call.text("s"), call.values.get("r")
    delete = call.admin.delete_policy
    await _change(call, lambda broker: delete(broker, subject, resource), "delete acl")


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
    _print_acls(await _first(call, lambda broker: call.admin.policy(broker, call.values.get("s"))))


async def list_acl(call: Call) -> None:
    """List policies."""
    given = call.values.get("s"), call.values.get("r")
    _print_acls(await _first(call, lambda broker: call.admin.policies(broker, *given)))


async def copy_acl(call: Call) -> None:
    """Copy policies from one broker to another."""
    source, target = call.text("f"), call.text("t")
    subjects = [each.strip() for each in call.text("s").split(",") if each.strip()]
    if not subjects:
        subjects = [each.subject or "" for each in await call.admin.policies(source)]
    there = {each.subject for each in await call.admin.policies(target)}
    for subject in subjects:
        for acl in await call.admin.policy(source, subject):
            if subject in there:
                await call.admin.update_policy(target, acl)
            else:
                await call.admin.create_policy(target, acl)
            print(f"copy acl of {subject} from {source} to {target} success.")
