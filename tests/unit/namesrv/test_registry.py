"""Who serves what: registration, expiry and leaving, decided without a network."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq.model.topic import TopicConfig
from cometmq.namesrv.registry import (
    BrokerKey,
    IncrementFirstError,
    MinIdNotice,
    Registration,
    Registry,
)
from cometmq.namesrv.routes.route_data import route_of
from cometmq.protocol.bodies import DataVersion, QueueData

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

    def register(self, what: Registration, connection: object = None, **options: Any) -> Any:
        return self.registry.register(what, connection or what.address, self.now_ms, **options)

    def perm(self, topic: str = "T", broker: str = "a") -> int:
        return self.registry.topics[topic][broker].perm

    def addresses(self, broker: str = "a") -> dict[int, str]:
        return self.registry.groups[broker].addresses


@pytest.fixture
def server() -> Server:
    return Server()


# --- registration -----------------------------------------------------------------------------


def test_topics_of_a_master_are_routed(server: Server) -> None:
    server.register(registration(topics=topics("T", "U", read_queue_nums=3, perm=4)))
    route = route_of(server.registry, "T")
    assert route is not None
    assert (route.queue_datas[0].read_queue_nums, route.queue_datas[0].perm) == (3, 4)
    assert route.broker_datas[0].broker_addrs == {0: MASTER}


def test_topics_of_a_slave_are_not_taken(server: Server) -> None:
    server.register(registration())
    server.register(slave(topics=topics("T", "onSlave"), version=DataVersion(counter=9)))
    assert "onSlave" not in server.registry.topics


def test_slave_learns_its_master_while_that_lives(server: Server) -> None:
    assert server.register(slave()).master_address is None
    server.register(registration())
    result = server.register(slave())
    assert (result.master_address, result.ha_address) == (MASTER, "10.0.0.1:10912")


def test_master_learns_no_master(server: Server) -> None:
    assert server.register(registration()).master_address is None


def test_changed_version_overwrites_rows_and_the_same_one_does_not(server: Server) -> None:
    server.register(registration())
    server.register(registration(topics=topics("T", "U", perm=2)))
    assert server.perm() == 6
    server.register(registration(topics=topics("T", "U", perm=2), version=DataVersion(counter=2)))
    assert server.perm() == 2


def test_topic_without_a_row_is_taken_even_with_the_same_version(server: Server) -> None:
    server.register(registration())
    server.register(registration(topics=topics("T", "late")))
    assert "late" in server.registry.topics


def test_topics_that_are_no_longer_named_stay(server: Server) -> None:
    server.register(registration())
    server.register(registration(topics=topics("T", "V"), version=DataVersion(counter=2)))
    assert {"T", "U", "V"} <= server.registry.topics.keys()


def test_topics_that_are_no_longer_named_go_where_that_is_set(server: Server) -> None:
    server.register(registration())
    what = registration(topics=topics("T", "V"), version=DataVersion(counter=2))
    server.register(what, deletes_absent_topics=True)
    assert set(server.registry.topics) == {"T", "V"}


def test_single_topic_deletes_nothing_for_it_is_an_increment(server: Server) -> None:
    server.register(registration())
    what = registration(topics=topics("W"), version=DataVersion(counter=2))
    server.register(what, deletes_absent_topics=True)
    assert set(server.registry.topics) == {"T", "U", "W"}


def test_single_topic_from_an_unknown_broker_is_refused(server: Server) -> None:
    with pytest.raises(IncrementFirstError):
        server.register(registration(topics=topics("T")))
    assert not server.registry.groups
    assert not server.registry.clusters
    assert not server.registry.live


def test_broker_without_topics_is_known(server: Server) -> None:
    server.register(registration(topics={}))
    assert server.addresses() == {0: MASTER}


def test_address_under_another_id_moves(server: Server) -> None:
    """A slave that became master does not stay a slave."""
    server.register(slave())
    server.register(registration(address=SLAVE))
    assert server.addresses() == {0: SLAVE}


def test_new_address_of_an_id_replaces_the_old_one(server: Server) -> None:
    server.register(registration())
    server.register(registration(address="10.0.0.9:10911"))
    assert server.addresses() == {0: "10.0.0.9:10911"}


def test_newer_state_of_another_address_keeps_the_id(server: Server) -> None:
    server.register(registration(version=DataVersion(state_version=2)))
    late = registration(address="10.0.0.9:10911", version=DataVersion(state_version=1))
    result = server.register(late)
    assert not result.accepted
    assert server.addresses() == {0: MASTER}
    assert late.key not in server.registry.live


def test_filter_servers_are_kept_until_none_are_named(server: Server) -> None:
    server.register(registration(filter_servers=("10.0.0.7:9000",)))
    server.register(registration(filter_servers=None))
    route = route_of(server.registry, "T")
    assert route is not None
    assert route.filter_server_table == {MASTER: ["10.0.0.7:9000"]}
    server.register(registration(filter_servers=()))
    assert not server.registry.filter_servers


def test_version_is_compared_only_for_equality(server: Server) -> None:
    server.register(registration())
    key = BrokerKey(CLUSTER, MASTER)
    assert not server.registry.has_changed(key, DataVersion(counter=1, timestamp=5))
    assert server.registry.has_changed(key, DataVersion(counter=0, timestamp=5))
    assert server.registry.has_changed(BrokerKey(CLUSTER, "10.0.0.8:1"), DataVersion())


# --- leaving ----------------------------------------------------------------------------------


def test_last_broker_takes_its_name_cluster_and_topics_along(server: Server) -> None:
    server.register(registration())
    server.registry.unregister(BrokerKey(CLUSTER, MASTER), "a")
    registry = server.registry
    assert [registry.topics, registry.groups, registry.clusters, registry.live] == [{}] * 4


def test_rows_of_other_brokers_stay(server: Server) -> None:
    server.register(registration())
    server.register(registration(broker_name="b", address="10.0.0.5:10911"))
    server.registry.unregister(BrokerKey(CLUSTER, MASTER), "a")
    assert set(server.registry.topics["T"]) == {"b"}
    assert set(server.registry.clusters[CLUSTER]) == {"b"}


def test_unregistering_is_by_address_not_by_id(server: Server) -> None:
    server.register(registration())
    server.registry.unregister(BrokerKey(CLUSTER, SLAVE), "a")
    assert server.addresses() == {0: MASTER}


def test_unregistering_in_another_cluster_does_nothing(server: Server) -> None:
    server.register(registration())
    server.registry.unregister(BrokerKey("other", MASTER), "a")
    assert server.addresses() == {0: MASTER}


def test_silent_broker_expires_and_one_that_was_heard_does_not(server: Server) -> None:
    server.register(registration(), "link-a")
    server.register(registration(broker_name="b", address="10.0.0.5:1", expiry_ms=60_000))
    server.now_ms += 60_001
    server.registry.touch(BrokerKey(CLUSTER, "10.0.0.5:1"), server.now_ms)
    assert server.registry.expire(server.now_ms) == []
    server.now_ms += 60_000
    (expired,) = server.registry.expire(server.now_ms)
    assert (expired.key.address, expired.connection) == (MASTER, "link-a")
    assert set(server.registry.groups) == {"b"}


def test_broker_expires_after_its_own_time_and_not_at_it(server: Server) -> None:
    server.register(registration(expiry_ms=1_000))
    assert server.registry.expire(T0 + 1_000) == []
    assert len(server.registry.expire(T0 + 1_001)) == 1


def test_unknown_broker_cannot_be_touched_into_being(server: Server) -> None:
    server.registry.touch(BrokerKey(CLUSTER, MASTER), T0)
    assert not server.registry.live


def test_closed_connection_takes_all_brokers_that_came_over_it(server: Server) -> None:
    link, other = object(), object()
    server.register(registration(), link)
    server.register(slave(), link)
    server.register(registration(broker_name="b", address="10.0.0.5:1"), other)
    server.registry.disconnected(link)
    assert set(server.registry.groups) == {"b"}


def test_old_connection_that_closes_late_takes_nothing(server: Server) -> None:
    old, new = object(), object()
    server.register(registration(), old)
    server.register(registration(), new)
    server.registry.disconnected(old)
    assert server.addresses() == {0: MASTER}


# --- acting masters ---------------------------------------------------------------------------


def test_smallest_slave_takes_over_topics_read_only(server: Server) -> None:
    server.register(slave(enable_acting_master=True))
    assert server.perm() == 4


def test_slave_of_an_old_broker_takes_over_nothing(server: Server) -> None:
    server.register(slave(enable_acting_master=None))
    assert not server.registry.topics


def test_topics_turn_read_only_when_the_master_goes_and_a_slave_acts(server: Server) -> None:
    server.register(registration(enable_acting_master=True))
    server.register(slave(enable_acting_master=True))
    server.registry.unregister(BrokerKey(CLUSTER, MASTER), "a")
    assert server.perm() == 4


def test_topics_stay_writable_when_the_master_goes_and_no_slave_acts(server: Server) -> None:
    server.register(registration())
    server.register(slave())
    server.registry.unregister(BrokerKey(CLUSTER, MASTER), "a")
    assert server.perm() == 6


def test_change_of_the_smallest_id_is_to_be_told(server: Server) -> None:
    assert server.register(slave()).notice is None
    came = server.register(registration()).notice
    assert came == MinIdNotice((SLAVE,), 0, MASTER, None, "10.0.0.1:10912")
    went = server.registry.unregister(BrokerKey(CLUSTER, MASTER), "a")
    assert went == MinIdNotice((SLAVE,), 1, SLAVE, MASTER, "10.0.0.2:10912")


def test_loss_of_a_slave_is_no_change_of_the_smallest_id(server: Server) -> None:
    server.register(registration())
    server.register(slave())
    assert server.registry.unregister(BrokerKey(CLUSTER, SLAVE), "a") is None


# --- topics -----------------------------------------------------------------------------------


def test_write_permission_is_taken_and_given_back(server: Server) -> None:
    server.register(registration(topics=topics("T", "U", perm=7)))
    server.register(registration(broker_name="b", address="10.0.0.5:1"))
    assert server.registry.wipe_write_perm("a") == 2
    assert (server.perm("T"), server.perm("T", "b")) == (5, 6)
    assert server.registry.add_write_perm("a") == 2
    assert server.perm() == 6
    assert server.registry.wipe_write_perm("nobody") == 0


def test_wiped_permission_survives_registrations_of_the_same_version(server: Server) -> None:
    server.register(registration())
    server.registry.wipe_write_perm("a")
    server.register(registration())
    assert server.perm() == 4
    server.register(registration(version=DataVersion(counter=2)))
    assert server.perm() == 6


def test_topic_is_deleted_everywhere_or_in_one_cluster(server: Server) -> None:
    server.register(registration())
    server.register(registration(cluster="d", broker_name="b", address="10.0.0.5:1"))
    server.registry.delete_topic("T", "d")
    assert set(server.registry.topics["T"]) == {"a"}
    server.registry.delete_topic("T", CLUSTER)
    assert "T" not in server.registry.topics
    server.registry.delete_topic("U")
    assert "U" not in server.registry.topics


def test_topic_is_registered_only_for_known_brokers(server: Server) -> None:
    server.register(registration())
    row = QueueData(broker_name="a", read_queue_nums=2, write_queue_nums=2, perm=6)
    stranger = QueueData(broker_name="x", read_queue_nums=2, write_queue_nums=2, perm=6)
    assert not server.registry.register_topic("N", [row, stranger])
    assert not server.registry.register_topic("N", [])
    assert "N" not in server.registry.topics
    assert server.registry.register_topic("N", [row])
    assert server.registry.topics["N"] == {"a": row}
