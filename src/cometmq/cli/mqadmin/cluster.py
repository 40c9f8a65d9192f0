"""The command that lists clusters with their brokers and load."""

from __future__ import annotations

import time

from cometmq.cli.mqadmin.call import Call
from cometmq.model.errors import CometError
from cometmq.model.runtime_figures import number, rate, totals
from cometmq.protocol.bodies.route import RegisteredBroker

HEADS = ("#Cluster Name", "#Broker Name", "#BID", "#Addr", "#Version", "#InTPS(LOAD)")
HEADS_4 = (*HEADS, "#OutTPS(LOAD)", "#PCWait(ms)", "#Hour", "#SPACE")
HEADS_5 = (*HEADS, "#OutTPS(LOAD)", "#Timer(Progress)", "#PCWait(ms)", "#Hour", "#SPACE")
FORM_4 = "%-16s  %-22s  %-4s  %-22s %-16s %19s %19s %10s %5s %6s"
FORM_5 = "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %11s  %-12s  %-8s  %10s"
MORE_HEADS = ("#InTotalYest", "#OutTotalYest", "#InTotalToday", "#OutTotalToday")


async def cluster_list(call: Call) -> None:
    """List clusters and their brokers; with ``-i`` again and again."""

    async def show() -> None:
        brokers = (await call.admin.cluster_info()).registered(call.text("c") or None)
        await (_print_more(call, brokers) if call.has("m") else _print_load(call, brokers))

    await call.repeat(show)


async def _figures(call: Call, address: str) -> dict[str, str]:
    """Return the runtime information of a broker; without a response its error is printed."""
    try:
        return await call.admin.broker_runtime_info(address)
    except CometError as error:
        call.fail(error)
        return {}


async def _print_load(call: Call, brokers: list[RegisteredBroker]) -> None:
    print(FORM_4 % HEADS_4 if call.is_4 else FORM_5 % (*HEADS_5, "#ACTIVATED"), flush=True)
    for broker in brokers:
        figures = await _figures(call, broker.address)
        if call.is_4:
            print(FORM_4 % (*broker, *_load_4(figures)), flush=True)
        else:
            print(FORM_5 % (*broker, *_load_5(figures)), flush=True)


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


async def _print_more(call: Call, brokers: list[RegisteredBroker]) -> None:
    form = "%-16s  %-32s %14s %14s %14s %14s"
    print(form % ("#Cluster Name", "#Broker Name", *MORE_HEADS))
    for broker in brokers:
        figures = await _figures(call, broker.address)
        print(form % (broker.cluster, broker.name, *totals(figures)), flush=True)
