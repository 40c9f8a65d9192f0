"""Who serves what: registration, expiry and leaving, decided without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from cometmq.model.topic import TopicConfig
from cometmq.namesrv import registry as registry_module
from cometmq.namesrv.registry import (
    BrokerKey,
    IncrementFirstError,
    MinIdNotice,
    Registration,
    RegistrationRefusedError,
    Registry,
)
from cometmq.namesrv.routes.route_data import route_of
from cometmq.namesrv.topics.handler import topics_of_cluster
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.bodies.route import QueueData, TopicQueueMappingInfo

MASTER, SLAVE = "10.0.0.1:10911", "10.0.0.2:10911"
CLUSTER = "c"
T0 = 1_000_000


def topics(*names: str, **changes: Any) -> dict[str, TopicConfig]:
    return {name: TopicConfig(topic_name=name, **changes) for name in names}


def registration(**changes: Any) -> Registration:
    facts: dict[str, Any] = {
        "cluster": CLUSTER,
        "broker_name": "a",
        "broker_id": 0,
        "address": MASTER,
        "ha_address": "10.0.0.1:10912",
        "version": DataVersion(counter=1, timestamp=5),
        "topics": topics("T", "U"),
    }
    return Registration(**(facts | changes))


def slave(**changes: Any) -> Registration:
    facts = {"broker_id": 1, "address": SLAVE, "ha_address": "10.0.0.2:10912"}
    return registration(**(facts | changes))


class Server:
    """A registry with a clock."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.now_ms = T0

    async def register(self, what: Registration, connection: object = None, **options: Any) -> Any:
        return await self.registry.register(
            what, connection or what.address, self.now_ms, **options
        )

    def perm(self, topic: str = "T", broker: str = "a") -> int:
        return self.registry.topics[topic][broker].perm

    def addresses(self, broker: str = "a") -> dict[int, str]:
        return self.registry.groups[broker].addresses


@pytest.fixture
def server() -> Iterator[Server]:
    """A server; in the end it must know exactly the topics of each broker that has rows."""
    server = Server()
    yield server
    registry = server.registry
    for table, index in (
        (registry.topics, registry._topics_of),
        (registry.mappings, registry._mapped_of),
    ):
        expected: dict[str, set[str]] = {}
        for topic, rows in table.items():
            for broker_name in rows:
                expected.setdefault(broker_name, set()).add(topic)
        assert index == expected


# --- registration -----------------------------------------------------------------------------


async def test_topics_of_a_master_are_routed(server: Server) -> None:
    await server.register(registration(topics=topics("T", "U", read_queue_nums=3, perm=4)))
    route = route_of(server.registry, "T")
    assert route is not None
    assert (route.queue_datas[0].read_queue_nums, route.queue_datas[0].perm) == (3, 4)
    assert route.broker_datas[0].broker_addrs == {0: MASTER}


def static(broker: str = "a", *, version: int, **changes: Any) -> Registration:
    """The registration of a broker that leads queue 0 of the static topic T."""
    info = TopicQueueMappingInfo(topic="T", bname=broker, total_queues=2, curr_id_map={0: 0})
    facts = {"broker_name": broker, "address": f"{broker}:1", "mappings": {"T": info}}
    version_of = {"version": DataVersion(counter=version, timestamp=5)}
    return registration(**(facts | version_of | changes))


async def test_the_queues_of_a_static_topic_stay_while_any_broker_has_it(server: Server) -> None:
    for name in ("a", "b"):
        await server.register(static(name, version=1))
    await server.registry.unregister(BrokerKey(CLUSTER, "a:1"), "a")
    assert server.registry.mappings["T"].keys() == {"a", "b"}
    await server.registry.unregister(BrokerKey(CLUSTER, "b:1"), "b")
    assert server.registry.mappings == {}


