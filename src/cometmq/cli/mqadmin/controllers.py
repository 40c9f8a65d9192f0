"""Commands about controllers, and about the broker sets that they elect masters of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from cometmq.cli.mqadmin.call import Call, CommandError, brokers_in, with_slaves
from cometmq.cli.mqadmin.settings import show_config, update_config
from cometmq.cli.mqadmin.texts import java, lower
from cometmq.protocol.bodies import (
    BrokerReplicasInfo,
    ElectMasterResponseBody,
    EpochEntryCache,
    ReplicaIdentity,
)
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import (
    CleanBrokerDataRequest,
    ControllerElectMasterRequest,
    ControllerElectMasterResponse,
    ControllerGetMetadataInfoResponse,
)


def _controllers(call: Call) -> list[str]:
    return [each for each in call.text("a").split(";") if each]


async def _leader(call: Call) -> str:
    """Return the address of the active controller."""
    code = RequestCode.CONTROLLER_GET_METADATA_INFO
    response = await call.admin.call(_controllers(call)[0], code)
    leader = response.header(ControllerGetMetadataInfoResponse).controller_leader_address
    if not leader:
        raise CommandError(f"controller {call.text('a')} knows no leader: is a majority running?")
    return leader


async def _repeat(call: Call, show: Callable[[], Awaitable[None]]) -> None:
    if not (call.has("b") or call.has("c")):
        call.print_usage()
        return
    while True:
        await show()
        if not call.has("i"):
            return
        await asyncio.sleep(call.number("i"))


async def get_sync_state_set(call: Call) -> None:
    """Show which brokers of a set are in sync."""

    async def show() -> None:
        leader = await _leader(call)
        names = [call.text("b")]
        if not call.has("b"):
            info = await call.admin.cluster_info()
            names = [broker.broker_name for broker in brokers_in(info, call.text("c"))]
        if not names:
            return
        code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
        response = await call.admin.call(leader, code, body=msgspec.json.encode(names))
        for name, found in BrokerReplicasInfo.decode(response.body).replicas_info_table.items():
            print(f"\n#brokerName\t{name}\n#MasterBrokerId\t{java(found.master_broker_id)}")
            print(f"#MasterAddr\t{java(found.master_address)}\n#MasterEpoch\t{found.master_epoch}")
            print(f"#SyncStateSetEpoch\t{found.sync_state_set_epoch}")
            print(f"#SyncStateSetNums\t{len(found.in_sync_replicas)}")
            for each in found.in_sync_replicas:
                print(f"\nInSyncReplica:\t{_replica(each)}")
            for each in found.not_in_sync_replicas:
                print(f"\nNotInSyncReplica:\t{_replica(each)}")

    await _repeat(call, show)


def _replica(found: ReplicaIdentity) -> str:
    return (
        f"ReplicaIdentity{{brokerName='{found.broker_name}', brokerId={found.broker_id},"
        f" brokerAddress='{java(found.broker_address)}', alive={lower(found.alive)}}}"
    )


async def get_broker_epoch(call: Call) -> None:
    """Show the epochs of a broker's log."""

    async def show() -> None:
        if call.has("b"):
            table = (await call.admin.cluster_info()).broker_addr_table
            if call.text("b") not in table:
                raise CommandError(f"The broker[{call.text('b')}] not exist")
            brokers = [*table[call.text("b")].broker_addrs.values()]
        else:
            brokers = [address for address, _ in await with_slaves(call)]
        for broker in brokers:
            response = await call.admin.call(broker, RequestCode.GET_BROKER_EPOCH_CACHE)
            found = EpochEntryCache.decode(response.body)
            print(f"\n#clusterName\t{found.cluster_name}\n#brokerName\t{found.broker_name}")
            print(f"#brokerAddr\t{broker}\n#brokerId\t{found.broker_id}", end="")
            for entry in found.epoch_list:
                last = entry is found.epoch_list[-1]
                end = found.max_offset if last else entry.end_offset
                shown = f"epoch={entry.epoch}, startOffset={entry.start_offset}, endOffset={end}"
                print(f"\n#Epoch: EpochEntry{{{shown}}}", end="")
            print()

    await _repeat(call, show)


async def get_controller_meta_data(call: Call) -> None:
    """Show the leader and the members of the controllers."""
    code = RequestCode.CONTROLLER_GET_METADATA_INFO
    response = await call.admin.call(_controllers(call)[0], code)
    found = response.header(ControllerGetMetadataInfoResponse)
    print(f"\n#ControllerGroup\t{java(found.group)}")
    print(f"#ControllerLeaderId\t{java(found.controller_leader_id)}")
    print(f"#ControllerLeaderAddress\t{java(found.controller_leader_address)}", end="")
    for peer in filter(None, (found.peers or "").split(";")):
        print(f"\n#Peer:\t{peer}", end="")
    print()


async def get_controller_config(call: Call) -> None:
    """Show the settings of controllers."""
    await show_config(call, _controllers(call), RequestCode.GET_CONTROLLER_CONFIG)


async def update_controller_config(call: Call) -> None:
    """Change one setting of controllers."""
    code = RequestCode.UPDATE_CONTROLLER_CONFIG
    await update_config(call, _controllers(call), code, "controller")


async def elect_master(call: Call) -> None:
    """Let the controller elect a broker as master."""
    header = ControllerElectMasterRequest(
        cluster_name=call.text("c"),
        broker_name=call.text("bn"),
        broker_id=call.number("b"),
        designate_elect=True,
        invoke_time=round(time.time() * 1000),
    )
    code = RequestCode.CONTROLLER_ELECT_MASTER
    response = await call.admin.call(await _leader(call), code, header)
    found = response.header(ControllerElectMasterResponse)
    print(f"\n#ClusterName\t{call.text('c')}\n#BrokerName\t{call.text('bn')}")
    print(f"#BrokerMasterAddr\t{java(found.master_address)}")
    print(f"#MasterEpoch\t{java(found.master_epoch)}")
    print(f"#SyncStateSetEpoch\t{java(found.sync_state_set_epoch)}")
    if response.body:
        members = ElectMasterResponseBody.decode(response.body).broker_member_group
        for number, address in (members.broker_addrs if members else {}).items():
            print(f"\t#Broker\t{number}\t{address}")


async def clean_broker_metadata(call: Call) -> None:
    """Remove brokers from the controller."""
    numbers = call.text("b")
    if numbers and not all(each.isdecimal() for each in numbers.split(";")):
        raise CommandError(f"-b {numbers}: expected numbers of brokers with ';' between them")
    if not call.has("l") and not call.has("c"):
        raise CommandError("expected -c, the cluster of the brokers, unless -l is given")
    header = CleanBrokerDataRequest(
        cluster_name=call.text("c") or None,
        broker_name=call.text("bn"),
        broker_controller_ids_to_clean=numbers or None,
        is_clean_living_broker=call.has("l"),
        invoke_time=round(time.time() * 1000),
    )
    await call.admin.call(await _leader(call), RequestCode.CLEAN_BROKER_DATA, header)
    shown = f"clear broker {call.text('bn')} metadata from controller success!"
    print(shown)


COMMANDS: dict[str, Callable[[Call], Awaitable[None]]] = {
    "getSyncStateSet": get_sync_state_set,
    "getBrokerEpoch": get_broker_epoch,
    "getControllerMetaData": get_controller_meta_data,
    "getControllerConfig": get_controller_config,
    "updateControllerConfig": update_controller_config,
    "electMaster": elect_master,
    "cleanBrokerMetadata": clean_broker_metadata,
}
