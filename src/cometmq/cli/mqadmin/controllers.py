"""Commands about controllers, and about the broker sets that they elect masters of."""

from __future__ import annotations

from cometmq.cli.controllers import from_any
from cometmq.cli.mqadmin.call import Call, CommandError
from cometmq.cli.mqadmin.settings import show_config, update_config
from cometmq.cli.mqadmin.texts import java, lower
from cometmq.protocol.bodies.controller import ElectMasterResponseBody, ReplicaIdentity
from cometmq.protocol.headers.controller import ControllerElectMasterResponse


def _controllers(call: Call) -> list[str]:
    """Return the addresses of the controllers.

    Raises:
        CommandError: there is none.
    """
    found = [each for each in call.text("a").split(";") if each]
    if not found:
        raise CommandError(f"-a {call.text('a')}: expected host:port;host:port")
    return found


async def _leader(call: Call) -> str:
    """Return the address of the active controller, as the first one that responds knows it."""
    return await from_any(call.admin.controller_leader, _controllers(call))


async def get_sync_state_set(call: Call) -> None:
    """Show which brokers of a set are in sync."""

    async def show() -> None:
        leader = await _leader(call)
        names = [call.text("b")]
        if not call.has("b"):
            registered = (await call.admin.cluster_info()).registered(call.text("c"))
            names = list(dict.fromkeys(each.name for each in registered))
        if not names:
            return
        table = (await call.admin.sync_state(leader, names)).replicas_info_table
        for name, found in table.items():
            print(f"\n#brokerName\t{name}\n#MasterBrokerId\t{java(found.master_broker_id)}")
            print(f"#MasterAddr\t{java(found.master_address)}\n#MasterEpoch\t{found.master_epoch}")
            print(f"#SyncStateSetEpoch\t{found.sync_state_set_epoch}")
            print(f"#SyncStateSetNums\t{len(found.in_sync_replicas)}")
            for each in found.in_sync_replicas:
                print(f"\nInSyncReplica:\t{_replica(each)}")
            for each in found.not_in_sync_replicas:
                print(f"\nNotInSyncReplica:\t{_replica(each)}")

    await call.repeat(show)


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
            brokers = await call.chosen_brokers()
        for broker in brokers:
            found = await call.admin.broker_epochs(broker)
            print(f"\n#clusterName\t{found.cluster_name}\n#brokerName\t{found.broker_name}")
            print(f"#brokerAddr\t{broker}\n#brokerId\t{found.broker_id}", end="")
            for entry in found.epoch_list:
                last = entry is found.epoch_list[-1]
                end = found.max_offset if last else entry.end_offset
                shown = f"epoch={entry.epoch}, startOffset={entry.start_offset}, endOffset={end}"
                print(f"\n#Epoch: EpochEntry{{{shown}}}", end="")
            print()

    await call.repeat(show)


async def get_controller_meta_data(call: Call) -> None:
    """Show the leader and the members of the controllers."""
    found = await from_any(call.admin.controller_metadata, _controllers(call))
    print(f"\n#ControllerGroup\t{java(found.group)}")
    print(f"#ControllerLeaderId\t{java(found.controller_leader_id)}")
    print(f"#ControllerLeaderAddress\t{java(found.controller_leader_address)}", end="")
    for peer in filter(None, (found.peers or "").split(";")):
        print(f"\n#Peer:\t{peer}", end="")
    print()


async def get_controller_config(call: Call) -> None:
    """Show the settings of controllers."""
    await show_config(_controllers(call), call.admin.controller_config)


async def update_controller_config(call: Call) -> None:
    """Change one setting of controllers."""
    change = call.admin.set_controller_config
    await update_config(call, _controllers(call), change, "controller")


async def elect_master(call: Call) -> None:
    """Let the controller elect a broker as master."""
    cluster, number = call.text("c"), call.number("b")
    leader = await _leader(call)
    response = await call.admin.elect_master(leader, cluster, call.text("bn"), number)
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
    await call.admin.forget_brokers(
        await _leader(call),
        call.text("bn"),
        cluster=call.text("c") or None,
        broker_ids=[int(each) for each in numbers.split(";")] if numbers else (),
        living=call.has("l"),
    )
    print(f"clear broker {call.text('bn')} metadata from controller success!")
