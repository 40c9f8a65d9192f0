"""Which brokers are alive, by their heartbeats and connections; each controller has its own view.

Nothing here is stored: brokers send heartbeats to every controller, so a controller that becomes
active knows them. A wrong view delays an election or makes one too many; it cannot elect a broker
that lacks confirmed messages, because only members of the in-sync set are elected.

Source: DefaultBrokerHeartbeatManager, RocketMQ 5.3. Other than there, a heartbeat over a new
connection replaces the old connection, whose end then removes nothing. After a cut of the network,
TCP may deliver late heartbeats over the old one, and its end; they count no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from cometmq.controller.broker_set import Candidate
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import BrokerHeartbeatRequest

BROKERS_MAX: Final = 10_000
TIMEOUT_MS: Final = 10_000
"""The time-out of a heartbeat that states none."""
TIMEOUT_MS_MIN, TIMEOUT_MS_MAX = 100, 3_600_000


class LiveBroker(msgspec.Struct):
    """What the heartbeats of one broker said."""

    cluster: str
    name: str
    id: int
    address: str
    connection: object
    seen_ms: int
    timeout_ms: int
    candidate: Candidate
    replaced: set[object] = msgspec.field(default_factory=set)
    """Its older connections that are still open."""


class LiveBrokers:
    """The living brokers.

    Args:
        now_ms: returns the time of a monotonic clock.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._brokers: dict[str, dict[int, LiveBroker]] = {}
        self._count = 0

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
        known = self._brokers.get(header.broker_name, {}).get(header.broker_id)
        if known is None:
            if self._count >= BROKERS_MAX:
                raise ResponseError(
                    ResponseCode.CONTROLLER_INVALID_REQUEST,
                    f"{BROKERS_MAX} brokers are alive, no further one is accepted",
                )
            self._count += 1
            self._brokers.setdefault(header.broker_name, {})[header.broker_id] = LiveBroker(
                cluster=header.cluster_name,
                name=header.broker_name,
                id=header.broker_id,
                address=header.broker_addr,
                connection=connection,
                seen_ms=self._now_ms(),
                timeout_ms=timeout_ms,
                candidate=Candidate(epoch, max_offset, priority),
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
        known.candidate = Candidate(epoch, max_offset, priority)
        return not was_alive

    def is_alive(self, name: str, id_: int) -> bool:
        """Return whether the last heartbeat of a broker is not older than its time-out."""
        broker = self._brokers.get(name, {}).get(id_)
        return broker is not None and self._is_alive(broker)

    def living(self, name: str) -> dict[int, LiveBroker]:
        """Return the living brokers of a set by their ids."""
        brokers = self._brokers.get(name, {})
        return {id_: broker for id_, broker in brokers.items() if self._is_alive(broker)}

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
            del members[broker.id]
            self._count -= 1
            if not members:
                del self._brokers[broker.name]
        return removed
