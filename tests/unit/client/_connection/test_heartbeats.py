"""The content of heartbeats, compared with those of a Java client."""

from __future__ import annotations

import pytest

from cometmq.client._connection.heartbeats import (
    Heartbeats,
    Membership,
    fingerprint,
    merge_heartbeat,
    without_subscriptions,
)
from cometmq.model.errors import CometError
from cometmq.protocol.bodies.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from support.wire.recorded import frames

ADDRESS = "10.0.0.1:10911"


def recorded() -> list[HeartbeatData]:
    """The heartbeats of a recording in which the second form was switched on."""
    return [
        HeartbeatData.decode(command.body)
        for _, command in frames("5.3.3", "heartbeat_v2")
        if command.code == RequestCode.HEART_BEAT
    ]


FULL = [data for data in recorded() if not data.without_sub]
SHORT = [data for data in recorded() if data.without_sub]


@pytest.mark.parametrize("data", FULL)
def test_the_fingerprint_is_the_one_java_computes(data: HeartbeatData) -> None:
    assert data.heartbeat_fingerprint != 0
    assert fingerprint(data) == data.heartbeat_fingerprint


def test_the_fingerprint_forgets_client_and_versions_alone() -> None:
    data = FULL[0]
    mark = fingerprint(data)

    subscriptions = data.consumer_data_set[0].subscription_data_set
    subscriptions[0].sub_version += 1
    data.client_id = "another"
    assert fingerprint(data) == mark
    subscriptions[0].sub_string = "TagX"
    assert fingerprint(data) != mark


def test_the_short_form_is_the_one_java_sends() -> None:
    full = next(d for d in recorded() if d.heartbeat_fingerprint == SHORT[0].heartbeat_fingerprint)

    assert without_subscriptions(full) == SHORT[0]


def test_a_heartbeat_names_each_producer_group_once_and_every_consumer() -> None:
    parts = [
        Membership(producers=[ProducerData(group_name="p")]),
        Membership(producers=[ProducerData(group_name="p"), ProducerData(group_name="q")]),
        Membership(consumers=[ConsumerData(group_name="c")]),
    ]

    data = merge_heartbeat("me", parts)

    assert data.client_id == "me"
    assert [one.group_name for one in data.producer_data_set] == ["p", "q"]
    assert [one.group_name for one in data.consumer_data_set] == ["c"]
    assert (data.heartbeat_fingerprint, data.without_sub) == (0, False)


class Broker:
    """A broker that answers heartbeats as it is told to."""

    def __init__(self, *, version_2: bool = True, version: int = 479) -> None:
        self.heard: list[HeartbeatData] = []
        self.changed = self.silent = False
        self._fields = {"IS_SUPPORT_HEART_BEAT_V2": "true"} if version_2 else {}
        self._version = version

    async def connect(self, address: str) -> None:
        """There is a connection always."""

    async def heartbeat(self, address: str, data: HeartbeatData) -> Command:
        if self.silent:
            raise CometError("no answer")
        self.heard.append(data)
        fields = dict(self._fields)
        if fields:
            fields["IS_SUB_CHANGE"] = "true" if self.changed else "false"
        self.changed = False
        return Command(0, flag=1, fields=fields, version=self._version)

    @property
    def forms(self) -> list[str]:
        return ["short" if data.without_sub else "full" for data in self.heard]


def said(expression: str = "*", version: int = 0) -> HeartbeatData:
    wanted = SubscriptionData(topic="t", sub_string=expression, sub_version=version)
    group = ConsumerData(group_name="g", subscription_data_set=[wanted])
    return HeartbeatData(client_id="me", consumer_data_set=[group])


def heartbeats(broker: Broker, *, version_2: bool = True) -> Heartbeats:
    return Heartbeats(broker, version_2=version_2)


async def test_subscriptions_are_left_out_once_a_broker_knows_them() -> None:
    broker = Broker()
    sending = heartbeats(broker)

    for _ in range(3):
        await sending.send(ADDRESS, said())
    await sending.send(ADDRESS, said("TagA"))
    await sending.send(ADDRESS, said("TagA"))

    assert broker.forms == ["full", "short", "short", "full", "short"]
    assert broker.heard[1].consumer_data_set[0].subscription_data_set == []
    assert len({data.heartbeat_fingerprint for data in broker.heard[:3]}) == 1


async def test_subscriptions_are_sent_when_only_a_version_has_changed() -> None:
    """A broker refuses the pulls of a version that it does not have."""
    broker = Broker()
    sending = heartbeats(broker)

    for version in (1, 1, 2, 2):
        await sending.send(ADDRESS, said(version=version))

    assert broker.forms == ["full", "short", "full", "short"]
    assert len({data.heartbeat_fingerprint for data in broker.heard}) == 1, "as in Java"


async def test_a_broker_that_knows_of_other_subscriptions_is_sent_them_in_full_at_once() -> None:
    broker = Broker()
    sending = heartbeats(broker)
    await sending.send(ADDRESS, said())

    broker.changed = True
    await sending.send(ADDRESS, said())
    await sending.send(ADDRESS, said())

    assert broker.forms == ["full", "short", "full", "short"]


async def test_a_full_heartbeat_that_a_broker_asks_for_again_is_sent_in_full_the_next_time() -> (
    None
):
    """As recorded after a change: the answer to the first full form still says so."""
    broker = Broker()
    sending = heartbeats(broker)

    broker.changed = True
    for _ in range(3):
        await sending.send(ADDRESS, said())

    assert broker.forms == ["full", "full", "short"]


async def test_a_broker_is_told_in_full_again_after_its_connection_was_lost() -> None:
    broker = Broker()
    sending = heartbeats(broker)
    await sending.send(ADDRESS, said())

    sending.forget(ADDRESS)
    await sending.send(ADDRESS, said())

    assert broker.forms == ["full", "full"]


async def test_brokers_without_the_second_form_are_always_told_in_full() -> None:
    broker = Broker(version_2=False, version=407)
    sending = heartbeats(broker)

    await sending.send(ADDRESS, said())
    await sending.send(ADDRESS, said())

    assert broker.forms == ["full", "full"]
    assert sending.version(ADDRESS) == 407


async def test_the_first_form_carries_no_fingerprint() -> None:
    broker = Broker()
    sending = heartbeats(broker, version_2=False)

    await sending.send(ADDRESS, said())
    await sending.send(ADDRESS, said())

    assert [data.heartbeat_fingerprint for data in broker.heard] == [0, 0]
    assert broker.forms == ["full", "full"]


async def test_what_is_known_of_a_broker_goes_when_no_route_mentions_it() -> None:
    broker = Broker()
    sending = heartbeats(broker)
    await sending.send(ADDRESS, said())
    assert sending.version(ADDRESS) == 479

    sending.keep_only(set())

    assert sending.version(ADDRESS) == 0


async def test_a_heartbeat_that_failed_is_followed_by_a_full_one() -> None:
    broker = Broker()
    sending = heartbeats(broker)
    await sending.send(ADDRESS, said())
    broker.silent = True
    with pytest.raises(CometError):
        await sending.send(ADDRESS, said("TagA"))

    broker.silent = False
    await sending.send(ADDRESS, said("TagA"))

    assert broker.forms == ["full", "full"]
