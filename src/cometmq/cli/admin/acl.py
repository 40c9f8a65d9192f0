"""``cometmq admin acl``: users and policies, and plain accounts."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from cometmq.cli.admin.arguments import BrokerArgument
from cometmq.cli.admin.commands import BROKERS, Call, Commands
from cometmq.cli.admin.output import Change, Row
from cometmq.model.errors import ConfigError
from cometmq.protocol.bodies.route import RegisteredBroker

if TYPE_CHECKING:
    from cometmq.protocol.bodies.auth import AclInfo, UserInfo

app = Commands("Access control: users and policies of RocketMQ 5.3, plain accounts of 4.9.")

SECRET_BYTES_MAX = 4096
ROLES = {None: "", True: ", an administrator", False: ", not an administrator"}
"""The texts of ``--admin`` in a planned change."""
TYPES, STATUSES, DECISIONS = ("Super", "Normal"), ("enable", "disable"), ("Allow", "Deny")
User = Annotated[str, typer.Argument(help="Name of the user.")]
Subject = Annotated[str, typer.Argument(help="User of the policies, written User:NAME.")]
AccessKey = Annotated[str, typer.Argument(help="Access key of the account.")]
SecretFile = Annotated[
    str | None,
    typer.Option(
        "--password-file", metavar="FILE", show_default="ask",
        help="File whose first line is the password; - for standard input.",
    ),
]  # fmt: skip
UserType = Annotated[str | None, typer.Option("--type", help="Super or Normal.", metavar="TYPE")]
Resources = Annotated[
    list[str],
    typer.Option("--resource", help="Resource, such as Topic:orders; repeat for several."),
]
Actions = Annotated[
    list[str],
    typer.Option("--action", help="Action, such as Pub, Sub or All; repeat for several."),
]
Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--source-ip", help="Address or network of requests that it is for; repeat for several."
    ),
]
Decision = Annotated[str, typer.Option("--decision", help="Allow or Deny.")]


def secret(call: Call, file: str | None, prompt: str) -> str:
    """Return a password from a file, from standard input, or from a terminal that hides it.

    A dry run does not ask: without a file it has an empty one.

    Raises:
        ConfigError: it is empty, too long or cannot be read, or there is no terminal.
    """
    if file == "-":
        text = sys.stdin.readline(SECRET_BYTES_MAX + 1)
    elif file is not None:
        try:
            with Path(file).open() as lines:
                text = lines.readline(SECRET_BYTES_MAX + 1)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--password-file {file}: {error}") from None
    elif call.dry_run:
        return ""
    elif sys.stdin.isatty():
        text = getpass.getpass(prompt, stream=sys.stderr)
    else:
        raise ConfigError("no terminal to ask for the password on: add --password-file")
    text = text.strip("\r\n")
    if not text or len(text) > SECRET_BYTES_MAX:
        raise ConfigError(f"the password has {len(text)} characters: expected 1 to 4096")
    return text


def _choice(option: str, word: str | None, choices: Sequence[str]) -> str | None:
    """Return the choice that a word means, in any case; None for None.

    RocketMQ's brokers ignore another word without an error.

    Raises:
        ConfigError: it is another word.
    """
    if word is None:
        return None
    for choice in choices:
        if choice.lower() == word.lower():
            return choice
    raise ConfigError(f"{option} {word}: expected {' or '.join(choices)}")


@app.each("users", "broker id user type status", slaves=True)
async def users(
    call: Call,
    server: RegisteredBroker,
    part: Annotated[str | None, typer.Option("--name", help="Part of the name.")] = None,
) -> list[Row]:
    """List the users of brokers; passwords are not shown."""
    return [
        (server.name, server.id, each.username, each.user_type, each.user_status)
        for each in await call.admin.users(server.address, part)
    ]


@app.change("create-user", chooses=BROKERS)
async def create_user(
    call: Call, user: User, password_file: SecretFile = None, user_type: UserType = "Normal"
) -> list[Change]:
    """Create a user. The password comes from a file or is asked for, never from the arguments."""
    from cometmq.protocol.bodies.auth import UserInfo

    user_type = _choice("--type", user_type, TYPES)
    password = secret(call, password_file, f"Password of {user}: ")
    info = UserInfo(username=user, password=password, user_type=user_type)
    return await call.change_each(
        f"create user {user}",
        lambda address: call.admin.create_user(address, info),
        f"type {user_type}",
        slaves=True,
    )


@app.change("update-user", chooses=BROKERS)
async def update_user(
    call: Call,
    user: User,
    change_password: Annotated[
        bool, typer.Option("--change-password", help="Ask for a new password.")
    ] = False,
    password_file: SecretFile = None,
    user_type: UserType = None,
    status: Annotated[
        str | None, typer.Option("--status", help="enable or disable.", metavar="STATUS")
    ] = None,
) -> list[Change]:
    """Change the password, the type or the status of a user."""
    from cometmq.protocol.bodies.auth import UserInfo

    asks = change_password or password_file is not None
    if not (asks or user_type or status):
        raise ConfigError("expected --change-password, --password-file, --type or --status")
    user_type = _choice("--type", user_type, TYPES)
    status = _choice("--status", status, STATUSES)
    password = secret(call, password_file, f"New password of {user}: ") if asks else None
    info = UserInfo(username=user, password=password, user_type=user_type, user_status=status)
    return await call.change_each(
        f"update user {user}",
        lambda address: call.admin.update_user(address, info),
        ", ".join(filter(None, ("new password" if asks else "", user_type, status))),
        destroys=True,
        slaves=True,
    )


@app.change("delete-user", chooses=BROKERS)
async def delete_user(call: Call, user: User) -> list[Change]:
    """Delete a user and its policies."""

    async def run(address: str) -> None:
        # A broker acknowledges the deletion of a user that it does not have.
        if user not in [each.username for each in await call.admin.users(address, user)]:
            raise ConfigError(f"there is no user {user}")
        await call.admin.delete_user(address, user)

    return await call.change_each(f"delete user {user}", run, slaves=True, destroys=True)


@app.change("copy-users")
async def copy_users(
    call: Call,
    source: BrokerArgument,
    target: BrokerArgument,
    names: Annotated[list[str] | None, typer.Argument(help="Users; all if none is given.")] = None,
) -> list[Change]:
    """Copy users from one broker to another; users that exist there are overwritten."""

    async def found(address: str) -> dict[str, UserInfo]:
        return {each.username or "": each for each in await call.admin.users(address)}

    runs = (call.admin.create_user, call.admin.update_user)
    return await _copies(call, source, target, names, "user", found, runs)


T = TypeVar("T")


async def _copies(
    call: Call,
    source: str,
    target: str,
    names: Sequence[str] | None,
    what: str,
    find: Callable[[str], Awaitable[Mapping[str, T]]],
    runs: tuple[Callable[[str, T], Awaitable[object]], Callable[[str, T], Awaitable[object]]],
) -> list[Change]:
    """Return a change for each thing that is copied from one broker to another.

    Args:
        call: asks the brokers.
        source, target: the brokers.
        names: what to copy; everything if there are none.
        what: in the changes, before each name.
        find: returns what a broker has, by name.
        runs: creates one on a broker, and updates one there.
    """
    begin = (await call.registered(broker=source))[0].address
    end = (await call.registered(broker=target))[0].address
    found, there = await find(begin), await find(end)
    if unknown := [name for name in names or () if name not in found]:
        raise ConfigError(f"{source} has no {what} {', '.join(unknown)}")
    return [
        Change(
            f"copy {what} {name}",
            target,
            partial(runs[name in there], end, found[name]),
            "overwritten" if name in there else "new",
            destroys=name in there,
        )
        for name in names or sorted(found)
    ]


@app.each("policies", "broker id subject type resource actions source_ips decision", slaves=True)
async def policies(
    call: Call,
    server: RegisteredBroker,
    subject: Annotated[str | None, typer.Option("--subject", help="Part of the subject.")] = None,
    resource: Annotated[
        str | None, typer.Option("--resource", help="Part of the resource.")
    ] = None,
) -> list[Row]:
    """List the policies of brokers."""
    return [
        (
            *(server.name, server.id, acl.subject, policy.policy_type, entry.resource),
            *(entry.actions, entry.source_ips, entry.decision),
        )
        for acl in await call.admin.policies(server.address, subject, resource)
        for policy in acl.policies
        for entry in policy.entries
    ]


def _policy_command(verb: str, does: str, *, destroys: bool) -> None:
    """Register a command that gives a user entries of policies.

    Args:
        verb: ``create`` or ``update``.
        does: the help of the command.
        destroys: whether it replaces entries, and so asks before.
    """

    async def change(
        call: Call,
        subject: Subject,
        resource: Resources,
        action: Actions,
        source_ip: Sources = None,
        decision: Decision = "Allow",
    ) -> list[Change]:
        from cometmq.protocol.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo

        decided = _choice("--decision", decision, DECISIONS)
        entries = [
            PolicyEntryInfo(
                resource=each, actions=action, source_ips=source_ip or None, decision=decided
            )
            for each in resource
        ]
        policy = AclInfo(subject=subject, policies=[PolicyInfo(entries=entries)])
        run = call.admin.update_policy if verb == "update" else call.admin.create_policy
        return await call.change_each(
            f"{verb} policy of {subject}",
            lambda address: run(address, policy),
            f"{decided} {', '.join(action)} on {', '.join(resource)}",
            destroys=destroys,
            slaves=True,
        )

    change.__doc__ = does
    app.change(f"{verb}-policy", chooses=BROKERS)(change)


_policy_command(
    "create",
    "Add an entry for each resource to the policies of a user; one that is there is replaced.",
    destroys=False,
)
_policy_command(
    "update",
    "Replace the entry for each resource in the policies of a user; it asks before.",
    destroys=True,
)


@app.change("delete-policy", chooses=BROKERS)
async def delete_policy(
    call: Call,
    subject: Subject,
    resource: Annotated[
        str | None, typer.Option("--resource", help="Only the entry for this resource.")
    ] = None,
) -> list[Change]:
    """Delete all policies of a user, or the entry for one resource."""
    return await call.change_each(
        f"delete policy of {subject}",
        lambda address: call.admin.delete_policy(address, subject, resource),
        resource or "",
        destroys=True,
        slaves=True,
    )


@app.change("copy-policies")
async def copy_policies(
    call: Call,
    source: BrokerArgument,
    target: BrokerArgument,
    subjects: Annotated[
        list[str] | None, typer.Argument(help="Subjects; all if none is given.")
    ] = None,
) -> list[Change]:
    """Copy policies from one broker to another; policies that exist there are changed."""

    async def found(address: str) -> dict[str, AclInfo]:
        return {each.subject or "": each for each in await call.admin.policies(address)}

    runs = (call.admin.create_policy, call.admin.update_policy)
    return await _copies(call, source, target, subjects, "policy of", found, runs)


@app.each("account-files", "cluster broker id address file version changed_time_ms", slaves=True)
async def account_files(call: Call, server: RegisteredBroker) -> list[Row]:
    """Show the versions of the files of plain accounts on each broker."""
    from cometmq.protocol import fastjson

    found = await call.admin.account_files(server.address)
    files = fastjson.loads(found.all_acl_file_version or "{}")
    return [
        (
            *(found.cluster_name, found.broker_name, server.id, found.broker_addr, path),
            *(version["counter"], int(version["timestamp"]) or None),
        )
        for path, version in (files.items() if isinstance(files, dict) else ())
    ]


@app.change("set-account", chooses=BROKERS)
async def set_account(
    call: Call,
    access_key: AccessKey,
    password_file: SecretFile = None,
    admin: Annotated[
        bool | None,
        typer.Option(
            "--admin/--not-admin",
            show_default="as it is",
            help="Whether it may administrate. RocketMQ's brokers take none as --not-admin.",
        ),
    ] = None,
    white_address: Annotated[
        str | None,
        typer.Option(
            "--white-address", help="White addresses, where it needs no signature; '' for none."
        ),
    ] = None,
    topic_perm: Annotated[
        str | None, typer.Option("--topic-perm", help="For topics without an entry: PUB|SUB, DENY.")
    ] = None,
    group_perm: Annotated[
        str | None, typer.Option("--group-perm", help="For groups without an entry: SUB, DENY.")
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", help="Entry TOPIC=PERM; repeat for several, '' for none."),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", help="Entry GROUP=PERM; repeat for several, '' for none."),
    ] = None,
) -> list[Change]:
    """Create a plain account, or change it; its secret key is asked for.

    Options that are not given keep their values. It changes the files of brokers only: name servers
    and controllers have their own.
    """
    key = secret(call, password_file, f"Secret key of {access_key}: ")
    return await call.change_each(
        f"set account {access_key}",
        lambda address: call.admin.set_account(
            address,
            access_key,
            key,
            admin=admin,
            white_address=white_address,
            topic_perm=topic_perm,
            group_perm=group_perm,
            topic_perms=",".join(topic) if topic else None,
            group_perms=",".join(group) if group else None,
        ),
        detail=f"new secret key{ROLES[admin]}",
        destroys=True,
        slaves=True,
    )


@app.change("delete-account", chooses=BROKERS)
async def delete_account(call: Call, access_key: AccessKey) -> list[Change]:
    """Delete a plain account."""
    return await call.change_each(
        f"delete account {access_key}",
        lambda address: call.admin.delete_account(address, access_key),
        destroys=True,
        slaves=True,
    )


@app.change("set-white-addresses", chooses=BROKERS)
async def set_white_addresses(
    call: Call,
    addresses: Annotated[list[str], typer.Argument(help="Addresses or patterns.")],
    file: Annotated[
        str | None,
        typer.Option(
            "--file", help="File on the broker to change.", show_default="conf/plain_acl.yml"
        ),
    ] = None,
) -> list[Change]:
    """Replace the white addresses: from these no request to a broker needs a plain account."""
    text = ",".join(addresses)
    return await call.change_each(
        "set white addresses",
        lambda address: call.admin.set_white_addresses(address, text, file=file),
        text,
        destroys=True,
        slaves=True,
    )
