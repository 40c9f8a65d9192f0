"""The servers that have settings, and the settings of one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, NamedTuple

import msgspec

from cometmq.console.pages import (
    Name,
    NotFoundError,
    Page,
    PageNumber,
    Paging,
    Query,
    Search,
    matching,
    paged,
)
from cometmq.console.reads import BROKERS_MAX, Reads
from cometmq.console.settings.known import (
    BROKER,
    CONTROLLER,
    NAME_SERVER,
    refusal,
    settings_of,
)
from cometmq.system.rocketmq_keys import shown_setting


class ServersQuery(Query):
    """The list has no parameters."""


class ServerRow(msgspec.Struct):
    """A server that has settings."""

    kind: str
    """``broker``, ``name server`` or ``controller``."""
    name: str
    address: str


class SettingsServers(msgspec.Struct):
    """All servers of the cluster."""

    servers: list[ServerRow]
    is_cut: bool
    """Whether there may be further brokers."""


class SettingsQuery(Query):
    """Which settings of which server."""

    address: Name
    search: Search = ""
    only: Literal["all", "changed", "live"] = "all"
    page: PageNumber = 1


class SettingRow(msgspec.Struct):
    """A setting of a server."""

    key: str
    value: str
    """The value of now, stars for a secret."""
    default: str | None
    """None if it depends on the machine, or is not known."""
    is_default: bool | None
    live: bool | None
    """Whether a request may change it; None if that is not known."""
    expected: str
    description: str
    refused: str
    """Why the console does not change it."""


class ServerSettings(msgspec.Struct):
    """A part of the settings of a server."""

    server: ServerRow
    is_cometmq: bool
    paging: Paging
    settings: list[SettingRow]


class Calls(NamedTuple):
    """The requests for the settings of one kind of server."""

    read: Callable[[str], Awaitable[dict[str, str]]]
    change: Callable[[str, Mapping[str, str]], Awaitable[None]]


def calls(reads: Reads, kind: str) -> Calls:
    """Return the requests to a kind of server."""
    admin = reads.admin
    if kind == BROKER:
        return Calls(admin.broker_config, admin.set_broker_config)
    if kind == NAME_SERVER:
        return Calls(admin.name_server_config, admin.set_name_server_config)
    return Calls(admin.controller_config, admin.set_controller_config)


async def servers(reads: Reads, _query: ServersQuery) -> SettingsServers:
    """Return all servers; a controller is one that a broker names."""
    brokers = await reads.brokers()
    return SettingsServers(
        [ServerRow(NAME_SERVER, "", each) for each in reads.admin.name_servers]
        + [ServerRow(CONTROLLER, "", each) for each in await reads.controllers()]
        + [ServerRow(BROKER, f"{each.name} {each.id}", each.address) for each in brokers],
        len(brokers) >= BROKERS_MAX,
    )


async def server_at(reads: Reads, address: str) -> ServerRow:
    """Return the server with an address; the console connects to no other one.

    Raises:
        NotFoundError: the cluster has no such server.
    """
    for each in (await servers(reads, ServersQuery())).servers:
        if each.address == address:
            return each
    raise NotFoundError(f"the cluster has no server {address}")


async def settings(reads: Reads, query: SettingsQuery) -> ServerSettings:
    """Return a part of the settings of a server, which gets one request."""
    server = await server_at(reads, query.address)
    table = await calls(reads, server.kind).read(server.address)
    known = settings_of(server.kind, table)
    rows = []
    for key in matching(sorted(table, key=str.lower), query.search):
        found = known.of(key)
        is_default = None if found.default is None else table[key] == found.default
        row = SettingRow(
            key,
            shown_setting(key, table[key]),
            found.default,
            is_default,
            found.live,
            found.expected,
            found.description,
            refusal(known, table, key),
        )
        if query.only == "all" or (found.live if query.only == "live" else is_default is False):
            rows.append(row)
    shown, paging = paged(rows, query.page)
    return ServerSettings(server, known.is_ours, paging, list(shown))


PAGES = (
    Page(
        "/settings", "Settings", "settings/servers.html", ServersQuery, SettingsServers, servers,
        is_tab=True,
    ),
    Page(
        "/settings/server", "Settings of a server", "settings/settings.html",
        SettingsQuery, ServerSettings, settings,
    ),
)  # fmt: skip
