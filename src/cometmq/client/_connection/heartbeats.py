"""What heartbeats say, in both forms, and what brokers answered to them.

The first form names every group with all it subscribes to. The second one carries a fingerprint of
that; a broker that was sent it once is sent the groups alone, until the fingerprint changes or the
broker says that it knows of another.

Source: MQClientInstance.sendHeartbeatToAllBrokerV2 and HeartbeatData.computeHeartbeatFingerprint,
RocketMQ 5.3; sending the whole again at once when a broker asks for it is ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from cometmq.protocol import fastjson
from cometmq.protocol.bodies import ConsumerData, HeartbeatData, ProducerData
from cometmq.protocol.command import Command
from cometmq.protocol.hashing import java_hash
from cometmq.protocol.headers import HeartbeatResponse


@dataclass(slots=True)
class Membership:
    """What one producer or consumer contributes to the heartbeat."""

    producers: list[ProducerData] = field(default_factory=list)
    consumers: list[ConsumerData] = field(default_factory=list)


class Member(Protocol):
    """A producer or a consumer of an instance."""

    @property
    def group(self) -> str:
        """The member's group."""

    def membership(self) -> Membership:
        """Say what the heartbeat is to tell of this member."""


class HeartbeatCalls(Protocol):
    """Sends heartbeats to brokers."""

    async def connect(self, address: str) -> None:
        """Open a connection to a broker, unless there is one."""

    async def heartbeat(self, address: str, data: HeartbeatData) -> Command:
        """Send a heartbeat and give the answer, which is a success."""


def merge_heartbeat(client_id: str, members: Iterable[Membership]) -> HeartbeatData:
    """Put together what all members of a client have to tell, each group once."""
    parts = list(members)
    producers = {data.group_name: data for part in parts for data in part.producers}
    return HeartbeatData(
        client_id=client_id,
        producer_data_set=list(producers.values()),
        consumer_data_set=[data for part in parts for data in part.consumers],
    )


def without_subscriptions(data: HeartbeatData) -> HeartbeatData:
    """Give the short form of a heartbeat: its groups, without what they subscribe to."""
    replace = msgspec.structs.replace
    consumers = [replace(group, subscription_data_set=[]) for group in data.consumer_data_set]
    return replace(data, consumer_data_set=consumers, without_sub=True)


def fingerprint(data: HeartbeatData) -> int:
    """Give the number that stands for all a heartbeat says, the client and the versions apart."""
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
    said = replace(
        data,
        client_id="",
        consumer_data_set=consumers,
        heartbeat_fingerprint=0,
        without_sub=False,
    )
    return java_hash(fastjson.dumps(said).decode())


@dataclass(slots=True)
class _Known:
    """What one broker has answered, and what it knows of this client."""

    version: int = 0
    takes_second_form: bool = False
    has_seen: int | None = None
    """The fingerprint of what it was told in full."""


class Heartbeats:
    """Sends heartbeats, and remembers what each broker knows already.

    Args:
        brokers: sends the requests.
        second_form: whether subscriptions are left out where a broker knows them.
    """

    def __init__(self, brokers: HeartbeatCalls, *, second_form: bool) -> None:
        self._brokers = brokers
        self._second_form = second_form
        self._known: dict[str, _Known] = {}

    def version(self, address: str) -> int:
        """Give the version a broker said in its last answer; 0 if it has not answered yet."""
        known = self._known.get(address)
        return known.version if known else 0

    def forget(self, address: str) -> None:
        """A broker no longer knows what it was told, since the connection to it was lost."""
        if address in self._known:
            self._known[address].has_seen = None

    def keep_only(self, addresses: set[str]) -> None:
        """Drop what is known of brokers that no route mentions any more."""
        for address in self._known.keys() - addresses:
            del self._known[address]

    async def send(self, address: str, data: HeartbeatData) -> None:
        """Send one broker a heartbeat.

        Raises:
            ResponseError: it refuses what it is told.
            RemotingError: it does not answer.
        """
        known = self._known.setdefault(address, _Known())
        if not self._second_form:
            known.version = (await self._brokers.heartbeat(address, data)).version
            return
        mark = fingerprint(data)
        data = msgspec.structs.replace(data, heartbeat_fingerprint=mark)
        await self._brokers.connect(address)  # a new connection shows in what it has seen
        if known.takes_second_form and known.has_seen == mark:
            asked_again = await self._send_marked(address, known, without_subscriptions(data))
            if not asked_again:
                return
        known.has_seen = None
        asked_again = await self._send_marked(address, known, data)
        known.has_seen = None if asked_again else mark

    async def _send_marked(self, address: str, known: _Known, data: HeartbeatData) -> bool:
        """Send a heartbeat of the second form; returns whether the broker wants it in full."""
        answer = await self._brokers.heartbeat(address, data)
        header = answer.header(HeartbeatResponse)
        known.version = answer.version
        known.takes_second_form = bool(header.is_support_heart_beat_v2)
        return bool(header.is_sub_change)
