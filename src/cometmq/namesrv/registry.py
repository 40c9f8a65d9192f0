"""The tables of a name server, topics, groups and live brokers, and the rules of their changes.

Every decision depends only on the tables and the arguments, the time included; nothing here sends
or closes. The results say what the caller has to send or close.

    topics    topic → broker name → row (queue counts, permission)
    groups    broker name → cluster, broker id → address (0 is the master)
    live      (cluster, address) → last heartbeat, version of its topics, its connection

When the last address of a group is removed, its name is removed from its cluster and its rows from
all topics; a topic without rows is removed. Times are milliseconds of a monotonic clock.

A change of very many rows runs in slices, and one change at a time, in the order of the requests.
A row counts only while its group is in ``groups``. A broker that registers for the first time joins
its group after all its rows are there. A broker that leaves is removed from its group before its
rows. So a route shows a first registration as a whole or not at all. A later registration replaces
its rows one by one.

Source: RouteInfoManager, RocketMQ 5.3. Brokers of 4.9 follow the same rules; they do
not send the fields that 5.x added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from cometmq.model.topic import Perm, TopicConfig
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.bodies.route import QueueData, TopicQueueMappingInfo
from cometmq.remoting.slices import Slices

MASTER_ID = 0
MEMBERS_MAX = 1_000
"""Addresses of one group."""


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
    topics: dict[str, TopicConfig]
    filter_servers: tuple[str, ...] | None = None
    """Addresses of its filter servers; None leaves them unchanged."""
    expiry_ms: int = 120_000
    """The time without a heartbeat after which it is removed."""
    enable_acting_master: bool | None = None
    """Whether a slave may act as the master; None from older brokers."""
    zone: str | None = None
    mappings: Mapping[str, TopicQueueMappingInfo] = msgspec.field(default_factory=dict)
    """Static topics: topic → where its logical queues are, from the broker's registration."""
    is_part: bool = False
    """Whether the broker has further topics."""

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


class RegistrationRefusedError(Exception):
    """A registration cannot be accepted, for the reason in the text."""


