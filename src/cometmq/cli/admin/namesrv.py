"""``cometmq admin namesrv``: name servers, their settings and their key-value table."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from cometmq.cli.admin.commands import Call, Commands
from cometmq.cli.admin.config import Part, Settings, settings_changes, settings_of
from cometmq.cli.admin.output import Change, Row, Rows
from cometmq.model.errors import CometError

app = Commands("Name servers: their settings and their key-value table.")

Namespace = Annotated[str, typer.Argument(help="Namespace of the entry.")]
Key = Annotated[str, typer.Argument(help="Key of the entry.")]


@app.show("list", "address responds clusters brokers", watch=True)
async def list_servers(call: Call) -> Rows:
    """Show whether each name server responds, and how many brokers it knows.

    Name servers do not replicate: different numbers mean that a broker does not reach one.
    """
    from cometmq.protocol.bodies.route import ClusterInfo
    from cometmq.protocol.codes import RequestCode

    rows: list[Row] = []
    for address in call.admin.name_servers:
        try:
            response = await call.admin.call(address, RequestCode.GET_BROKER_CLUSTER_INFO)
        except CometError as error:
            call.fail(error, address)
            rows.append((address, False, None, None))
            continue
        info = ClusterInfo.decode(response.body)
        brokers = sum(len(each.broker_addrs) for each in info.broker_addr_table.values())
        rows.append((address, True, len(info.cluster_addr_table), brokers))
    return rows


@app.show("config", "address key value")
async def config(call: Call, part: Part = "") -> Rows:
    """Show the settings of the name servers. Passwords are shown as stars."""
    return await settings_of(call.admin.name_servers, call.admin.name_server_config, part)


@app.change("set-config")
async def set_config(call: Call, settings: Settings) -> list[Change]:
    """Change settings of all name servers."""
    change = call.admin.set_name_server_config
    return settings_changes(call.admin.name_servers, settings, change)


@app.show("kv", "key value")
async def kv(call: Call, namespace: Namespace) -> Rows:
    """List the entries of a namespace of the key-value table."""
    return sorted((await call.admin.kv_list(namespace)).items())


@app.change("kv-put")
async def kv_put(
    call: Call,
    namespace: Namespace,
    key: Key,
    value: Annotated[str, typer.Argument(help="Value of the entry.")],
) -> list[Change]:
    """Write an entry of the key-value table, on all name servers."""
    old = await call.admin.kv_get(namespace, key)
    run = partial(call.admin.kv_put, namespace, key, value)
    detail, destroys = f"{old or 'none'} -> {value}", old not in (None, value)
    return call.change_name_servers(f"set {namespace} {key}", run, detail, destroys=destroys)


@app.change("kv-delete")
async def kv_delete(call: Call, namespace: Namespace, key: Key) -> list[Change]:
    """Delete an entry of the key-value table, on all name servers."""
    old = await call.admin.kv_get(namespace, key)
    run = partial(call.admin.kv_delete, namespace, key)
    detail = f"value {old}" if old else "no value"
    return call.change_name_servers(f"delete {namespace} {key}", run, detail, destroys=True)
