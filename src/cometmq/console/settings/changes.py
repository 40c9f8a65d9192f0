"""Changes a setting of running servers."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cometmq.client.errors import ClientError
from cometmq.console.changes import Change
from cometmq.console.forms import Form
from cometmq.console.pages import Name, Role, address
from cometmq.console.reads import Reads
from cometmq.console.settings.known import refusal, settings_of
from cometmq.console.settings.page import calls, server_at
from cometmq.model.errors import CometError, ConfigError

SERVERS_MAX = 64


class ChangeSetting(Form):
    """A setting, and the servers that get another value."""

    servers: Annotated[
        list[str],
        msgspec.Meta(
            min_length=1, max_length=SERVERS_MAX, description="Addresses of servers, one a line."
        ),
    ]
    key: Annotated[Name, msgspec.Meta(description="The name of the setting.")]
    value: Annotated[str, msgspec.Meta(max_length=4096, description="The new value.")] = ""


class ServerChange(msgspec.Struct):
    """The value at one server."""

    server: str
    address: str
    old: str
    new: str
    default: str | None
    live: str
    """Whether it takes effect without a restart."""


class SettingChange(msgspec.Struct):
    """A setting before and after a change."""

    key: str
    expected: str
    description: str
    servers: list[ServerChange]


async def planned(reads: Reads, form: ChangeSetting) -> SettingChange:
    """Return old and new value at each server.

    Raises:
        ConfigError: the setting cannot be changed at one of them.
        NotFoundError: the cluster has no such server.
    """
    plan = SettingChange(form.key, "", "", [])
    for each in dict.fromkeys(form.servers):
        server = await server_at(reads, each)
        table = await calls(reads, server.kind).read(server.address)
        known = settings_of(server.kind, table)
        if reason := refusal(known, table, form.key):
            raise ConfigError(f"{each}: {reason}")
        found = known.of(form.key)
        plan.expected, plan.description = found.expected, found.description
        live = "yes" if found.live else "not known: RocketMQ may need a restart"
        row = ServerChange(
            f"{server.kind} {server.name}".strip(), each, table[form.key], form.value,
            found.default, live,
        )  # fmt: skip
        plan.servers.append(row)
    return plan


async def change(reads: Reads, form: ChangeSetting) -> SettingChange:
    """Change the setting at each server; return the values that they have then.

    Raises:
        ClientError: a server refuses; the servers before it have the new value.
    """
    plan = await planned(reads, form)
    done: list[str] = []
    for row in plan.servers:
        server = await server_at(reads, row.address)
        requests = calls(reads, server.kind)
        try:
            await requests.change(row.address, {form.key: form.value})
            table = await requests.read(row.address)
            row.new = table.get(form.key, "")
            if row.new != form.value and not settings_of(server.kind, table).is_ours:
                raise ClientError(f"it has kept {form.key}={row.new}, so {form.value} is wrong")
        except CometError as error:
            at = f"; changed at {', '.join(done)}" if done else "; nothing was changed"
            raise ClientError(f"{row.address}: {error}{at}") from error
        done.append(row.address)
    return plan


def _back(form: ChangeSetting) -> str:
    return address("/settings/server", address=form.servers[0], search=form.key)


CHANGES = (
    Change(
        "/settings/change", "Change a setting", ChangeSetting, change, SettingChange,
        role=Role.ADMINISTRATOR, preview=planned, previewed=SettingChange, back=_back,
    ),
)  # fmt: skip
