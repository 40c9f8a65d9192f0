"""Routes of topics and brokers by cluster, read from the registry.

Source: RouteInfoManager and ZoneRouteRPCHook, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from cometmq.model.topic import SYNC_BROKER_MEMBER_PREFIX, Perm
from cometmq.namesrv.registry import MASTER_ID, BrokerKey, Group, Registry
from cometmq.protocol.bodies.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicQueueMappingInfo,
    TopicRouteData,
)
from cometmq.remoting.slices import Slices, batched

BROKERS_AT_ONCE = 50
"""Number of brokers of a route that are read without a pause."""


def route_of(
    registry: Registry,
    topic: str,
    *,
    names: Iterable[str] | None = None,
    order_config: str | None = None,
    shows_acting_masters: bool = False,
    zone: str | None = None,
) -> TopicRouteData | None:
    """Return the route of a topic, or None if no registered broker serves it.

    Args:
        registry: the registered brokers and their topics.
        topic: its name.
        names: show only these brokers.
        order_config: the topic's order configuration, if routes contain it.
        shows_acting_masters: show the smallest slave as master if the group has no master and
            allows it.
        zone: leave out the brokers of other zones that have a master.
    """
    rows = registry.topics.get(topic, {})
    shown = rows if names is None else names
    groups = [registry.groups[name] for name in shown if name in registry.groups]
    if not groups:
        return None
    if zone is not None:
        groups = [group for group in groups if _is_in_zone(group, zone)]
    shows = shows_acting_masters and not topic.startswith(SYNC_BROKER_MEMBER_PREFIX)
    return TopicRouteData(
        order_topic_conf=order_config,
        queue_datas=[rows[group.name] for group in groups],
        broker_datas=[_broker_data(group, rows[group.name], shows) for group in groups],
        filter_server_table=_filter_servers(registry, groups),
        topic_queue_mapping_by_broker=None if names else dict(_mappings(registry, topic)) or None,
    )


async def long_route_of(
    registry: Registry, topic: str, *, order_config: str | None = None, **options: Any
) -> TopicRouteData | None:
    """Return the route of a topic of very many brokers, made in slices."""
    slices = Slices()
    found: TopicRouteData | None = None
    async with registry.lock:
        async for names in slices.each(batched(registry.topics.get(topic, ()), BROKERS_AT_ONCE)):
            part = route_of(registry, topic, names=names, order_config=order_config, **options)
            if found is None:
                found = part
            elif part is not None:
                found.queue_datas += part.queue_datas
                found.broker_datas += part.broker_datas
                found.filter_server_table |= part.filter_server_table
        if found is not None:
            mappings = {n: each async for n, each in slices.each(_mappings(registry, topic))}
            found.topic_queue_mapping_by_broker = mappings or None
    return found


def _mappings(registry: Registry, topic: str) -> Iterator[tuple[str, TopicQueueMappingInfo]]:
    """The queues of a static topic at all brokers, also at those that are away."""
    yield from registry.mappings.get(topic, {}).items()


def _is_in_zone(group: Group, zone: str) -> bool:
    """A group without a master is kept in any zone: no other group serves its queues."""
    return MASTER_ID not in group.addresses or (group.zone or "").lower() == zone.lower()


def _filter_servers(registry: Registry, groups: list[Group]) -> dict[str, list[str] | None]:
    if not registry.filter_servers:
        return {}
    found: dict[str, list[str] | None] = {}
    for group in groups:
        for address in group.addresses.values():
            servers = registry.filter_servers.get(BrokerKey(group.cluster, address))
            if servers:
                found[address] = list(servers)
    return found


def _broker_data(group: Group, row: QueueData | None, shows_acting_master: bool) -> BrokerData:
    addresses = dict(sorted(group.addresses.items()))
    if shows_acting_master and row is not None and not row.perm & Perm.WRITE:
        addresses = _with_acting_master(group, addresses)
    return BrokerData(
        cluster=group.cluster,
        broker_name=group.name,
        broker_addrs=addresses,
        zone_name=group.zone,
        enable_acting_master=group.enable_acting_master,
    )


def _with_acting_master(group: Group, addresses: dict[int, str]) -> dict[int, str]:
    if not addresses or MASTER_ID in addresses or not group.enable_acting_master:
        return addresses
    acting, *others = addresses.items()
    return {MASTER_ID: acting[1], **dict(others)}


async def cluster_info(registry: Registry) -> ClusterInfo:
    """Return all groups, and the names of the groups of each cluster."""
    slices = Slices()
    info = ClusterInfo()
    async with registry.lock:
        async for name, group in slices.each(registry.groups.items()):
            info.broker_addr_table[name] = _broker_data(group, None, False)
        async for cluster, names in slices.each(registry.clusters.items()):
            info.cluster_addr_table[cluster] = list(names)
    return info
