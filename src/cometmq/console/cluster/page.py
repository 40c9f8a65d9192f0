"""The servers of a cluster, and one broker with its figures and its replication."""

from __future__ import annotations

import msgspec

from cometmq.console.pages import Name, Page, Query, registered
from cometmq.console.reads import BROKERS_MAX, Reads
from cometmq.model.errors import CometError, ResponseError
from cometmq.protocol.bodies.broker_admin import HARuntimeInfo

FIGURES_SHOWN = 1_000
SLAVES_SHOWN = 64
EPOCHS_SHOWN = 100


class ClusterQuery(Query):
    """The servers have no parameters."""


class Server(msgspec.Struct):
    """A broker that is registered."""

    broker: str
    id: int
    role: str
    address: str


class ClusterServers(msgspec.Struct):
    """A cluster."""

    cluster: str
    brokers: list[Server]


class Servers(msgspec.Struct):
    """All servers that the name servers know."""

    name_servers: list[str]
    clusters: list[ClusterServers]
    is_cut: bool
    """Whether there may be further brokers."""


class BrokerQuery(Query):
    """Which broker."""

    address: Name


class Slave(msgspec.Struct):
    """A slave as its master sees it."""

    address: str
    lag_bytes: int
    transferred_bytes_per_s: int
    in_sync: bool


class Epoch(msgspec.Struct):
    """The part of a log that one master wrote."""

    epoch: int
    start_offset: int
    end_offset: int


class BrokerDetails(msgspec.Struct):
    """One broker."""

    server: Server
    cluster: str
    figures: dict[str, str]
    """The runtime information, by RocketMQ's names."""
    replication: str
    """What the broker says about its copies."""
    slaves: list[Slave]
    epochs: list[Epoch]
    """The newest first; none if no controller elects masters."""
    errors: list[str]


async def servers(reads: Reads, _query: ClusterQuery) -> Servers:
    """Return all servers; no broker is asked."""
    brokers = await reads.brokers()
    by_cluster: dict[str, list[Server]] = {}
    for each in brokers:
        role = "master" if each.is_master else "slave"
        found = Server(each.name, each.id, role, each.address)
        by_cluster.setdefault(each.cluster, []).append(found)
    clusters = [ClusterServers(name, found) for name, found in by_cluster.items()]
    return Servers(reads.admin.name_servers, clusters, len(brokers) >= BROKERS_MAX)


async def broker(reads: Reads, query: BrokerQuery) -> BrokerDetails:
    """Return one broker, which gets three requests."""
    found = await registered(reads, query.address)
    errors: list[str] = []
    figures: dict[str, str] = {}
    try:
        table = await reads.admin.broker_runtime_info(found.address)
        figures = dict(sorted(table.items())[:FIGURES_SHOWN])
    except CometError as error:
        errors.append(f"runtime information: {error}")
    text, slaves = "", list[Slave]()
    try:
        text, slaves = _replication(await reads.admin.replication(found.address))
    except CometError as error:  # brokers before 5.0 do not show it
        errors.append(f"replication: {error}")
    role = "master" if found.is_master else "slave"
    server = Server(found.name, found.id, role, found.address)
    epochs = await _epochs(reads, found.address)
    return BrokerDetails(server, found.cluster, figures, text, slaves, epochs, errors)


async def _epochs(reads: Reads, address: str) -> list[Epoch]:
    """Return the newest epochs of a broker's log; none if the broker refuses: it has none then."""
    try:
        found = await reads.admin.broker_epochs(address)
    except ResponseError:
        return []
    epochs = [Epoch(each.epoch, each.start_offset, each.end_offset) for each in found.epoch_list]
    if epochs:
        epochs[-1].end_offset = found.max_offset
    return epochs[: -EPOCHS_SHOWN - 1 : -1]


def _replication(info: HARuntimeInfo) -> tuple[str, list[Slave]]:
    """Return what a broker says about its copies, and its slaves."""
    if not info.master:
        client = info.ha_client_runtime_info
        return (
            f"copies from {client.master_addr or 'no master'}, up to physical offset"
            f" {client.max_offset:,}",
            [],
        )
    slaves = [
        Slave(each.addr, each.diff, each.transferred_byte_in_second, each.in_sync)
        for each in info.ha_connection_info[:SLAVES_SHOWN]
    ]
    return f"the log ends at physical offset {info.master_commit_log_max_offset:,}", slaves


PAGES = (
    Page(
        "/cluster", "Cluster", "cluster/servers.html", ClusterQuery, Servers, servers, is_tab=True
    ),
    Page("/cluster/broker", "Broker", "cluster/broker.html", BrokerQuery, BrokerDetails, broker),
)
