"""Routes of topics and brokers by cluster, read from the registry.

Source: RouteInfoManager and ZoneRouteRPCHook, RocketMQ 5.3.
"""

from __future__ import annotations

from cometmq.model.topic import SYNC_BROKER_MEMBER_PREFIX, Perm
from cometmq.namesrv.registry import MASTER_ID, BrokerKey, Group, Registry
from cometmq.protocol.bodies import BrokerData, ClusterInfo, QueueData, TopicRouteData


def route_of(
    registry: Registry,
    topic: str,
    *,
    order_config: str | None = None,
    shows_acting_masters: bool = False,
    zone: str | None = None,
) -> TopicRouteData | None:
    """Return the route of a topic, or None if no registered broker serves it.

    Args:
        registry: the registered brokers and their topics.
        topic: its name.
        order_config: the topic's order configuration, if routes contain it.
        shows_acting_masters: show the smallest slave as master if the group has no master and
            allows it.
        zone: leave out the brokers of other zones that have a master.
    """
    rows = registry.topics.get(topic)
    groups = [registry.groups[name] for name in rows or () if name in registry.groups]
    if not rows or not groups:
        return None
    if zone is not None:
        groups = [group for group in groups if _is_in_zone(group, zone)]
        rows = {group.name: rows[group.name] for group in groups}
    shows = shows_acting_masters and not topic.startswith(SYNC_BROKER_MEMBER_PREFIX)
    return TopicRouteData(
        order_topic_conf=order_config,
        queue_datas=list(rows.values()),
        broker_datas=[_broker_data(group, rows.get(group.name), shows) for group in groups],
        filter_server_table=_filter_servers(registry, groups),
        topic_queue_mapping_by_broker=registry.mappings.get(topic),
    )


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


def cluster_info(registry: Registry) -> ClusterInfo:
    """Return all groups, and the names of the groups of each cluster."""
    return ClusterInfo(
        broker_addr_table={
            name: _broker_data(group, None, False) for name, group in registry.groups.items()
        },
        cluster_addr_table={cluster: list(names) for cluster, names in registry.clusters.items()},
    )