class Registry:
    """The tables, changed by requests of brokers and tools.

    Any code may read the tables; only the methods change them.
    """

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, QueueData]] = {}
        """During a change it may have rows of groups that have left or are about to join."""
        self.groups: dict[str, Group] = {}
        self.clusters: dict[str, dict[str, None]] = {}
        self.live: dict[BrokerKey, Live] = {}
        self.filter_servers: dict[BrokerKey, tuple[str, ...]] = {}
        self.mappings: dict[str, dict[str, TopicQueueMappingInfo]] = {}
        """The queues of static topics, by topic and broker. They stay while any broker has the
        topic: the queues of a broker that is away are still queues of the topic."""
        self._mapped_of: dict[str, set[str]] = {}
        """The topics of each broker that has rows in `mappings`."""
        self._topics_of: dict[str, set[str]] = {}
        """The topics of each broker that has rows in `topics`."""
        self._registered: dict[Hashable, set[BrokerKey]] = {}
        """The keys in `live` of each connection."""
        self.lock = asyncio.Lock()
        """Held during each change, and by requests that read many rows in slices."""

    # --- registration ---------------------------------------------------------------------------

    async def register(
        self,
        registration: Registration,
        connection: Hashable,
        now_ms: int,
        *,
        deletes_absent_topics: bool = False,
        is_closed: Callable[[], bool] = lambda: False,
    ) -> Registered:
        """Add or renew a registration.

        Args:
            registration: the registration.
            connection: identifies its connection.
            now_ms: the time now.
            deletes_absent_topics: remove the broker's rows of topics that are not registered.
            is_closed: whether the connection is closed, once the changes before are made.

        Raises:
            IncrementFirstError: the broker is unknown and names exactly one topic; nothing was
                changed.
            RegistrationRefusedError: the connection is closed, or the group has too many members;
                nothing was changed.
        """
        async with self.lock:
            if is_closed():
                raise RegistrationRefusedError("the connection is closed")
            group = self.groups.get(registration.broker_name)
            if group is not None and self._is_outdated(group, registration):
                self._remove_live(registration.key)
                return Registered(accepted=False)
            is_first = group is None or registration.broker_id not in group.addresses
            if is_first and len(registration.topics) == 1:
                raise IncrementFirstError
            if is_first and group is not None and len(group.addresses) >= MEMBERS_MAX:
                raise RegistrationRefusedError(
                    f"broker {group.name} has {MEMBERS_MAX} addresses, which is the limit"
                )
            if group is None:
                group = Group(registration.cluster, registration.broker_name)
            await self._update_topics(group, registration, is_first, deletes_absent_topics)
            return self._join(group, registration, connection, now_ms)

    def _join(
        self, group: Group, registration: Registration, connection: Hashable, now_ms: int
    ) -> Registered:
        """Make a registration visible in routes: its rows are in the tables."""
        smallest_before = group.smallest_id
        self.groups[group.name] = group
        self.clusters.setdefault(registration.cluster, {})[group.name] = None
        group.enable_acting_master = bool(registration.enable_acting_master)
        group.zone = registration.zone
        group.addresses = _with_address(group, registration)
        self._update_filter_servers(registration)
        self._remove_live(registration.key)
        self.live[registration.key] = Live(
            registration.broker_name,
            now_ms,
            registration.expiry_ms,
            registration.version,
            registration.ha_address,
            connection,
        )
        self._registered.setdefault(connection, set()).add(registration.key)
        master_address, ha_address = self._master_of(group, registration)
        notice = None
        if smallest_before is not None and registration.broker_id < smallest_before:
            notice = _notice(group, None, registration.ha_address)
        return Registered(True, master_address, ha_address, notice)

    def _remove_live(self, key: BrokerKey) -> None:
        live = self.live.pop(key, None)
        if live is None:
            return
        keys = self._registered[live.connection]
        keys.discard(key)
        if not keys:
            del self._registered[live.connection]

    def _is_outdated(self, group: Group, registration: Registration) -> bool:
        """Whether another address holds the same id with a newer state."""
        holder = group.addresses.get(registration.broker_id)
        if holder is None or holder == registration.address:
            return False
        known = self.live.get(BrokerKey(registration.cluster, holder))
        return known is not None and (
            known.version.state_version > registration.version.state_version
        )

    async def _update_topics(
        self, group: Group, registration: Registration, is_first: bool, deletes_absent: bool
    ) -> None:
        name = registration.broker_name
        is_master = registration.broker_id == MASTER_ID
        is_smallest_slave = (
            registration.enable_acting_master is not None
            and not is_master
            and registration.broker_id == min(_with_address(group, registration))
        )
        if not (is_master or is_smallest_slave):
            return
        read_only = is_smallest_slave and bool(registration.enable_acting_master)
        is_new = is_first or self.has_changed(registration.key, registration.version)
        slices = Slices()
        if deletes_absent and len(registration.topics) > 1 and not registration.mappings:
            async for topic in slices.each(self._topics_with(name)):
                if topic not in registration.topics:
                    self._delete_row(topic, name)
        async for topic, config in slices.each(registration.topics.items()):
            if is_new or name not in self.topics.get(topic, ()):
                self._put_row(topic, _row(config, name, read_only))
        if is_new:
            await self._update_mappings(registration, slices)

    async def _update_mappings(self, registration: Registration, slices: Slices) -> None:
        """Take over the queues of static topics, and forget topics that are static no more."""
        name, mappings = registration.broker_name, registration.mappings
        known = self._mapped_of.get(name, ())
        if registration.is_part or len(registration.topics) == 1:
            gone = [topic for topic in known if topic in registration.topics]
        else:
            gone = list(known)
        async for topic in slices.each(gone):
            if topic not in mappings:
                self._delete_mapping(topic, name)
        async for topic, mapping in slices.each(mappings.items()):
            if topic not in self.topics:
                continue
            if len(self.mappings.get(topic, ())) >= MEMBERS_MAX:
                self._forget_absent(topic)
            self.mappings.setdefault(topic, {})[name] = mapping
            self._mapped_of.setdefault(name, set()).add(topic)

    def _forget_absent(self, topic: str) -> None:
        """Forget the queues of a static topic at brokers that are not registered."""
        for name in [name for name in self.mappings.get(topic, ()) if name not in self.groups]:
            self._delete_mapping(topic, name)

    def _delete_mapping(self, topic: str, broker_name: str) -> None:
        _delete(self.mappings, topic, broker_name)
        _discard(self._mapped_of, broker_name, topic)

    def _update_filter_servers(self, registration: Registration) -> None:
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

    async def unregister(self, key: BrokerKey, broker_name: str) -> MinIdNotice | None:
        """Remove a broker: its address under any id, and its group if it was the last."""
        async with self.lock:
            return await self._unregister(key, broker_name, Slices())

    async def _unregister(
        self, key: BrokerKey, broker_name: str, slices: Slices
    ) -> MinIdNotice | None:
        self._remove_live(key)
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
            await self._drop_group(group, slices)
            return None
        if had_master and MASTER_ID not in group.addresses and group.enable_acting_master:
            await self._change_perm(broker_name, lambda perm: perm & ~Perm.WRITE, slices)
        return self._notice_of_loss(group, key, smallest_before)

    def _notice_of_loss(
        self, group: Group, key: BrokerKey, smallest_before: int | None
    ) -> MinIdNotice | None:
        smallest = group.smallest_id
        if smallest is None or smallest == smallest_before:
            return None
        return _notice(group, key.address, None)

    def has_registered(self, connection: Hashable) -> bool:
        """Return whether a broker is registered over a connection."""
        return connection in self._registered

    async def disconnected(self, connection: Hashable) -> list[MinIdNotice]:
        """Remove the brokers that registered over a connection that is closed."""
        notices = []
        async with self.lock:
            slices = Slices()
            async for key in slices.each(list(self._registered.get(connection, ()))):
                name = self.live[key].broker_name
                notices.append(await self._unregister(key, name, slices))
        return [notice for notice in notices if notice is not None]

    async def expire(self, now_ms: Callable[[], int]) -> list[Expired]:
        """Remove the brokers that were silent for too long."""
        expired = []
        slices = Slices()
        async for key in slices.each(list(self.live)):
            if not self._is_silent(key, now_ms()):
                continue
            async with self.lock:
                if self._is_silent(key, now_ms()):  # still
                    live = self.live[key]
                    notice = await self._unregister(key, live.broker_name, slices)
                    expired.append(Expired(key, live.connection, notice))
        return expired

    def _is_silent(self, key: BrokerKey, now_ms: int) -> bool:
        live = self.live.get(key)
        return live is not None and live.heard_ms + live.expiry_ms < now_ms

    async def _drop_group(self, group: Group, slices: Slices) -> None:
        del self.groups[group.name]
        names = self.clusters.get(group.cluster, {})
        names.pop(group.name, None)
        if not names:
            self.clusters.pop(group.cluster, None)
        async for topic in slices.each(self._topics_with(group.name)):
            self._delete_row(topic, group.name)

    # --- reading ---------------------------------------------------------------------------------

    def members(self, cluster: str, broker_name: str) -> dict[int, str] | None:
        """Return broker id → address of one group, or None; an empty ``cluster`` stands for any."""
        group = self.groups.get(broker_name)
        if group is None or cluster not in ("", group.cluster):
            return None
        return dict(sorted(group.addresses.items()))

    # --- topics ----------------------------------------------------------------------------------

    async def wipe_write_perm(self, broker_name: str) -> int:
        """Remove the write bit from all rows of a broker; return how many rows it has."""
        async with self.lock:
            return await self._change_perm(broker_name, lambda perm: perm & ~Perm.WRITE, Slices())

    async def add_write_perm(self, broker_name: str) -> int:
        """Make all rows of a broker readable and writable; return how many rows it has."""
        async with self.lock:
            return await self._change_perm(broker_name, lambda _: Perm.READ | Perm.WRITE, Slices())

    async def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic, or only its rows of one cluster's brokers."""
        async with self.lock:
            if cluster is None:
                names = list(self.topics.get(topic, ()))
                mapped = list(self.mappings.get(topic, ()))
            else:
                names = mapped = list(self.clusters.get(cluster, {}))
            slices = Slices()
            async for broker_name in slices.each(mapped):
                self._delete_mapping(topic, broker_name)
            async for broker_name in slices.each(names):
                self._delete_row(topic, broker_name)

    async def register_topic(self, topic: str, rows: Iterable[QueueData]) -> bool:
        """Put rows of a topic; return False, with nothing done, when a broker is unknown."""
        async with self.lock:
            named = {row.broker_name: row async for row in Slices().each(rows)}
            if not named or not named.keys() <= self.groups.keys():
                return False
            async for row in Slices().each(named.values()):
                self._put_row(topic, row)
            return True

    async def _change_perm(
        self, broker_name: str, change: Callable[[int], int], slices: Slices
    ) -> int:
        count = 0
        async for topic in slices.each(self._topics_with(broker_name)):
            rows = self.topics.get(topic, {})
            row = rows.get(broker_name)
            if row is not None:
                rows[broker_name] = msgspec.structs.replace(row, perm=change(row.perm))
                count += 1
        return count

    def _topics_with(self, broker_name: str) -> list[str]:
        """Return the topics in which a broker has rows."""
        return list(self._topics_of.get(broker_name, ()))

    def _put_row(self, topic: str, row: QueueData) -> None:
        self.topics.setdefault(topic, {})[row.broker_name] = row
        self._topics_of.setdefault(row.broker_name, set()).add(topic)

    def _delete_row(self, topic: str, broker_name: str) -> None:
        _delete(self.topics, topic, broker_name)
        _discard(self._topics_of, broker_name, topic)
        if topic not in self.topics:  # no broker is left that could lead a queue
            for name in list(self.mappings.get(topic, ())):
                self._delete_mapping(topic, name)


def _discard(table: dict[str, set[str]], broker_name: str, topic: str) -> None:
    topics = table.get(broker_name, set())
    topics.discard(topic)
    if not topics:
        table.pop(broker_name, None)


def _delete(table: dict[str, dict[str, Any]], topic: str, broker_name: str) -> None:
    rows = table.get(topic, {})
    if rows.pop(broker_name, None) is not None and not rows:
        del table[topic]


def _with_address(group: Group, registration: Registration) -> dict[int, str]:
    """The addresses of a group with that of a registration, which may have had another id."""
    kept = {
        broker_id: address
        for broker_id, address in group.addresses.items()
        if address != registration.address or broker_id == registration.broker_id
    }
    return kept | {registration.broker_id: registration.address}


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
    notifies_all = offline is not None or len(group.addresses) == 1
    targets = tuple(a for i, a in group.addresses.items() if notifies_all or i != smallest)
    if not targets:
        return None
    return MinIdNotice(targets, smallest, group.addresses[smallest], offline, ha_address)
