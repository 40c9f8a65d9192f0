"""Checks of masters, slaves, in-sync sets and controllers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from cometmq.broker.stats.runtime_info import SENDS_REFUSED
from cometmq.cli.doctor.cluster import Broker, Cluster
from cometmq.cli.doctor.findings import Check, Finding, Level, fine, no_result
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.nouns import counted
from cometmq.protocol.bodies.controller import ReplicaIdentity
from cometmq.protocol.bodies.route import MASTER_ID
from cometmq.protocol.codes import ResponseCode
from cometmq.store.lifecycle.set_aside import SET_ASIDE

MIB = 1024 * 1024
BEHIND_WARNING_BYTES = 4 * MIB
"""Two requests see the log at two times; a slave that follows is less behind than this."""
REPLICATE = "see docs/howto/replicate-a-broker.md"
FAIL_OVER = "see docs/howto/fail-over.md"
REFUSES = f"{FAIL_OVER}#a-broker-that-refuses-sends"
SET_ASIDE_PAGE = f"{FAIL_OVER}#messages-that-were-set-aside"


def masters(cluster: Cluster) -> Iterator[Finding]:
    """Check that every broker name has a master, and slaves that follow it."""
    for name, data in sorted(cluster.registered.items()):
        slaves = sorted(number for number in data.broker_addrs if number != MASTER_ID)
        if MASTER_ID not in data.broker_addrs:
            yield Finding(
                "masters", Level.PROBLEM, name, f"no master, slaves with the ids {slaves}",
                "a master: without it nothing can be sent to this broker name",
                f"start the master, or replace it; {REPLICATE}#replace-a-lost-master",
            )  # fmt: skip
        elif not slaves:
            yield Finding(
                "masters", Level.WARNING, name, "a master without slaves",
                "a slave: without it messages are lost with the disk, and wait while the master is"
                " down",
                f"add a slave; {REPLICATE}",
            )  # fmt: skip
        else:
            yield fine("masters", name, f"a master and {counted(len(slaves), 'slave')}")
            yield from _behind(cluster.named(name))


def _behind(brokers: Sequence[Broker]) -> Iterator[Finding]:
    """Compare the ends of the logs of a master and its slaves."""
    if not brokers or not brokers[0].is_master or (end := brokers[0].log_end) is None:
        return
    limit = brokers[0].setting("haSlaveFallbehindMax", 256 * MIB)
    for slave in brokers[1:]:
        if slave.log_end is None:
            continue
        behind = end - slave.log_end
        met = f"{counted(max(0, behind), 'byte')} of the log behind its master"
        if behind < BEHIND_WARNING_BYTES:
            yield fine("slaves", slave.subject, met)
            continue
        yield Finding(
            "slaves",
            Level.PROBLEM if behind > limit else Level.WARNING,
            slave.subject,
            met,
            f"less than {BEHIND_WARNING_BYTES} bytes; above {limit} (haSlaveFallbehindMax) the"
            " slave does not count",
            f"look at the logs of both brokers and at the network between them; {REPLICATE}",
        )


def refusing(cluster: Cluster) -> Iterator[Finding]:
    """Find brokers that refuse sends, such as fenced brokers."""
    for broker in cluster.brokers:
        if reason := broker.figures.get(SENDS_REFUSED, ""):
            yield Finding(
                "sends",
                Level.PROBLEM,
                broker.subject,
                f"it refuses sends, and acknowledges nothing: {reason}",
                "a broker that acknowledges sends, or a slave that may be elected",
                f"look at its log, and at the controllers and slaves that it names; {REFUSES}",
            )


def set_aside(cluster: Cluster) -> Iterator[Finding]:
    """Find confirmed messages that a slave has set aside because its master lacked them."""
    for broker in cluster.brokers:
        if folders := broker.figures.get(SET_ASIDE, ""):
            yield Finding(
                "set-aside",
                Level.PROBLEM,
                broker.subject,
                f"confirmed messages that its master lacked, in aside of its store: {folders}",
                "no such folder",
                f"read them, send again what is missing, and remove the folder; {SET_ASIDE_PAGE}",
            )


def checks(cluster: Cluster) -> list[Check]:
    """Return the checks that ask masters and controllers."""
    found = [
        Check("slaves", master.subject, partial(_connected, cluster, master))
        for master in cluster.masters
        if len(cluster.registered[master.name].broker_addrs) > 1
    ]
    elected = [
        broker
        for broker in cluster.brokers
        if broker.config.get("enableControllerMode", "false") == "true"
    ]
    addresses = sorted(
        {
            address
            for broker in elected
            for address in broker.config.get("controllerAddr", "").split(";")
            if address
        }
    )
    if addresses:
        run = partial(_controllers, cluster, elected, addresses)
        found.append(Check("controllers", ";".join(addresses), run))
    return found


async def _connected(cluster: Cluster, master: Broker) -> Sequence[Finding]:
    """Compare the registered slaves with the slaves that copy the log."""
    registered = len(cluster.registered[master.name].broker_addrs) - 1
    try:
        status = await cluster.admin.replication(master.address)
    except ResponseError as problem:
        if problem.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        return [fine("slaves", master.subject, "brokers of 4.9 do not show their connections")]
    # A master also lists connections that copy nothing, such as that of the check of ports.
    slaves = [each for each in status.ha_connection_info if each.slave_ack_offset >= 0]
    connected = len(slaves)
    met = f"connected slaves: {connected} of {registered}"
    if connected < registered:
        return [
            Finding(
                "slaves",
                Level.PROBLEM,
                master.subject,
                met,
                "a connection to the port for slaves from each slave",
                "look whether slaves reach brokerIP2 and haListenPort of the master, and at their"
                f" logs; {REPLICATE}",
            )
        ]
    late = [slave for slave in slaves if not slave.in_sync]
    return [fine("slaves", master.subject, met)] + [
        Finding(
            "slaves", Level.WARNING, f"{master.name} (slave at {slave.addr})",
            f"not in sync, {counted(slave.diff, 'byte')} behind", "a slave that is in sync",
            f"look at its log, its disk and the network; {REPLICATE}",
        )
        for slave in late
    ]  # fmt: skip


async def _controllers(
    cluster: Cluster, elected: Sequence[Broker], addresses: Sequence[str]
) -> Sequence[Finding]:
    """Ask every controller who is active, and the active one for the in-sync sets."""
    found: list[Finding] = []
    leaders: dict[str, list[str]] = {}
    for address in addresses:
        try:
            metadata = await cluster.admin.controller_metadata(address)
        except CometError as problem:
            action = "look whether the controller runs; see docs/howto/run-a-controller.md"
            found.append(no_result("controllers", Level.PROBLEM, address, problem, action))
            continue
        leader = metadata.controller_leader_address or ""
        leaders.setdefault(leader, []).append(address)
        found.append(fine("controllers", address, f"responds, active is {leader or 'none'}"))
    known = [leader for leader in leaders if leader]
    if len(known) == 1 and len(leaders) == 1:
        found.append(fine("controllers", "the cluster", f"{known[0]} is active"))
    else:
        met = "; ".join(f"{leader or 'none'} at {at}" for leader, at in sorted(leaders.items()))
        found.append(
            Finding(
                "controllers",
                Level.PROBLEM,
                "the cluster",
                f"active controllers: {met or 'no controller responds'}",
                "one active controller that all name: without it no master is elected",
                "look whether etcd responds; see docs/howto/run-a-controller.md",
            )
        )
    if known:
        found += await _in_sync(cluster, elected, known[0])
    return found


async def _in_sync(cluster: Cluster, elected: Sequence[Broker], leader: str) -> Sequence[Finding]:
    least = {broker.name: broker.setting("minInSyncReplicas", 1) for broker in elected}
    table = (await cluster.admin.sync_state(leader, sorted(least))).replicas_info_table
    found: list[Finding] = []
    for name, least_members in sorted(least.items()):
        if name not in table:
            continue
        members, others = table[name].in_sync_replicas, table[name].not_in_sync_replicas
        met = f"in sync {len(members)} of {len(members) + len(others)}"
        found += _distrusted(name, members)
        if not table[name].master_address:
            problem = (Level.PROBLEM, f"no master, {met}", "an elected master")
        elif len(members) < least_members:
            expected = f"at least {least_members} (minInSyncReplicas): else sends are refused"
            problem = (Level.PROBLEM, met, expected)
        elif others:
            problem = (Level.WARNING, met, "all: with fewer, a failover has fewer choices")
        else:
            found.append(fine("in-sync-sets", name, met))
            continue
        level, met, expected = problem
        absent = ", ".join(str(each.broker_address) for each in others)
        action = f"look at the brokers that are not in it ({absent}); {FAIL_OVER}"
        found.append(Finding("in-sync-sets", level, name, met, expected, action))
    return found


def _distrusted(name: str, members: Sequence[ReplicaIdentity]) -> Iterator[Finding]:
    """Find members that are not elected before a master has compared their log."""
    for member in members:
        if member.log_state:
            yield Finding(
                "in-sync-sets",
                Level.WARNING,
                f"{name} ({member.broker_address})",
                f"its log is {member.log_state}: it was killed, lost its power, or was copied",
                "a log that the master has compared, which takes as long as it needs to catch up",
                f"look whether it reaches the master; {FAIL_OVER}",
            )
