"""Examines a cluster by requests: name servers first, then brokers, then topics and groups.

Each phase runs its checks side by side, and knows what the phase before found.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from cometmq.cli.doctor import clocks, pop, producer_sessions, replication, topics_and_groups
from cometmq.cli.doctor.cluster import Broker, Cluster, responds
from cometmq.cli.doctor.findings import (
    NAMES_SHOWN_MAX,
    Check,
    Finding,
    Level,
    fine,
    no_result,
    run_checks,
    shown,
    too_many,
)
from cometmq.client import AdminClient
from cometmq.model.address import host_and_port
from cometmq.model.errors import CometError
from cometmq.model.nouns import counted
from cometmq.model.times import now_ms
from cometmq.protocol.bodies.common import TopicList
from cometmq.protocol.bodies.route import BrokerData, ClusterInfo
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.ports import fast_port, ha_port

TIMERS_LATE_S = 5
TIMERS_VERY_LATE_S = 60
"""Seconds by which the timers of a broker may be late."""
TIMERS_UNREAD_MAX = 100_000
BROKERS_MAX = 1_000
TROUBLESHOOT = "see docs/howto/troubleshoot.md"


class View(NamedTuple):
    """The brokers and topics that one name server knows."""

    address: str
    brokers: dict[str, BrokerData]
    topics: frozenset[str]

    @property
    def addresses(self) -> dict[tuple[str, int], str]:
        """The addresses of the brokers by name and id."""
        return {
            (name, number): address
            for name, broker in self.brokers.items()
            for number, address in broker.broker_addrs.items()
        }


async def examine(admin: AdminClient, timeout_s: float) -> list[Finding]:
    """Run all checks of a cluster.

    Args:
        admin: a started client of its name servers.
        timeout_s: how long each check may take.
    """
    views: list[View] = []
    names = [
        Check("name-servers", address, partial(_ask_name_server, admin, address, views))
        for address in admin.name_servers
    ]
    found = await run_checks(names, timeout_s)
    views.sort(key=lambda view: view.address)
    found += agreement(views)
    cluster = Cluster(admin)
    cluster.topics = frozenset().union(*(view.topics for view in views))
    for view in reversed(views):
        cluster.registered |= view.brokers
    registered = {key: address for view in views for key, address in view.addresses.items()}
    brokers = sorted(registered.items())
    if views and not brokers:
        found.append(
            Finding(
                "brokers",
                Level.PROBLEM,
                "the cluster",
                "no broker is registered",
                "brokers that are registered with these name servers",
                "start a broker with namesrvAddr; see docs/howto/configure.md",
            )
        )
    checks: list[Check] = []
    for (name, number), address in brokers[:BROKERS_MAX]:
        subject = f"{name} ({address})"
        checks.append(
            Check("brokers", subject, partial(_ask_broker, cluster, name, number, address))
        )
    found += await run_checks(checks, timeout_s)
    found += too_many("brokers", len(brokers), BROKERS_MAX)
    ports = [Check("ports", broker.subject, partial(_ports, broker)) for broker in cluster.brokers]
    found += await run_checks(ports, timeout_s)
    found += versions(cluster)
    found += replication.masters(cluster)
    found += replication.refusing(cluster)
    found += replication.set_aside(cluster)
    found += timers(cluster)
    found += producer_sessions.offered(cluster)
    found += producer_sessions.room(cluster)
    found += pop.in_flight(cluster)
    later = [*replication.checks(cluster), *topics_and_groups.checks(cluster)]
    return found + await run_checks(later, timeout_s)


# --- name servers ---------------------------------------------------------------------------------


async def _ask_name_server(
    admin: AdminClient, address: str, views: list[View]
) -> Sequence[Finding]:
    try:
        info = await admin.call(address, RequestCode.GET_BROKER_CLUSTER_INFO)
        topics = await admin.call(address, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    except CometError as problem:
        return [
            no_result(
                "name-servers",
                Level.PROBLEM,
                address,
                problem,
                "look whether the name server runs and listens on this address (bindAddress)",
            )
        ]
    brokers = ClusterInfo.decode(info.body).broker_addr_table
    known = TopicList.decode(topics.body).topic_list
    views.append(View(address, brokers, frozenset(known)))
    names = counted(len(brokers), "broker name")
    return [fine("name-servers", address, f"knows {names}, {counted(len(known), 'topic')}")]


def agreement(views: Sequence[View]) -> Iterator[Finding]:
    """Compare what name servers know: they do not copy from each other."""
    everything: dict[tuple[str, int], set[str]] = {}
    for view in views:
        for key, address in view.addresses.items():
            everything.setdefault(key, set()).add(address)
    topics = frozenset[str]().union(*(view.topics for view in views))
    differ = False
    for view in views:
        met = [
            f"it knows {view.addresses.get(key, 'no such broker')}, others {sorted(addresses)}, for"
            f" {key[0]} with id {key[1]}"
            for key, addresses in sorted(everything.items())
            if {view.addresses.get(key)} != addresses
        ]
        if missing := sorted(topics - view.topics):
            met.append(f"it does not know {counted(len(missing), 'topic')}: {shown(missing)}")
        differ |= bool(met)
        for each in met[:NAMES_SHOWN_MAX]:
            yield Finding(
                "name-servers", Level.PROBLEM, view.address, each,
                "the same brokers and topics at every name server",
                "set namesrvAddr of every broker to all name servers; brokers register every 30 s",
            )  # fmt: skip
    if len(views) > 1 and not differ:
        yield fine("name-servers", "the cluster", f"{len(views)} name servers know the same")


# --- brokers --------------------------------------------------------------------------------------


async def _ask_broker(cluster: Cluster, name: str, number: int, address: str) -> Sequence[Finding]:
    subject, sent_ms = f"{name} ({address})", now_ms()
    try:
        figures = await cluster.admin.broker_runtime_info(address)
        received_ms = now_ms()
        config = await cluster.admin.broker_config(address)
    except CometError as problem:
        return [
            no_result(
                "brokers",
                Level.PROBLEM,
                subject,
                problem,
                "look whether the broker runs; if it does, set brokerIP1 to an address that clients"
                f" reach; {TROUBLESHOOT}",
            )
        ]
    broker = Broker(name, number, address, figures, config)
    cluster.brokers.append(broker)
    return [
        responds(broker),
        clocks.judge(subject, clocks.offset_of(figures, sent_ms, received_ms)),
        *disk_space(broker),
    ]


def disk_space(broker: Broker) -> Iterator[Finding]:
    """Compare how full the disk of a broker is with its limits."""
    try:
        percent = float(broker.figures.get("commitLogDiskRatio", "")) * 100
    except ValueError:
        yield fine("disk-space", broker.subject, "the broker does not show it")
        return
    met, action = (
        f"{percent:.1f} % used",
        "free space or reduce fileReservedTime; see docs/howto/full-disk.md",
    )
    full = broker.setting("diskSpaceWarningLevelRatio", 90)
    most = broker.setting("diskMaxUsedSpaceRatio", 75)
    if percent >= full:
        yield Finding(
            "disk-space", Level.PROBLEM, broker.subject, met,
            f"less than {full} % (diskSpaceWarningLevelRatio): above it messages are refused",
            action,
        )  # fmt: skip
    elif percent >= most:
        yield Finding(
            "disk-space", Level.WARNING, broker.subject, met,
            f"less than {most} % (diskMaxUsedSpaceRatio): above it files are deleted at any hour",
            action,
        )  # fmt: skip
    else:
        yield fine("disk-space", broker.subject, met)


def timers(cluster: Cluster) -> Iterator[Finding]:
    """Find brokers whose timer messages are late."""
    for broker in cluster.brokers:
        figures = {
            key: int(text)
            for key in ("timerReadBehind", "timerOffsetBehind", "timerCongestNum")
            if (text := broker.figures.get(key, "")).isdecimal()
        }
        if not figures.get("timerCongestNum") or not broker.is_master:
            continue
        waiting, late_s = figures["timerCongestNum"], figures.get("timerReadBehind", 0)
        unread = figures.get("timerOffsetBehind", 0)
        met = (
            f"{counted(waiting, 'timer message')} waiting, {counted(unread, 'message')} not in the"
            f" wheel yet, {late_s} s late"
        )
        if late_s < TIMERS_LATE_S and unread < TIMERS_UNREAD_MAX:
            yield fine("timers", broker.subject, met)
            continue
        yield Finding(
            "timers", Level.PROBLEM if late_s >= TIMERS_VERY_LATE_S else Level.WARNING,
            broker.subject, met,
            f"less than {TIMERS_LATE_S} s and less than {TIMERS_UNREAD_MAX} messages",
            "look at its log and its load: the delivery waits for the disk, for slaves, or for a"
            " processor; see docs/howto/delay-a-message.md",
        )  # fmt: skip


async def _ports(broker: Broker) -> Sequence[Finding]:
    """Connect to the port for slaves and to the fast port of a broker."""
    found = []
    host, port = broker.host, broker.port
    for_slaves = broker.setting("haListenPort", 0) or ha_port(port)
    ports = [("for slaves (haListenPort)", broker.config.get("brokerIP2") or host, for_slaves)]
    fast = fast_port(port)
    if fast is not None and broker.config.get("fastPortEnable", "true") == "true":
        ports.append(("two below listenPort (VIP channel)", host, fast))
    for purpose, where, number in ports:
        address = host_and_port(where, number)
        if problem := await _connects(where, number):
            found.append(
                Finding(
                    "ports",
                    Level.WARNING,
                    broker.subject,
                    f"port {address} {purpose} is not reached from this host: {problem}",
                    "a port that slaves and clients reach",
                    "open it in the firewall, if they are in the network of this host",
                )
            )
        else:
            found.append(fine("ports", broker.subject, f"port {address} {purpose} is reached"))
    return found


async def _connects(host: str, port: int) -> str:
    """Open a connection and close it; return the problem, empty if there is none."""
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError as problem:
        return problem.strerror or str(problem)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""


def versions(cluster: Cluster) -> Iterator[Finding]:
    """Compare the versions of the brokers."""
    by_version: dict[str, list[str]] = {}
    for broker in cluster.brokers:
        version = broker.figures.get("brokerVersionDesc", "unknown")
        by_version.setdefault(version, []).append(broker.subject)
    if len(by_version) == 1:
        yield fine("versions", "the cluster", f"every broker has {next(iter(by_version))}")
    elif by_version:
        met = "; ".join(
            f"{version}: {shown(names)}" for version, names in sorted(by_version.items())
        )
        yield Finding(
            "versions", Level.WARNING, "the cluster", met, "one version, except during an upgrade",
            "upgrade the others; see docs/howto/upgrade-from-rocketmq.md",
        )  # fmt: skip