@pytest.mark.parametrize(
    ("changes", "stays"),
    [
        ({"mappings": {}}, False),
        ({"mappings": {}, "topics": topics("U", "V")}, False),
        ({"mappings": {}, "topics": topics("U"), "is_part": True}, True),
        ({"mappings": {}, "topics": topics("T"), "is_part": True}, False),
        ({"mappings": {}, "version": 1}, True),
    ],
    ids=["not static", "deleted", "a part without it", "a part with it", "nothing new"],
)
async def test_a_topic_that_is_static_no_more_loses_its_mapping(
    server: Server, changes: dict[str, Any], stays: bool
) -> None:
    await server.register(static(version=1))
    await server.register(static(**({"version": 2} | changes)))
    assert ("T" in server.registry.mappings) is stays


async def test_a_deleted_topic_has_no_mapping_of_brokers_that_are_away_either(
    server: Server,
) -> None:
    for name in ("a", "b"):
        await server.register(static(name, version=1))
    await server.registry.unregister(BrokerKey(CLUSTER, "a:1"), "a")
    await server.registry.delete_topic("T")
    assert server.registry.mappings == {}


async def test_topics_of_a_slave_are_not_taken(server: Server) -> None:
    await server.register(registration())
    await server.register(slave(topics=topics("T", "onSlave"), version=DataVersion(counter=9)))
    assert "onSlave" not in server.registry.topics


async def test_slave_learns_its_master_while_that_lives(server: Server) -> None:
    assert (await server.register(slave())).master_address is None
    await server.register(registration())
    result = await server.register(slave())
    assert (result.master_address, result.ha_address) == (MASTER, "10.0.0.1:10912")


async def test_master_learns_no_master(server: Server) -> None:
    assert (await server.register(registration())).master_address is None


async def test_changed_version_overwrites_rows_and_the_same_one_does_not(server: Server) -> None:
    await server.register(registration())
    await server.register(registration(topics=topics("T", "U", perm=2)))
    assert server.perm() == 6
    await server.register(
        registration(topics=topics("T", "U", perm=2), version=DataVersion(counter=2))
    )
    assert server.perm() == 2


async def test_topic_without_a_row_is_taken_even_with_the_same_version(server: Server) -> None:
    await server.register(registration())
    await server.register(registration(topics=topics("T", "late")))
    assert "late" in server.registry.topics


async def test_topics_that_are_no_longer_named_stay(server: Server) -> None:
    await server.register(registration())
    await server.register(registration(topics=topics("T", "V"), version=DataVersion(counter=2)))
    assert {"T", "U", "V"} <= server.registry.topics.keys()


async def test_topics_that_are_no_longer_named_go_where_that_is_set(server: Server) -> None:
    await server.register(registration())
    what = registration(topics=topics("T", "V"), version=DataVersion(counter=2))
    await server.register(what, deletes_absent_topics=True)
    assert set(server.registry.topics) == {"T", "V"}


async def test_single_topic_deletes_nothing_for_it_is_an_increment(server: Server) -> None:
    await server.register(registration())
    what = registration(topics=topics("W"), version=DataVersion(counter=2))
    await server.register(what, deletes_absent_topics=True)
    assert set(server.registry.topics) == {"T", "U", "W"}


async def test_single_topic_from_an_unknown_broker_is_refused(server: Server) -> None:
    with pytest.raises(IncrementFirstError):
        await server.register(registration(topics=topics("T")))
    assert not server.registry.groups
    assert not server.registry.clusters
    assert not server.registry.live


async def test_broker_without_topics_is_known(server: Server) -> None:
    await server.register(registration(topics={}))
    assert server.addresses() == {0: MASTER}


async def test_address_under_another_id_moves(server: Server) -> None:
    """A slave that became master does not stay a slave."""
    await server.register(slave())
    await server.register(registration(address=SLAVE))
    assert server.addresses() == {0: SLAVE}


async def test_new_address_of_an_id_replaces_the_old_one(server: Server) -> None:
    await server.register(registration())
    await server.register(registration(address="10.0.0.9:10911"))
    assert server.addresses() == {0: "10.0.0.9:10911"}


