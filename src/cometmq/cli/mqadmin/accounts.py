"""Commands about plain accounts."""

from __future__ import annotations

from cometmq.cli.mqadmin import texts
from cometmq.cli.mqadmin.call import Call
from cometmq.protocol import fastjson

FORM = "%-16s  %-22s  %-22s  %-20s  %-22s  %-22s"
HEADS = ("#Cluster Name", "#Broker Name", "#Broker Addr", "#AclFilePath", "#AclConfigVersionNum")


async def update_acl_config(call: Call) -> None:
    """Create an account or change it."""
    given = call.values
    for broker in await call.chosen_brokers():
        await call.admin.set_account(
            broker,
            call.text("a"),
            call.text("s"),
            admin=call.true("m"),
            white_address=given.get("w"),
            topic_perm=given.get("i"),
            group_perm=given.get("u"),
            topic_perms=given.get("t"),
            group_perms=given.get("g"),
        )
        print(f"create or update plain access config to {broker} success.")


async def delete_acl_config(call: Call) -> None:
    """Delete an account."""
    for broker in await call.chosen_brokers():
        await call.admin.delete_account(broker, call.text("a"))
        print(f"delete plain access config account from {broker} success.")
        print(f"account's accesskey is:{call.text('a')}", end="")


async def cluster_acl_config_version(call: Call) -> None:
    """Show the version of the access control files of each broker."""
    where = "broker" if call.has("b") else "cluster"
    if where == "cluster":
        print(FORM % (*HEADS, "#AclLastUpdateTime"))
    for broker in await call.chosen_masters():
        found = await call.admin.account_files(broker)
        files = fastjson.loads(found.all_acl_file_version or "{}")
        for path, version in files.items() if isinstance(files, dict) else ():
            updated = texts.to_seconds(int(version["timestamp"]))
            row = (found.cluster_name, found.broker_name, found.broker_addr, path)
            print(FORM % (*row, version["counter"], updated))
    print(f"get {where}'s plain access config version success.", end="")


async def update_global_white_addr(call: Call) -> None:
    """Replace the addresses that need no account."""
    file = call.values.get("p")
    for broker in await call.chosen_brokers():
        await call.admin.set_white_addresses(broker, call.text("g"), file=file)
        print(f"update global white remote addresses to {broker} success.")
