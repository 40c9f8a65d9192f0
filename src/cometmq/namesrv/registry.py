"""The tables of a name server, topics, groups and live brokers, and the rules of their changes.

Every decision depends only on the tables and the arguments, the time included; nothing here waits,
sends or closes. The results name what the caller has to send or close.

    topics    topic → broker name → row (queue counts, permission)
    groups    broker name → cluster, broker id → address (0 is the master)
    live      (cluster, address) → last heartbeat, version of its topics, its connection

When the last address of a group is removed, its name is removed from its cluster and its rows from
all topics; a topic without rows is removed. Times are milliseconds of a monotonic clock.

Source: RouteInfoManager, RocketMQ 5.3. Brokers of 4.9 follow the same rules; they do
not send the fields that 5.x added.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from cometmq.model.topic import Perm, TopicConfig
from cometmq.protocol.bodies import DataVersion, QueueData, TopicQueueMappingInfo

MASTER_ID = 0


class BrokerKey(NamedTuple):
    """Identifies a registered broker: its id can change, its address cannot."""

    cluster: str
    address: str


class Registration(msgspec.Struct, frozen=True):
    """The registration of a broker, checked and decoded."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    version: DataVersion
    """Version of its table of topics."""
    topics: Mapping[str, TopicConfig]
    filter_servers: tuple[str, ...] | None = None
    """Addresses of its filter servers; None leaves them unchanged."""
    expiry_ms: int = 120_000
    """How long it may be silent."""
    enable_acting_master: bool | None = None
    """Whether a slave may act as the master; None from older brokers."""
    zone: str | None = None
    mappings: Mapping[str, TopicQueueMappingInfo] = msgspec.field(default_factory=dict)
    """Static topics: topic → where its logical queues are, from the broker's registration."""

    @property
    def key(self) -> BrokerKey:
        """Identifies the broker."""
        return BrokerKey(self.cluster, self.address)


class Group(msgspec.Struct):
    """The brokers of one name: a master and its slaves."""

    cluster: str
    name: str
    addresses: dict[int, str] = msgspec.field(default_factory=dict)
    zone: str | None = None
    enable_acting_master: bool = False

    @property
    def smallest_id(self) -> int | None:
        """The smallest id that has an address."""
        return min(self.addresses, default=None)


class Live(msgspec.Struct, frozen=True):
    """A broker that sends heartbeats."""

    broker_name: str
    heard_ms: int
    expiry_ms: int
    version: DataVersion
    ha_address: str
    connection: Hashable
    """Identifies the connection that it registered over."""


class MinIdNotice(msgspec.Struct, frozen=True):
    """The smallest id of a group changed: the brokers to notify, and the content."""

    targets: tuple[str, ...]
    min_id: int
    min_address: str
    offline_address: str | None
    ha_address: str | None


class Registered(msgspec.Struct, frozen=True):
    """The result of a registration."""

    accepted: bool
    """False when another broker holds the id with a newer state: nothing was changed."""
    master_address: str | None = None
    ha_address: str | None = None
    notice: MinIdNotice | None = None


class Expired(msgspec.Struct, frozen=True):
    """A broker that was silent for too long."""

    key: BrokerKey
    connection: Hashable
    notice: MinIdNotice | None


class IncrementFirstError(Exception):
    """A single topic arrived from a broker that has not registered its whole table."""