async def test_newer_state_of_another_address_keeps_the_id(server: Server) -> None:
    await server.register(registration(version=DataVersion(state_version=2)))
    late = registration(address="10.0.0.9:10911", version=DataVersion(state_version=1))
    result = await server.register(late)
    assert not result.accepted
    assert server.addresses() == {0: MASTER}
    assert late.key not in server.registry.live


async def test_filter_servers_are_kept_until_none_are_named(server: Server) -> None:
    await server.register(registration(filter_servers=("10.0.0.7:9000",)))
    await server.register(registration(filter_servers=None))
    route = route_of(server.registry, "T")
    assert route is not None
    assert route.filter_server_table == {MASTER: ["10.0.0.7:9000"]}
    await server.register(registration(filter_servers=()))
    assert not server.registry.filter_servers


async def test_version_is_compared_only_for_equality(server: Server) -> None:
    await server.register(registration())
    key = BrokerKey(CLUSTER, MASTER)
    assert not server.registry.has_changed(key, DataVersion(counter=1, timestamp=5))
    assert server.registry.has_changed(key, DataVersion(counter=0, timestamp=5))
    assert server.registry.has_changed(BrokerKey(CLUSTER, "10.0.0.8:1"), DataVersion())


# --- leaving ----------------------------------------------------------------------------------


async def test_last_broker_takes_its_name_cluster_and_topics_along(server: Server) -> None:
    await server.register(registration())
    await server.registry.unregister(BrokerKey(CLUSTER, MASTER), "a")
    registry = server.registry
    assert [registry.topics, registry.groups, registry.clusters, registry.live] == [{}] * 4


async def test_rows_of_other_brokers_stay(server: Server) -> None:
    await server.register(registration())
    await server.register(registration(broker_name="b", address="10.0.0.5:10911"))
    await server.registry.unregister(BrokerKey(CLUSTER, MASTER), "a")
    assert set(server.registry.topics["T"]) == {"b"}
    assert set(server.registry.clusters[CLUSTER]) == {"b"}


async def test_unregistering_is_by_address_not_by_id(server: Server) -> None:
    await server.register(registration())
    await server.registry.unregister(BrokerKey(CLUSTER, SLAVE), "a")
    assert server.addresses() == {0: MASTER}


async def test_unregistering_in_another_cluster_does_nothing(server: Server) -> None:
    await server.register(registration())
    await server.registry.unregister(BrokerKey("other", MASTER), "a")
    assert server.addresses() == {0: MASTER}


async def test_silent_broker_expires_and_one_that_was_heard_does_not(server: Server) -> None:
    await server.register(registration(), "link-a")
    await server.register(registration(broker_name="b", address="10.0.0.5:1", expiry_ms=60_000))
    server.now_ms += 60_001
    server.registry.touch(BrokerKey(CLUSTER, "10.0.0.5:1"), server.now_ms)
    assert await server.registry.expire(lambda: server.now_ms) == []
    server.now_ms += 60_000
    (expired,) = await server.registry.expire(lambda: server.now_ms)
    assert (expired.key.address, expired.connection) == (MASTER, "link-a")
    assert set(server.registry.groups) == {"b"}


async def test_broker_expires_after_its_own_time_and_not_at_it(server: Server) -> None:
    await server.register(registration(expiry_ms=1_000))
    assert await server.registry.expire(lambda: T0 + 1_000) == []
    assert len(await server.registry.expire(lambda: T0 + 1_001)) == 1


async def test_unknown_broker_cannot_be_touched_into_being(server: Server) -> None:
    server.registry.touch(BrokerKey(CLUSTER, MASTER), T0)
    assert not server.registry.live


async def test_closed_connection_takes_all_brokers_that_came_over_it(server: Server) -> None:
    link, other = object(), object()
    await server.register(registration(), link)
    await server.register(slave(), link)
    await server.register(registration(broker_name="b", address="10.0.0.5:1"), other)
    await server.registry.disconnected(link)
    assert set(server.registry.groups) == {"b"}


