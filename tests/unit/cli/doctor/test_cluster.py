"""Judgements about a cluster from what its servers have said."""

from __future__ import annotations

import pytest

from cometmq.cli.doctor import (
    cluster_checks,
    pop,
    producer_sessions,
    replication,
    topics_and_groups,
)
from cometmq.cli.doctor.cluster import Broker, Cluster
from cometmq.cli.doctor.findings import Finding, Level, shown
from cometmq.client import AdminClient
from cometmq.client.subscription_check import ComparableFilter
from cometmq.protocol.bodies.client import ConsumerConnection
from cometmq.protocol.bodies.common import Connection
from cometmq.protocol.bodies.route import BrokerData

MIB = 1024 * 1024


def broker(number: int = 0, **figures: str) -> Broker:
    return Broker("a", number, f"10.0.0.{number + 1}:10911", figures, {})


def cluster(*brokers: Broker) -> Cluster:
    found = Cluster(AdminClient("127.0.0.1:1"))
    found.brokers += brokers
    addresses = {each.number: each.address for each in brokers}
    found.registered["a"] = BrokerData(cluster="c", broker_name="a", broker_addrs=addresses)
    return found


def of(findings: list[Finding], check: str) -> list[Level]:
    return [finding.level for finding in findings if finding.check == check]


@pytest.mark.parametrize(
    ("behind", "level"),
    [(-5, Level.FINE), (0, Level.FINE), (10 * MIB, Level.WARNING), (300 * MIB, Level.PROBLEM)],
)
def test_a_slave_that_is_behind_is_found(behind: int, level: Level) -> None:
    end = 1_000 * MIB
    master = broker(0, commitLogMaxOffset=str(end))
    slave = broker(1, commitLogMaxOffset=str(end - behind))

    assert of(list(replication.masters(cluster(master, slave))), "slaves") == [level]


def test_confirmed_messages_that_were_set_aside_are_found() -> None:
    slave = broker(1, confirmedMessagesSetAside="20261128T213000123-0-500")
    [finding] = replication.set_aside(cluster(broker(0), slave))
    assert (finding.level, finding.subject) == (Level.PROBLEM, slave.subject)
    assert "20261128T213000123-0-500" in finding.met


def test_a_broker_that_refuses_sends_is_found() -> None:
    master = broker(0, sendsRefused="this broker is fenced: the controllers know less")
    [finding] = replication.refusing(cluster(master, broker(1)))
    assert (finding.level, finding.subject) == (Level.PROBLEM, master.subject)
    assert "this broker is fenced: the controllers know less" in finding.met


@pytest.mark.parametrize(
    ("late_s", "unread", "level"),
    [
        (0, 0, Level.FINE),
        (5, 0, Level.WARNING),
        (0, 100_000, Level.WARNING),
        (60, 0, Level.PROBLEM),
    ],
)
def test_timer_messages_that_are_late_are_found(late_s: int, unread: int, level: Level) -> None:
    figures = {"timerReadBehind": str(late_s), "timerOffsetBehind": str(unread)}
    master = broker(0, timerCongestNum="7", **figures)
    [finding] = cluster_checks.timers(cluster(master, broker(1, timerCongestNum="7", **figures)))
    assert (finding.level, finding.subject) == (level, master.subject)
    assert finding.met.startswith("7 timer messages waiting")


def test_brokers_that_do_not_show_the_end_of_their_log_are_not_compared() -> None:
    assert of(list(replication.masters(cluster(broker(0), broker(1)))), "slaves") == []


@pytest.mark.parametrize(
    ("one", "two", "level"),
    [("V5_3_3", "V5_3_3", Level.FINE), ("V5_3_3", "V4_9_7", Level.WARNING)],
)
def test_versions_that_differ_are_found(one: str, two: str, level: Level) -> None:
    both = cluster(broker(0, brokerVersionDesc=one), broker(1, brokerVersionDesc=two))

    [finding] = cluster_checks.versions(both)

    assert finding.level is level
    assert one in finding.met
    assert two in finding.met


@pytest.mark.parametrize(
    ("ratio", "level"),
    [("0.70", Level.FINE), ("0.80", Level.WARNING), ("0.95", Level.PROBLEM), ("", Level.FINE)],
)
def test_the_disk_of_a_broker_is_compared_with_its_limits(ratio: str, level: Level) -> None:
    [finding] = cluster_checks.disk_space(broker(commitLogDiskRatio=ratio))

    assert finding.level is level


def test_the_limits_of_the_broker_count() -> None:
    strict = broker(commitLogDiskRatio="0.70")._replace(config={"diskMaxUsedSpaceRatio": "60"})

    [finding] = cluster_checks.disk_space(strict)

    assert finding.level is Level.WARNING