class Registry:
    """The tables, changed by requests of brokers and tools.

    Reading them is free to all; only the methods change them.
    """

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, QueueData]] = {}
        self.groups: dict[str, Group] = {}
        self.clusters: dict[str, dict[str, None]] = {}
        self.live: dict[BrokerKey, Live] = {}
        self.filter_servers: dict[BrokerKey, tuple[str, ...]] = {}
        self.mappings: dict[str, dict[str, TopicQueueMappingInfo]] = {}

    # --- registration ---------------------------------------------------------------------------

    def register(
        self,
        registration: Registration,
        connection: Hashable,
        now_ms: int,
        *,
        deletes_absent_topics: bool = False,
    ) -> Registered:
        """Add or renew a registration.

        Args:
            registration: the registration.
            connection: identifies its connection.
            now_ms: the time now.
            deletes_absent_topics: remove the broker's rows of topics that are not registered.

        Raises:
            IncrementFirstError: the broker is unknown and names exactly one topic; nothing was
                changed.
        """
        group = self.groups.get(registration.broker_name)
        if group is not None and self._is_outdated(group, registration):
            self.live.pop(registration.key, None)
            return Registered(accepted=False)
        is_first = group is None or registration.broker_id not in group.addresses
        if is_first and len(registration.topics) == 1:
            raise IncrementFirstError
        group, smallest_before = self._join(registration)
        self._take_topics(group, registration, is_first, deletes_absent_topics)
        self._take_filter_servers(registration)
        self.live[registration.key] = Live(
            registration.broker_name,
            now_ms,
            registration.expiry_ms,
            registration.version,
            registration.ha_address,
            connection,
        )
        master_address, ha_address = self._master_of(group, registration)
        notice = None
        if smallest_before is not None and registration.broker_id < smallest_before:
            notice = _notice(group, None, registration.ha_address)
        return Registered(True, master_address, ha_address, notice)

    def _is_outdated(self, group: Group, registration: Registration) -> bool:
        """Whether another address holds the same id with a newer state."""
        holder = group.addresses.get(registration.broker_id)
        if holder is None or holder == registration.address:
            return False
        known = self.live.get(BrokerKey(registration.cluster, holder))
        return known is not None and (
            known.version.state_version > registration.version.state_version
        )

    def _join(self, registration: Registration) -> tuple[Group, int | None]:
        """Put the address under its id; return the group and its smallest id of before."""
        name = registration.broker_name
        group = self.groups.setdefault(name, Group(registration.cluster, name))
        self.clusters.setdefault(registration.cluster, {})[name] = None
        smallest_before = group.smallest_id
        group.enable_acting_master = bool(registration.enable_acting_master)
        group.zone = registration.zone
        for broker_id, address in list(group.addresses.items()):
            if address == registration.address and broker_id != registration.broker_id:
                del group.addresses[broker_id]
        group.addresses[registration.broker_id] = registration.address
        return group, smallest_before

    def _take_topics(
        self, group: Group, registration: Registration, is_first: bool, deletes_absent: bool
    ) -> None:
        is_master = registration.broker_id == MASTER_ID
        is_prime_slave = (
            registration.enable_acting_master is not None
            and not is_master
            and registration.broker_id == group.smallest_id
        )
        if not (is_master or is_prime_slave):
            return
        read_only = is_prime_slave and bool(registration.enable_acting_master)
        is_new = is_first or self.has_changed(registration.key, registration.version)
        if deletes_absent and len(registration.topics) > 1 and not registration.mappings:
            self._delete_absent_topics(registration)
        for topic, config in registration.topics.items():
            rows = self.topics.setdefault(topic, {})
            if is_new or registration.broker_name not in rows:
                rows[registration.broker_name] = _row(config, registration.broker_name, read_only)
        if is_new:
            for topic, mapping in registration.mappings.items():
                self.mappings.setdefault(topic, {})[registration.broker_name] = mapping

    def _delete_absent_topics(self, registration: Registration) -> None:
        for topic in [name for name in self.topics if name not in registration.topics]:
            self._delete_row(topic, registration.broker_name)

    def _take_filter_servers(self, registration: Registration) -> None:
        if registration.filter_servers:
            self.filter_servers[registration.key] = registration.filter_servers
        elif registration.filter_servers is not None:
            self.filter_servers.pop(registration.key, None)

    def _master_of(
        self, group: Group, registration: Registration
    ) -> tuple[str, str] | tuple[None, None]:
        """Addresses of the master of a slave, while the master is registered."""
        master = group.addresses.get(MASTER_ID)
        if registration.broker_id == MASTER_ID or master is None:
            return None, None
        live = self.live.get(BrokerKey(registration.cluster, master))
        return (master, live.ha_address) if live is not None else (None, None)

    # --- heartbeats ------------------------------------------------------------------------------

    def has_changed(self, key: BrokerKey, version: DataVersion) -> bool:
        """Return whether ``version`` differs from what the broker registered last, if it did."""
        live = self.live.get(key)
        return live is None or live.version != version

    def touch(self, key: BrokerKey, now_ms: int) -> None:
        """Count a heartbeat of a broker; a broker that is not registered stays unknown."""
        live = self.live.get(key)
        if live is not None:
            self.live[key] = msgspec.structs.replace(live, heard_ms=now_ms)

    # --- removal ---------------------------------------------------------------------------------

    def unregister(self, key: BrokerKey, broker_name: str) -> MinIdNotice | None:
        """Remove a broker: its address under any id, and its group if it was the last."""
        self.live.pop(key, None)
        self.filter_servers.pop(key, None)
        group = self.groups.get(broker_name)
        if group is None or group.cluster != key.cluster:
            return None
        smallest_before = group.smallest_id
        had_master = MASTER_ID in group.addresses
        for broker_id, address in list(group.addresses.items()):
            if address == key.address:
                del group.addresses[broker_id]
        if not group.addresses:
            self._drop_group(group)
            return None
        if had_master and MASTER_ID not in group.addresses and group.enable_acting_master:
            self._change_perm(broker_name, lambda perm: perm & ~Perm.WRITE)
        return self._notice_of_loss(group, key, smallest_before)

    def _notice_of_loss(
        self, group: Group, key: BrokerKey, smallest_before: int | None
    ) -> MinIdNotice | None:
        smallest = group.smallest_id
        if smallest is None or smallest == smallest_before:
            return None
        live = self.live.get(BrokerKey(group.cluster, group.addresses[smallest]))
        return _notice(group, key.address, live.ha_address if live else None)

    def disconnected(self, connection: Hashable) -> list[MinIdNotice]:
        """Remove the brokers that registered over a connection that is closed."""
        gone = [(k, live) for k, live in self.live.items() if live.connection is connection]
        notices = [self.unregister(key, live.broker_name) for key, live in gone]
        return [notice for notice in notices if notice is not None]

    def expire(self, now_ms: int) -> list[Expired]:
        """Remove the brokers that were silent for too long."""
        silent = [(k, b) for k, b in self.live.items() if b.heard_ms + b.expiry_ms < now_ms]
        return [
            Expired(key, live.connection, self.unregister(key, live.broker_name))
            for key, live in silent
        ]

    def _drop_group(self, group: Group) -> None:
        del self.groups[group.name]
        names = self.clusters.get(group.cluster, {})
        names.pop(group.name, None)
        if not names:
            self.clusters.pop(group.cluster, None)
        for topic in list(self.topics):
            self._delete_row(topic, group.name)

    # --- reading ---------------------------------------------------------------------------------

    def members(self, cluster: str, broker_name: str) -> dict[int, str] | None:
        """Return broker id → address of one group of one cluster, or None."""
        group = self.groups.get(broker_name)
        if group is None or group.cluster != cluster:
            return None
        return dict(sorted(group.addresses.items()))

    # --- topics ----------------------------------------------------------------------------------

    def wipe_write_perm(self, broker_name: str) -> int:
        """Take the write bit from all rows of a broker; return how many rows it has."""
        return self._change_perm(broker_name, lambda perm: perm & ~Perm.WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Make all rows of a broker readable and writable; return how many rows it has."""
        return self._change_perm(broker_name, lambda _: Perm.READ | Perm.WRITE)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic, or only its rows of one cluster's brokers."""
        if cluster is None:
            self.topics.pop(topic, None)
            self.mappings.pop(topic, None)
            return
        for broker_name in list(self.clusters.get(cluster, {})):
            self._delete_row(topic, broker_name)

    def register_topic(self, topic: str, rows: Iterable[QueueData]) -> bool:
        """Put rows of a topic; return False, with nothing done, when a broker is unknown."""
        rows = list(rows)
        if not rows or any(row.broker_name not in self.groups for row in rows):
            return False
        table = self.topics.setdefault(topic, {})
        table.update({row.broker_name: row for row in rows})
        return True

    def _change_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for rows in self.topics.values():
            row = rows.get(broker_name)
            if row is not None:
                rows[broker_name] = msgspec.structs.replace(row, perm=change(row.perm))
                count += 1
        return count

    def _delete_row(self, topic: str, broker_name: str) -> None:
        _delete(self.topics, topic, broker_name)
        _delete(self.mappings, topic, broker_name)


def _delete(table: dict[str, dict[str, Any]], topic: str, broker_name: str) -> None:
    rows = table.get(topic, {})
    if rows.pop(broker_name, None) is not None and not rows:
        del table[topic]


def _row(config: TopicConfig, broker_name: str, read_only: bool) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm & ~Perm.WRITE if read_only else config.perm,
        topic_sys_flag=config.topic_sys_flag,
    )


def _notice(group: Group, offline: str | None, ha_address: str | None) -> MinIdNotice | None:
    smallest = group.smallest_id
    assert smallest is not None
    tells_all = offline is not None or len(group.addresses) == 1
    targets = tuple(a for i, a in group.addresses.items() if tells_all or i != smallest)
    if not targets:
        return None
    return MinIdNotice(targets, smallest, group.addresses[smallest], offline, ha_address)
