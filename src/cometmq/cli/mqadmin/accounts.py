"""Commands about the accounts of RocketMQ 4.9's access control."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from cometmq.cli.mqadmin import texts
from cometmq.cli.mqadmin.call import Call, chosen_brokers
from cometmq.protocol import fastjson
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import (
    DeleteAclConfigRequest,
    GetBrokerClusterAclInfoResponse,
    UpdateAndCreateAclConfigRequest,
    UpdateGlobalWhiteAddrsConfigRequest,
)

FORM = "%-16s  %-22s  %-22s  %-20s  %-22s  %-22s"
HEADS = ("#Cluster Name", "#Broker Name", "#Broker Addr", "#AclFilePath", "#AclConfigVersionNum")


async def update_acl_config(call: Call) -> None:
    """Create an account or change it."""
    header = UpdateAndCreateAclConfigRequest(
        access_key=call.text("a"),
        secret_key=call.text("s"),
        white_remote_address=call.values.get("w"),
        admin=call.true("m"),
        default_topic_perm=call.values.get("i"),
        default_group_perm=call.values.get("u"),
        topic_perms=call.values.get("t"),
        group_perms=call.values.get("g"),
    )
    for broker in await chosen_brokers(call):
        await call.admin.call(broker, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header)
        print(f"create or update plain access config to {broker} success.")


async def delete_acl_config(call: Call) -> None:
    """Delete an account."""
    header = DeleteAclConfigRequest(access_key=call.text("a"))
    for broker in await chosen_brokers(call):
        await call.admin.call(broker, RequestCode.DELETE_ACL_CONFIG, header)
        print(f"delete plain access config account from {broker} success.")
        print(f"account's accesskey is:{call.text('a')}", end="")


async def cluster_acl_config_version(call: Call) -> None:
    """Show the version of the access control files of each broker."""
    where = "broker" if call.has("b") else "cluster"
    if where == "cluster":
        print(FORM % (*HEADS, "#AclLastUpdateTime"))
    for broker in await call.chosen_masters():
        response = await call.admin.call(broker, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
        found = response.header(GetBrokerClusterAclInfoResponse)
        files = fastjson.loads(found.all_acl_file_version or "{}")
        for path, version in files.items() if isinstance(files, dict) else ():
            updated = texts.to_seconds(int(version["timestamp"]))
            row = (found.cluster_name, found.broker_name, found.broker_addr, path)
            print(FORM % (*row, version["counter"], updated))
    print(f"get {where}'s plain access config version success.", end="")


async def update_global_white_addr(call: Call) -> None:
    """Replace the addresses that need no account."""
    header = UpdateGlobalWhiteAddrsConfigRequest(
        global_white_addrs=call.text("g"), acl_file_full_path=call.values.get("p")
    )
    for broker in await chosen_brokers(call):
        await call.admin.call(broker, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)
        print(f"update global white remote addresses to {broker} success.")


COMMANDS: dict[str, Callable[[Call], Awaitable[None]]] = {
    "updateAclConfig": update_acl_config,
    "deleteAclConfig": delete_acl_config,
    "clusterAclConfigVersion": cluster_acl_config_version,
    "updateGlobalWhiteAddr": update_global_white_addr,
}
