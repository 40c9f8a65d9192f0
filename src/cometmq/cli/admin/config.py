"""``cometmq admin config``: the settings of running brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated

import typer

from cometmq.cli.admin.commands import BROKERS, CLUSTER, Call, Commands
from cometmq.cli.admin.output import Change, Row, Rows
from cometmq.model.errors import ConfigError
from cometmq.protocol.bodies.route import RegisteredBroker
from cometmq.system.rocketmq_keys import shown_setting

app = Commands("Settings of running brokers: show, compare and change them.")

Slaves = Annotated[bool, typer.Option("--slaves", help="Slaves too.")]
Part = Annotated[str, typer.Option("--name", help="Only names that contain this.")]
Settings = Annotated[list[str], typer.Argument(help="Settings.", metavar="KEY=VALUE...")]


def changes_in(settings: list[str]) -> dict[str, str]:
    """Return settings that are written ``KEY=VALUE``.

    Raises:
        ConfigError: one has another form.
    """
    found: dict[str, str] = {}
    for each in settings:
        key, equals, value = each.partition("=")
        if not key or not equals:
            raise ConfigError(f"{each}: expected KEY=VALUE")
        found[key.strip()] = value
    return found


async def settings_of(
    addresses: Sequence[str], read: Callable[[str], Awaitable[Mapping[str, str]]], part: str
) -> list[Row]:
    """Return the settings of servers: address, key and value.

    Args:
        addresses: the servers.
        read: returns the settings of one.
        part: only keys that contain this.
    """
    return [
        (address, key, shown_setting(key, value))
        for address in addresses
        for key, value in sorted((await read(address)).items())
        if part.lower() in key.lower()
    ]


def settings_changes(
    addresses: Sequence[str],
    settings: list[str],
    change: Callable[[str, Mapping[str, str]], Awaitable[None]],
) -> list[Change]:
    """Return a change for each server.

    Args:
        addresses: the servers.
        settings: see `changes_in`.
        change: changes the settings of one.
    """
    wanted = changes_in(settings)
    detail = ", ".join(f"{key}={shown_setting(key, value)}" for key, value in wanted.items())
    return [
        Change("change settings", each, partial(change, each, wanted), detail, destroys=True)
        for each in addresses
    ]


@app.show("show", "broker id key value", chooses=BROKERS)
async def show(call: Call, part: Part = "", slaves: Slaves = False) -> Rows:
    """Show the settings of brokers. Passwords and secrets are shown as stars."""

    async def find(server: RegisteredBroker) -> list[Row]:
        rows = await settings_of([server.address], call.admin.broker_config, part)
        return [(server.name, server.id, key, value) for _, key, value in rows]

    return await call.each_broker(find, slaves=slaves)


@app.show("compare", "key values", chooses=CLUSTER)
async def compare(call: Call, slaves: Slaves = False) -> Rows:
    """Show the settings in which brokers differ, with the value of each."""
    servers = await call.servers(slaves=slaves)
    configs = await call.side_by_side(servers, lambda each: call.admin.broker_config(each.address))
    names = [f"{each.name}:{each.id}" for each in servers]
    tables = dict(zip(names, configs, strict=True))
    keys = sorted(set().union(*tables.values()))
    return [
        (key, {name: shown_setting(key, table.get(key, "")) for name, table in tables.items()})
        for key in keys
        if len({table.get(key) for table in tables.values()}) > 1
    ]


@app.change("set", chooses=BROKERS)
async def set_config(call: Call, settings: Settings, slaves: Slaves = False) -> list[Change]:
    """Change settings of running brokers; they keep them after a restart.

    It asks if more than one broker is changed. RocketMQ's brokers ignore keys that they do not
    know, so such a key is refused here.
    """
    wanted = changes_in(settings)
    servers = await call.servers(slaves=slaves)
    configs = await call.side_by_side(servers, lambda each: call.admin.broker_config(each.address))
    changes: list[Change] = []
    for each, now in zip(servers, configs, strict=True):
        if unknown := [key for key in wanted if key not in now]:
            raise ConfigError(f"{each.name} has no setting {', '.join(unknown)}: see 'config show'")
        detail = ", ".join(
            f"{key} {shown_setting(key, now[key])} -> {shown_setting(key, value)}"
            for key, value in wanted.items()
        )
        run = partial(call.admin.set_broker_config, each.address, wanted)
        where = f"{each.name} {each.address}"
        destroys = len(servers) > 1
        changes.append(Change("change settings", where, run, detail, destroys=destroys))
    return changes