async def test_old_connection_that_closes_late_takes_nothing(server: Server) -> None:
    old, new = object(), object()
    await server.register(registration(), old)
    await server.register(registration(), new)
    await server.registry.disconnected(old)
    assert server.addresses() == {0: MASTER}


# --- acting masters ---------------------------------------------------------------------------


async def test_smallest_slave_takes_over_topics_read_only(server: Server) -> None:
    await server.register(slave(enable_acting_master=True))
    assert server.perm() == 4


async def test_slave_of_an_old_broker_takes_over_nothing(server: Server) -> None:
    await server.register(slave(enable_acting_master=None))
    assert not server.registry.topics


async def test_topics_turn_read_only_when_the_master_goes_and_a_slave_acts(server: Server) -> None:
    await server.register(registration(enable_acting_master=True))
    await server.register(slave(enable_acting_master=True))
    await server.registry.unregister(BrokerKey(CLUSTER, MASTER), "a")
    assert server.perm() == 4


async def test_topics_stay_writable_when_the_master_goes_and_no_slave_acts(server: Server) -> None:
    await server.register(registration())
    await server.register(slave())
    await server.registry.unregister(BrokerKey(CLUSTER, MASTER), "a")
    assert server.perm() == 6


async def test_change_of_the_smallest_id_is_to_be_told(server: Server) -> None:
    assert (await server.register(slave())).notice is None
    came = (await server.register(registration())).notice
    assert came == MinIdNotice((SLAVE,), 0, MASTER, None, "10.0.0.1:10912")
    went = await server.registry.unregister(BrokerKey(CLUSTER, MASTER), "a")
    assert went == MinIdNotice((SLAVE,), 1, SLAVE, MASTER, None)


async def test_loss_of_a_slave_is_no_change_of_the_smallest_id(server: Server) -> None:
    await server.register(registration())
    await server.register(slave())
    assert await server.registry.unregister(BrokerKey(CLUSTER, SLAVE), "a") is None


# --- topics -----------------------------------------------------------------------------------


async def test_write_permission_is_taken_and_given_back(server: Server) -> None:
    await server.register(registration(topics=topics("T", "U", perm=7)))
    await server.register(registration(broker_name="b", address="10.0.0.5:1"))
    assert await server.registry.wipe_write_perm("a") == 2
    assert (server.perm("T"), server.perm("T", "b")) == (5, 6)
    assert await server.registry.add_write_perm("a") == 2
    assert server.perm() == 6
    assert await server.registry.wipe_write_perm("nobody") == 0


async def test_wiped_permission_survives_registrations_of_the_same_version(server: Server) -> None:
    await server.register(registration())
    await server.registry.wipe_write_perm("a")
    await server.register(registration())
    assert server.perm() == 4
    await server.register(registration(version=DataVersion(counter=2)))
    assert server.perm() == 6


async def test_topic_is_deleted_everywhere_or_in_one_cluster(server: Server) -> None:
    await server.register(registration())
    await server.register(registration(cluster="d", broker_name="b", address="10.0.0.5:1"))
    await server.registry.delete_topic("T", "d")
    assert set(server.registry.topics["T"]) == {"a"}
    await server.registry.delete_topic("T", CLUSTER)
    assert "T" not in server.registry.topics
    await server.registry.delete_topic("U")
    assert "U" not in server.registry.topics


async def test_topic_is_registered_only_for_known_brokers(server: Server) -> None:
    await server.register(registration())
    row = QueueData(broker_name="a", read_queue_nums=2, write_queue_nums=2, perm=6)
    stranger = QueueData(broker_name="x", read_queue_nums=2, write_queue_nums=2, perm=6)
    assert not await server.registry.register_topic("N", [row, stranger])
    assert not await server.registry.register_topic("N", [])
    assert "N" not in server.registry.topics
    assert await server.registry.register_topic("N", [row])
    assert server.registry.topics["N"] == {"a": row}


