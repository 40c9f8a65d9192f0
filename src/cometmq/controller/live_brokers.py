"""The living brokers, by their heartbeats and connections; each controller has its own view.

Nothing here is stored: brokers send heartbeats to every controller, so a controller that becomes
active knows them. A wrong view delays an election or makes one too many; it cannot elect a broker
that lacks confirmed messages, because only members of the in-sync set are elected.

Two processes may send heartbeats for one id, if a store was copied. Each has an entry of its own,
and only that of the process that holds the id in etcd counts. The largest epochs and the largest
confirm offset of each broker set are kept when brokers are lost: etcd may know less, and a store
may have less. Epochs count as heard, too, when this controller reads or writes them: no heartbeat
may have said them yet when etcd gets an older backup.

Source: DefaultBrokerHeartbeatManager, RocketMQ 5.3. Other than there, a heartbeat over a new
connection replaces the old connection, whose end then removes nothing. After a cut of the network,
TCP may deliver late heartbeats over the old one, and its end; they count no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from cometmq.controller.broker_set import NO_ID, BrokerSet, Candidate, Heard
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.namesrv import BrokerHeartbeatRequest

BROKERS_MAX: Final = 10_000
SETS_MAX: Final = 16
"""Broker sets of one name of which the largest numbers are kept."""
TIMEOUT_MS: Final = 10_000
"""The time-out of a heartbeat that states none."""
TIMEOUT_MS_MIN, TIMEOUT_MS_MAX = 100, 3_600_000


class LiveBroker(msgspec.Struct):
    """A broker that sends heartbeats, as they describe it."""

    cluster: str
    name: str
    id: int
    address: str
    connection: object
    seen_ms: int
    timeout_ms: int
    candidate: Candidate
    incarnation: str = ""
    """Its process; empty for RocketMQ's."""
    needed_to: int = 0
    """The confirmed offset that the controller knew when this heartbeat came."""
    replaced: set[object] = msgspec.field(default_factory=set)
    """Its older connections that are still open."""