@pytest.mark.parametrize(
    ("figures", "level", "met"),
    [
        ({}, Level.FINE, "7 popped messages in flight"),
        ({"popCheckPoints": "800"}, Level.WARNING, "800 check points in flight, of at most 1000"),
        ({"popCheckPoints": "1000"}, Level.PROBLEM, "1000 check points in flight"),
        ({"popReviveBehindMs": "5000"}, Level.WARNING, "visible again since 5 s"),
        ({"popReviveBehindMs": "60000"}, Level.PROBLEM, "visible again since 60 s"),
        ({"popOldestMs": "3600000"}, Level.WARNING, "popped 3600 s ago"),
        ({"popMixedModes": "g@t,h@t"}, Level.WARNING, "g@t, h@t"),
    ],
)
def test_popped_messages_that_are_not_consumed_are_found(
    figures: dict[str, str], level: Level, met: str
) -> None:
    usual = {"popInFlight": "7", "popCheckPoints": "3", "popCheckPointsLimit": "1000"}
    master = broker(0, **(usual | figures))

    [finding] = pop.in_flight(cluster(master, broker(1)))

    assert (finding.level, finding.subject) == (level, master.subject)
    assert met in finding.met


def sessions(number: int, count: int, of_topic: int) -> Broker:
    return broker(
        number,
        producerSessions=str(count),
        producerSessionsLimit="100",
        producerSessionsTopic="orders",
        producerSessionsOfTopic=str(of_topic),
        producerSessionsOfTopicLimit="25",
    )


@pytest.mark.parametrize(
    ("count", "of_topic", "level", "met"),
    [
        (79, 4, Level.FINE, "79 producer sessions of at most 100"),
        (80, 4, Level.WARNING, "80 producer sessions of at most 100"),
        (60, 20, Level.WARNING, "20 producer sessions of topic orders of at most 25"),
        (60, 25, Level.PROBLEM, "25 producer sessions of topic orders of at most 25"),
    ],
)
def test_producer_sessions_that_fill_their_table_are_found(
    count: int, of_topic: int, level: Level, met: str
) -> None:
    [finding] = producer_sessions.room(cluster(sessions(0, count, of_topic), broker(1)))

    assert (finding.level, finding.subject, finding.met) == (level, "a (10.0.0.1:10911)", met)


def test_a_broker_whose_producer_sessions_were_not_used_has_room() -> None:
    unused = broker(0, producerSessions="0", producerSessionsLimit="100")

    [finding] = producer_sessions.room(cluster(unused))

    assert (finding.level, finding.met) == (Level.FINE, "0 producer sessions of at most 100")


@pytest.mark.parametrize(
    ("brokers", "level", "met"),
    [
        ((sessions(0, 1, 1), sessions(1, 1, 1)), Level.FINE, "every broker has"),
        ((broker(0), broker(1)), Level.FINE, "Spark writes at least once"),
        ((sessions(0, 1, 1), broker(1)), Level.WARNING, "1 broker without producer sessions: a ("),
    ],
)
def test_a_cluster_of_which_some_brokers_have_producer_sessions_is_found(
    brokers: tuple[Broker, ...], level: Level, met: str
) -> None:
    [finding] = producer_sessions.offered(cluster(*brokers))

    assert finding.level is level
    assert met in finding.met


def test_only_some_names_are_shown() -> None:
    assert shown(["a", "b"]) == "a, b"
    assert shown(list("abcdefgh")) == "a, b, c, d, e and 3 more"


def filters(**topics: str) -> dict[str, ComparableFilter]:
    return {
        topic: ComparableFilter.of(tags, "TAG", is_class=False) for topic, tags in topics.items()
    }


@pytest.mark.parametrize(
    ("members", "count"),
    [
        ({}, 0),
        ({"x": filters(orders="a")}, 0),
        ({"x": filters(orders="a || b"), "y": filters(orders="b || a")}, 0),
        ({"x": filters(orders="a"), "y": {}}, 0),
        ({"x": filters(orders="a"), "y": filters(orders="b")}, 1),
        ({"x": filters(orders="a"), "y": filters(orders="a", more="*")}, 1),
    ],
)
def test_members_are_compared(members: topics_and_groups.Subscriptions, count: int) -> None:
    assert len(list(topics_and_groups.differences("g", members))) == count


def test_a_client_id_with_several_connections_is_a_finding() -> None:
    def table(*clients: tuple[str, str]) -> ConsumerConnection:
        connections = [Connection(client_id=name, client_addr=where) for name, where in clients]
        return ConsumerConnection(connection_set=connections)

    fine = [table(("a", "10.0.0.1:1"), ("b", "10.0.0.1:2")), table(("a", "10.0.0.1:3"))]
    assert list(topics_and_groups.twins("g", fine)) == []

    two = table(("a", "10.0.0.1:3"), ("a", "10.0.0.9:4"))
    [finding] = topics_and_groups.twins("g", [*fine, two])
    assert (finding.level, finding.subject) == (Level.WARNING, "g")
    assert finding.met == "2 connections of the client id a: 10.0.0.1:3, 10.0.0.9:4"