# --- changes in slices ------------------------------------------------------------------------

MANY = topics(*(f"many-{number}" for number in range(10_000)))


async def steps_of(work: Coroutine[Any, Any, Any], look: Callable[[], Any]) -> list[Any]:
    """Run work that takes several turns of the event loop; return what ``look`` saw in each."""
    task = asyncio.create_task(work)
    seen = []
    while not task.done():
        await asyncio.sleep(0)
        seen.append(look())
    await task
    return seen


async def test_route_shows_all_topics_of_a_new_broker_or_none(server: Server) -> None:
    def look() -> tuple[bool, bool]:
        first, last = (route_of(server.registry, name) for name in ("many-0", "many-9999"))
        return first is not None, last is not None

    seen = await steps_of(server.register(registration(topics=dict(MANY))), look)
    assert set(seen[:-1]) == {(False, False)}
    assert look() == (True, True)
    seen = await steps_of(server.registry.unregister(BrokerKey(CLUSTER, MASTER), "a"), look)
    assert set(seen) <= {(True, True), (False, False)}
    assert len(seen) > 2
    assert not server.registry.topics


async def test_rows_of_a_broker_that_leaves_are_in_no_route_of_others(server: Server) -> None:
    await server.register(registration(topics=dict(MANY)))
    await server.register(registration(broker_name="b", address="10.0.0.5:1", topics=dict(MANY)))

    def look() -> tuple[int, int]:
        route = route_of(server.registry, "many-9999")
        assert route is not None
        return len(route.queue_datas), len(route.broker_datas)

    seen = await steps_of(server.registry.unregister(BrokerKey(CLUSTER, MASTER), "a"), look)
    assert set(seen) <= {(2, 2), (1, 1)}
    assert seen.count((1, 1)) > 1


async def test_changes_are_made_in_the_order_of_their_requests(server: Server) -> None:
    key = BrokerKey(CLUSTER, MASTER)
    many = registration(topics=dict(MANY))
    await asyncio.gather(
        server.register(many),
        server.registry.unregister(key, "a"),
        server.register(registration()),
        server.registry.wipe_write_perm("a"),
    )
    assert set(server.registry.topics) == {"T", "U"}
    assert server.perm() == 4
    await asyncio.gather(server.registry.unregister(key, "a"), server.register(many))
    assert set(server.registry.topics) == set(MANY)


async def test_list_shows_all_topics_of_a_broker_or_none(server: Server) -> None:
    _, during, _, after = await asyncio.gather(
        server.register(registration(topics=dict(MANY))),
        topics_of_cluster(server.registry, CLUSTER),
        server.registry.unregister(BrokerKey(CLUSTER, MASTER), "a"),
        topics_of_cluster(server.registry, CLUSTER),
    )
    assert during == list(MANY)
    assert after == []


async def test_broker_that_was_heard_meanwhile_does_not_expire(server: Server) -> None:
    await server.register(registration())
    server.now_ms += 120_001
    async with server.registry.lock:
        expiry = asyncio.create_task(server.registry.expire(lambda: server.now_ms))
        await asyncio.sleep(0)
        server.registry.touch(BrokerKey(CLUSTER, MASTER), server.now_ms)
    assert await expiry == []
    assert server.addresses() == {0: MASTER}


async def test_registration_over_a_closed_connection_is_refused(server: Server) -> None:
    with pytest.raises(RegistrationRefusedError, match="closed"):
        await server.register(registration(), is_closed=lambda: True)
    assert not server.registry.groups
    assert not server.registry.live


async def test_group_has_so_many_addresses_and_no_more(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "MEMBERS_MAX", 2)
    await server.register(registration())
    await server.register(slave())
    with pytest.raises(RegistrationRefusedError, match="2 addresses"):
        await server.register(slave(broker_id=2, address="10.0.0.3:10911"))
    assert server.addresses() == {0: MASTER, 1: SLAVE}
    await server.register(slave())
