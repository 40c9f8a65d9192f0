"""The command that lists clusters with their brokers and load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from cometmq.cli.figures import TODAY, YESTERDAY, messages, number, rate
from cometmq.cli.mqadmin.call import Call, brokers_in
from cometmq.model.errors import CometError
from cometmq.protocol.bodies.route import BrokerData, ClusterInfo

HEADS = ("#Cluster Name", "#Broker Name", "#BID", "#Addr", "#Version", "#InTPS(LOAD)")
HEADS_4 = (*HEADS, "#OutTPS(LOAD)", "#PCWait(ms)", "#Hour", "#SPACE")
HEADS_5 = (*HEADS, "#OutTPS(LOAD)", "#Timer(Progress)", "#PCWait(ms)", "#Hour", "#SPACE")
FORM_4 = "%-16s  %-22s  %-4s  %-22s %-16s %19s %19s %10s %5s %6s"
FORM_5 = "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %11s  %-12s  %-8s  %10s"
MORE_HEADS = ("#InTotalYest", "#OutTotalYest", "#InTotalToday", "#OutTotalToday")


async def cluster_list(call: Call) -> None:
    """List clusters and their brokers; with ``-i`` again and again."""
    while True:
        info = await call.admin.cluster_info()
        await (_print_more(call, info) if call.has("m") else _print_load(call, info))
        if not call.has("i"):
            return
        await asyncio.sleep(call.number("i"))


def _brokers(call: Call, info: ClusterInfo) -> Iterator[tuple[str, BrokerData]]:
    for cluster in sorted(info.cluster_addr_table):
        if call.text("c") in ("", cluster):
            for broker in brokers_in(info, cluster):
                yield cluster, broker


async def _figures(call: Call, address: str) -> dict[str, str]:
    """Return the runtime information of a broker; without a response its error is printed."""
    try:
        return await call.admin.broker_runtime_info(address)
    except CometError as error:
        call.fail(error)
        return {}


async def _print_load(call: Call, info: ClusterInfo) -> None:
    print(FORM_4 % HEADS_4 if call.is_4 else FORM_5 % (*HEADS_5, "#ACTIVATED"), flush=True)
    for cluster, broker in _brokers(call, info):
        for broker_id, address in sorted(broker.broker_addrs.items()):
            figures = await _figures(call, address)
            row = (cluster, broker.broker_name, broker_id, address)
            if call.is_4:
                print(FORM_4 % (*row, *_load_4(figures)), flush=True)
            else:
                print(FORM_5 % (*row, *_load_5(figures)), flush=True)


def _queue(figures: dict[str, str], name: str, missing: str = "") -> str:
    size = figures.get(f"{name}ThreadPoolQueueSize", missing)
    return f"{size},{figures.get(f'{name}ThreadPoolQueueHeadWaitTimeMills', missing)}ms"


def _hours(figures: dict[str, str]) -> float:
    earliest = number(figures, "earliestMessageTimeStamp") or 0
    return (time.time() - earliest / 1000) / 3600 if earliest else 0.0


def _load_4(figures: dict[str, str]) -> tuple[str, ...]:
    out = rate(figures, "getTransferedTps", "getTransferredTps")
    return (
        figures.get("brokerVersionDesc", ""),
        f"{rate(figures, 'putTps') or 0.0:9.2f}({_queue(figures, 'send')})",
        f"{out or 0.0:9.2f}({_queue(figures, 'pull')})",
        figures.get("pageCacheLockTimeMills", ""),
        f"{_hours(figures):2.2f}",
        f"{float(figures.get('commitLogDiskRatio') or 0):.4f}",
    )


def _load_5(figures: dict[str, str]) -> tuple[str, ...]:
    out = rate(figures, "getTransferredTps", "getTransferedTps")
    behind = number(figures, "timerReadBehind") or 0
    waiting = number(figures, "timerCongestNum") or 0
    timer = (
        f"{behind}-{number(figures, 'timerOffsetBehind') or 0}({waiting / 10000:.1f}w,"
        f" {float(figures.get('timerEnqueueTps') or 0):.1f},"
        f" {float(figures.get('timerDequeueTps') or 0):.1f})"
    )
    return (
        figures.get("brokerVersionDesc", ""),
        f"{rate(figures, 'putTps') or 0.0:9.2f}({_queue(figures, 'send')})",
        f"{out or 0.0:9.2f}({_queue(figures, 'pull')}|{_queue(figures, 'ack', 'N')})",
        timer,
        figures.get("pageCacheLockTimeMills", ""),
        f"{_hours(figures):2.2f}",
        f"{float(figures.get('commitLogDiskRatio') or 0):.4f}",
        figures.get("brokerActive", "false"),
    )


async def _print_more(call: Call, info: ClusterInfo) -> None:
    form = "%-16s  %-32s %14s %14s %14s %14s"
    print(form % ("#Cluster Name", "#Broker Name", *MORE_HEADS))
    for cluster, broker in _brokers(call, info):
        for address in broker.broker_addrs.values():
            figures = await _figures(call, address)
            counts = [
                messages(figures, way, day) for day in (YESTERDAY, TODAY) for way in ("Put", "Get")
            ]
            print(form % (cluster, broker.broker_name, *counts), flush=True)