class LiveBrokers:
    """The living brokers.

    Args:
        now_ms: returns the time of a monotonic clock.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._brokers: dict[str, dict[tuple[int, str], LiveBroker]] = {}
        """By the name, and by id and incarnation."""
        self._count = 0
        self._heard: dict[str, dict[str, Heard]] = {}
        """By the name, and by the id of the set."""

    def heartbeat(self, header: BrokerHeartbeatRequest, connection: object) -> bool:
        """Note a heartbeat, and return whether the broker was not alive before.

        Raises:
            ResponseError: 2005; the id is missing, or there are too many brokers.
        """
        if header.broker_id is None:
            raise ResponseError(
                ResponseCode.CONTROLLER_INVALID_REQUEST, "Heart beat with empty brokerId"
            )
        timeout_ms = header.heartbeat_timeout_mills or TIMEOUT_MS
        timeout_ms = min(max(timeout_ms, TIMEOUT_MS_MIN), TIMEOUT_MS_MAX)
        priority = 2**31 - 1 if header.election_priority is None else header.election_priority
        epoch = -1 if header.epoch is None else header.epoch
        max_offset = -1 if header.max_offset is None else header.max_offset
        incarnation = header.incarnation or ""
        key = header.broker_id, incarnation
        confirmed_to = self._hear(header).confirmed_to if incarnation else 0
        known = self._brokers.get(header.broker_name, {}).get(key)
        if known is None:
            if self._count >= BROKERS_MAX:
                raise ResponseError(
                    ResponseCode.CONTROLLER_INVALID_REQUEST,
                    f"{BROKERS_MAX} brokers are alive, no further one is accepted",
                )
            self._count += 1
            self._brokers.setdefault(header.broker_name, {})[key] = LiveBroker(
                cluster=header.cluster_name,
                name=header.broker_name,
                id=header.broker_id,
                address=header.broker_addr,
                connection=connection,
                seen_ms=self._now_ms(),
                timeout_ms=timeout_ms,
                candidate=Candidate(epoch, max_offset, priority, confirmed_to),
                incarnation=incarnation,
                needed_to=confirmed_to,
            )
            return True
        if connection in known.replaced:
            return False
        was_alive = self._is_alive(known)
        old = known.candidate
        if (epoch, max_offset) < (old.epoch, old.max_offset):
            epoch, max_offset = old.epoch, old.max_offset
        known.address = header.broker_addr
        if known.connection is not connection:
            known.replaced.add(known.connection)
            known.connection = connection
        known.seen_ms = self._now_ms()
        known.timeout_ms = timeout_ms
        # A broker sends a heartbeat after the response to the last one: so a member of the in-sync
        # set has, with this one, at least what was confirmed then.
        known.candidate = Candidate(epoch, max_offset, priority, known.needed_to)
        known.needed_to = confirmed_to
        return not was_alive

    def _hear(self, header: BrokerHeartbeatRequest) -> Heard:
        """Keep the largest numbers of a broker set; return them."""
        name, set_id = header.broker_name, header.set_id or ""
        heard = self._heard.get(name, {}).get(set_id, Heard())
        epochs = header.known_master_epoch or 0, header.known_sync_state_set_epoch or 0
        if epochs > heard.epochs:
            heard = msgspec.structs.replace(heard, epochs=epochs, by=header.broker_id or 0)
        confirmed_to = header.confirmed_to or 0
        if confirmed_to > heard.confirmed_to and epochs[0] >= heard.counts_from:
            heard = msgspec.structs.replace(heard, confirmed_to=confirmed_to)
        return self._keep(name, set_id, heard)

    def note(self, known: BrokerSet) -> None:
        """Note the epochs of a broker set that was read from etcd, or written.

        Its master has all that was acknowledged with them. Without a master, the one before has it,
        or else any member of the in-sync set.
        """
        heard = self._heard.get(known.name, {}).get(known.set_id, Heard())
        if known.epochs > heard.epochs:
            by = heard.by if known.master_id is None else known.master_id
            by = min(known.in_sync, default=NO_ID) if by == NO_ID else by
            heard = msgspec.structs.replace(heard, epochs=known.epochs, by=by)
            self._keep(known.name, known.set_id, heard)

    def _keep(self, name: str, set_id: str, heard: Heard) -> Heard:
        """Keep numbers, if the set has an id and a table has room; return the kept ones."""
        sets = self._heard.get(name, {})
        is_full = len(self._heard) >= BROKERS_MAX if not sets else len(sets) >= SETS_MAX
        if not set_id or (set_id not in sets and is_full):
            return Heard()
        self._heard.setdefault(name, {})[set_id] = heard
        return heard

    def heard(self, name: str) -> dict[str, Heard]:
        """Return the largest numbers that are known of a name, by the id of the set."""
        return dict(self._heard.get(name, {}))

    def all_heard(self) -> dict[str, dict[str, Heard]]:
        """Return the largest numbers that are known of each name, by the id of the set."""
        return {name: dict(sets) for name, sets in self._heard.items()}

    def lost_confirmed(self, elected: BrokerSet, log_end: int) -> None:
        """Note that an election has lost confirmed messages: its master's log counts from now on.

        Args:
            elected: the set with its new master.
            log_end: where the log of that master ends.
        """
        sets = self._heard.get(elected.name, {})
        if elected.set_id in sets:
            sets[elected.set_id] = msgspec.structs.replace(
                sets[elected.set_id], confirmed_to=log_end, counts_from=elected.master_epoch
            )
        for broker in self._brokers.get(elected.name, {}).values():
            broker.needed_to = min(broker.needed_to, log_end)
            needed_to = min(broker.candidate.needed_to, log_end)
            broker.candidate = msgspec.structs.replace(broker.candidate, needed_to=needed_to)

    def joined(self, known: BrokerSet, ids: Iterable[int]) -> None:
        """Note that brokers have become members of the in-sync set: they have what is confirmed.

        Their last heartbeats are from before that.
        """
        for id_ in ids:
            broker = self.living(known).get(id_)
            if broker is not None:
                broker.needed_to = 0
                broker.candidate = msgspec.structs.replace(broker.candidate, needed_to=0)

    def find(self, name: str, id_: int, incarnation: str = "") -> LiveBroker | None:
        """Return a living broker.

        Args:
            name: of its set.
            id_: of the broker.
            incarnation: its process; empty for any.
        """
        found = [
            broker
            for (of, _), broker in self._brokers.get(name, {}).items()
            if of == id_ and incarnation in ("", broker.incarnation) and self._is_alive(broker)
        ]
        return max(found, key=lambda broker: broker.seen_ms, default=None)

    def is_alive(self, name: str, id_: int, incarnation: str = "") -> bool:
        """Return whether the last heartbeat of a broker is not older than its time-out."""
        return self.find(name, id_, incarnation) is not None

    def is_holder_alive(self, known: BrokerSet, id_: int) -> bool:
        """Return whether the process that holds an id of a set is alive."""
        replica = known.replicas.get(id_)
        return self.is_alive(known.name, id_, "" if replica is None else replica.incarnation)

    def is_master_alive(self, known: BrokerSet) -> bool:
        """Return whether the process that was elected is alive."""
        return (
            known.master_id is not None
            and known.master_incarnation in ("", known.replicas[known.master_id].incarnation)
            and self.is_holder_alive(known, known.master_id)
        )

    def living(self, known: BrokerSet) -> dict[int, LiveBroker]:
        """Return the living brokers of a set by their ids: the processes that hold these."""
        found = {
            id_: self.find(known.name, id_, replica.incarnation)
            for id_, replica in known.replicas.items()
        }
        return {id_: broker for id_, broker in found.items() if broker is not None}

    def counts(self) -> Counter[tuple[str, str]]:
        """Return the numbers of living brokers by cluster and name."""
        return Counter((one.cluster, one.name) for one in self._all() if self._is_alive(one))

    def expire(self) -> list[LiveBroker]:
        """Remove the brokers that are silent, and return them."""
        return self._remove([broker for broker in self._all() if not self._is_alive(broker)])

    def connection_closed(self, connection: object) -> list[LiveBroker]:
        """Remove the brokers whose last heartbeat came over a connection, and return them."""
        for broker in self._all():
            broker.replaced.discard(connection)
        return self._remove([broker for broker in self._all() if broker.connection is connection])

    def _all(self) -> Iterator[LiveBroker]:
        for members in self._brokers.values():
            yield from members.values()

    def _is_alive(self, broker: LiveBroker) -> bool:
        return broker.seen_ms + broker.timeout_ms >= self._now_ms()

    def _remove(self, removed: list[LiveBroker]) -> list[LiveBroker]:
        for broker in removed:
            members = self._brokers[broker.name]
            del members[broker.id, broker.incarnation]
            self._count -= 1
            if not members:
                del self._brokers[broker.name]
        return removed
