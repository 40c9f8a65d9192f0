"""Commands about brokers: their state, their replication, and jobs that they do when asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from cometmq.cli.mqadmin import texts
from cometmq.cli.mqadmin.call import Call, CommandError
from cometmq.client import AdminClient
from cometmq.protocol.bodies.common import KVTable
from cometmq.protocol.bodies.group import ConsumeStats
from cometmq.protocol.codes import RequestCode

CONSUME_STATS_MS = 50_000
NORMAL, RANDOM = 0, 1
"""The modes of reading ahead."""


async def broker_status(call: Call) -> None:
    """Show counters and limits of a running broker."""
    if call.has("b"):
        await _print_figures(call, call.text("b"), "")
    elif call.has("c"):
        for broker in await call.chosen_brokers():
            await _print_figures(call, broker, "%-24s " % broker)


async def _print_figures(call: Call, broker: str, before: str) -> None:
    response = await call.admin.call(broker, RequestCode.GET_BROKER_RUNTIME_INFO)
    for name, value in sorted(KVTable.decode(response.body).table.items()):
        print("%s%-32s: %s" % (before, name, value))


async def broker_consume_stats(call: Call) -> None:
    """List the lag of each group in each queue of a broker."""
    timeout = call.number("t", CONSUME_STATS_MS) / 1000
    found = await call.admin.broker_lag(call.text("b"), ordered=call.true("o"), timeout=timeout)
    form = "%-64s  %-64s  %-32s  %-4s  %-20s  %-20s  %-20s  %s"
    heads = ("#Topic", "#Group", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset")
    print(form % (*heads, "#Diff", "#LastTime"))
    for groups in found.consume_stats_list:
        for group, stats in groups.items():
            for each in stats:
                _print_lag(each, group, call.number("l"), form)
    print(f"\nDiff Total: {found.total_diff}")


def _print_lag(stats: ConsumeStats, group: str, level: int, form: str) -> None:
    for queue, row in sorted(stats.offset_table.items()):
        lag = row.broker_offset - row.consumer_offset
        if lag < level or row.last_timestamp <= 0:
            continue
        values = (
            queue.topic[:64], group[:64], queue.broker_name[:32], queue.queue_id,
            row.broker_offset, row.consumer_offset, lag, texts.to_seconds(row.last_timestamp),
        )  # fmt: skip
        print(form % values)


async def ha_status(call: Call) -> None:
    """Show the state of replication; with ``-i`` again and again."""

    async def show() -> None:
        for broker in await call.chosen_masters():
            await _print_replication(call, broker)

    await call.repeat(show)


async def _print_replication(call: Call, broker: str) -> None:
    found = await call.admin.replication(broker)
    if found.master:
        print(f"\n#MasterAddr\t{broker}")
        print(f"#MasterCommitLogMaxOffset\t{found.master_commit_log_max_offset}")
        print(f"#SlaveNum\t{len(found.ha_connection_info)}")
        print(f"#InSyncSlaveNum\t{found.in_sync_slave_nums}")
        heads = ("#SlaveAddr", "#SlaveAckOffset", "#Diff", "#TransferSpeed(KB/s)", "#Status")
        print("%-32s  %-16s %16s %16s %16s %16s" % (*heads, "#TransferFromWhere"), flush=True)
        for slave in found.ha_connection_info:
            speed = slave.transferred_byte_in_second / 1024
            state = "OK" if slave.in_sync else "Fall Behind"
            row = (slave.addr, slave.slave_ack_offset, slave.diff, speed, state)
            print("%-32s  %-16d %16d %16.2f %16s %16d" % (*row, slave.transfer_from_where))
        return
    slave_of = found.ha_client_runtime_info
    print(f"\n#MasterAddr\t{slave_of.master_addr}")
    print(f"#CommitLogMaxOffset\t{slave_of.max_offset}")
    print(f"#TransferSpeed(KB/s)\t{slave_of.transferred_byte_in_second / 1024:.2f}")
    print(f"#LastReadTime\t{texts.to_ms(slave_of.last_read_timestamp)}")
    print(f"#LastWriteTime\t{texts.to_ms(slave_of.last_write_timestamp)}")
    print(f"#MasterFlushOffset\t{slave_of.master_flush_offset}", flush=True)


def _cleaning(
    clean: Callable[[AdminClient, str], Awaitable[None]],
) -> Callable[[Call], Awaitable[None]]:
    async def clean_chosen(call: Call) -> None:
        if call.has("b"):
            brokers = [call.text("b")]
        else:
            info = await call.admin.cluster_info()
            brokers = [each.address for each in info.registered(call.values.get("c"))]
        for broker in brokers:
            await clean(call.admin, broker)
        print("success" if brokers else "false", end="")

    return clean_chosen


clean_expired_cq = _cleaning(AdminClient.delete_expired_queues)
clean_unused_topic = _cleaning(AdminClient.delete_unused_topics)
delete_expired_commit_log = _cleaning(AdminClient.delete_expired_logs)


async def reset_master_flush_offset(call: Call) -> None:
    """Set on a slave how far its master is known to have flushed."""
    if not (call.has("b") and call.has("o")):
        raise CommandError("expected -b, the address of a broker, and -o, an offset")
    await call.admin.set_flushed_of_master(call.text("b"), call.number("o"))
    print(f"reset master flush offset to {call.number('o')} success")


async def add_broker(call: Call) -> None:
    """Start a broker inside a container."""
    await call.admin.add_broker(call.text("c"), call.text("b"))
    print(f"add broker to {call.text('c')} success")


async def remove_broker(call: Call) -> None:
    """Stop a broker inside a container."""
    parts = call.text("b").split(":")
    if len(parts) != 3 or not parts[2].isdecimal():
        raise CommandError(f"-b {call.text('b')}: expected cluster:name:number")
    await call.admin.remove_broker(call.text("c"), parts[0], parts[1], int(parts[2]))
    print(f"remove broker from {call.text('c')} success")


async def banners(call: Call) -> list[tuple[str, str]]:
    """Return the chosen brokers, each after the line that introduces it: slaves too with ``-c``."""
    if call.has("b"):
        return [(f"============{call.text('b')}============", call.text("b"))]
    brokers = await call.brokers(call.text("c"))
    masters = {each.name: each.address for each in brokers if each.is_master}
    found: list[tuple[str, str]] = []
    for each in brokers:
        shown = f"Master: {each.address}"
        if not each.is_master:
            shown = f"My Master: {masters.get(each.name)}=====Slave: {each.address}"
        found.append((f"============{shown}============", each.address))
    return found


async def get_cold_data_flow_ctr_info(call: Call) -> None:
    """Show how reading of cold data is throttled."""
    if not (call.has("b") or call.has("c")):
        return
    for banner, broker in await banners(call):
        found = await call.admin.cold_reads(broker)
        print(f" {banner}")
        if not found:
            print(f"Broker[{broker}] has no cold ctr table !")
            continue
        print(texts.pretty({name: found[name] for name in sorted(found)}), end="\n\n")


async def update_cold_data_flow_ctr_group_config(call: Call) -> None:
    """Set a group's limit for reading cold data."""
    for broker in await call.chosen_masters():
        await call.admin.set_cold_read_limit(broker, call.text("g"), call.text("v"))
        print(f"updateColdDataFlowCtrGroupConfig success, {broker}")


async def remove_cold_data_flow_ctr_group_config(call: Call) -> None:
    """Remove a group's limit for reading cold data."""
    for broker in await call.chosen_masters():
        await call.admin.remove_cold_read_limit(broker, call.text("g"))
        print(f"remove broker cold read threshold success, {broker}")


async def set_commit_log_read_ahead_mode(call: Call) -> None:
    """Set how the kernel reads ahead in the commit log."""
    mode = call.number("m")
    if mode not in (NORMAL, RANDOM):
        print("set the read mode error; 0 is default, 1 random read")
        return
    for banner, broker in await banners(call):
        remark = await call.admin.set_read_ahead(broker, mode)
        print(f" {banner}\ncommitLog set readAhead mode rstStr{remark}")
