"""Makes and sends heartbeats of both versions, and remembers what each broker has received.

The timer that sends them stands in ``instance.py``.

Version 1 contains every group with its subscriptions. Version 2 adds a fingerprint of them: after a
broker has received it once, heartbeats contain the groups only, until a subscription or its version
changes or the broker responds that it has another fingerprint. Then the complete heartbeat follows
at once.

The fingerprint on the wire has no versions, as in RocketMQ: a broker compares it for the whole
group, whose members have different versions. But a broker refuses the pulls of a subscription whose
version it does not have (response code 25), so a changed version needs a complete heartbeat too.

Source: MQClientInstance.sendHeartbeatToAllBrokerV2 and HeartbeatData.computeHeartbeatFingerprint,
RocketMQ 5.3, which waits for the next heartbeat if the broker has another fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from cometmq.client._connection.broker_calls import BrokerCalls
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData
from cometmq.protocol.hashing import java_hash
from cometmq.protocol.headers.consumer import HeartbeatResponse


@dataclass(slots=True)
class Membership:
    """The entries of one producer or consumer in the heartbeat."""

    producers: list[ProducerData] = field(default_factory=list)
    consumers: list[ConsumerData] = field(default_factory=list)


class Member(Protocol):
    """A producer or a consumer of an instance."""

    @property
    def group(self) -> str:
        """The member's group."""

    def membership(self) -> Membership:
        """Return the entries of this member in the heartbeat."""


def merge_heartbeat(client_id: str, members: Iterable[Membership]) -> HeartbeatData:
    """Make the heartbeat of all members of a client, each producer group once."""
    parts = list(members)
    producers = {data.group_name: data for part in parts for data in part.producers}
    return HeartbeatData(
        client_id=client_id,
        producer_data_set=list(producers.values()),
        consumer_data_set=[data for part in parts for data in part.consumers],
    )


def without_subscriptions(data: HeartbeatData) -> HeartbeatData:
    """Return a heartbeat with its groups and without their subscriptions."""
    replace = msgspec.structs.replace
    consumers = [replace(group, subscription_data_set=[]) for group in data.consumer_data_set]
    return replace(data, consumer_data_set=consumers, without_sub=True)


def fingerprint(data: HeartbeatData) -> int:
    """Return a hash of a heartbeat, without the client id and the subscriptions' versions."""
    replace = msgspec.structs.replace
    consumers = [
        replace(
            group,
            subscription_data_set=[
                replace(one, sub_version=0) for one in group.subscription_data_set
            ],
        )
        for group in data.consumer_data_set
    ]
    content = replace(
        data,
        client_id="",
        consumer_data_set=consumers,
        heartbeat_fingerprint=0,
        without_sub=False,
    )
    return java_hash(fastjson.dumps(content).decode())


def versions(data: HeartbeatData) -> frozenset[tuple[str, str, int]]:
    """Return the versions of a heartbeat's subscriptions, by group and topic."""
    return frozenset(
        (group.group_name, one.topic, one.sub_version)
        for group in data.consumer_data_set
        for one in group.subscription_data_set
    )


_Mark = tuple[int, frozenset[tuple[str, str, int]]]
"""The fingerprint and the versions of a complete heartbeat."""


@dataclass(slots=True)
class _Known:
    """The responses of one broker, and what it knows of this client."""

    version: int = 0
    supports_version_2: bool = False
    has: _Mark | None = None
    """The content of the last complete heartbeat; None if the next one must be complete."""


class Heartbeats:
    """Sends heartbeats, and leaves out what the broker knows.

    Args:
        brokers: sends the requests.
        version_2: whether subscriptions are left out where a broker knows them.
    """

    def __init__(self, brokers: BrokerCalls, *, version_2: bool) -> None:
        self._brokers = brokers
        self._version_2 = version_2
        self._known: dict[str, _Known] = {}

    def version(self, address: str) -> int:
        """Return the version in a broker's last response; 0 if it has not responded yet."""
        known = self._known.get(address)
        return known.version if known else 0

    def forget(self, address: str) -> None:
        """Send the next heartbeat in full: the broker does not have what the last one contained."""
        if address in self._known:
            self._known[address].has = None

    def keep_only(self, addresses: set[str]) -> None:
        """Forget all brokers but these."""
        for address in self._known.keys() - addresses:
            del self._known[address]

    async def send(self, address: str, data: HeartbeatData) -> None:
        """Send one broker a heartbeat.

        Raises:
            ResponseError: it refused the heartbeat.
            RemotingError: it did not respond.
        """
        known = self._known.setdefault(address, _Known())
        if not self._version_2:
            known.version = (await self._brokers.heartbeat(address, data)).version
            return
        mark = fingerprint(data), versions(data)
        data = msgspec.structs.replace(data, heartbeat_fingerprint=mark[0])
        await self._brokers.connect(address)  # a new connection calls `forget`
        if known.supports_version_2 and known.has == mark:
            incomplete = await self._send_version_2(address, known, without_subscriptions(data))
            if not incomplete:
                return
        known.has = None
        incomplete = await self._send_version_2(address, known, data)
        known.has = None if incomplete else mark

    async def _send_version_2(self, address: str, known: _Known, data: HeartbeatData) -> bool:
        """Send a heartbeat of version 2; return whether the broker needs a complete one."""
        response = await self._brokers.heartbeat(address, data)
        header = response.header(HeartbeatResponse)
        known.version = response.version
        known.supports_version_2 = bool(header.is_support_heart_beat_v2)
        return bool(header.is_sub_change)
