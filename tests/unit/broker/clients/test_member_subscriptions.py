"""A broker names the member of a group whose subscription differs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from cometmq.broker.clients.consumers import ConsumerRegistry
from cometmq.broker.clients.member_subscriptions import (
    LOGGED_TOPICS_MAX,
    MemberSubscriptions,
    Subscriptions,
    subscriptions_of,
)
from cometmq.broker.filters.subscriptions import Subscription
from cometmq.protocol.bodies.client import ConsumerConnection
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Connection
from cometmq.system.failure_log import RateLimitedLog
from support.brokers.broker_parts import BrokerParts
from support.checks.manual_clock import ManualClock
from support.wire.memory_link import link


def wants_view(**topics: str) -> Subscriptions:
    return subscriptions_of(wants(**topics))


def wants(**topics: str) -> list[Subscription]:
    return [Subscription(SubscriptionData(topic=t, sub_string=s)) for t, s in topics.items()]


@pytest.fixture
def views() -> MemberSubscriptions:
    return MemberSubscriptions("g", RateLimitedLog(logging.getLogger("g"), "changes"))


def connection() -> Connection:
    return link({}, {})[1]


def test_members_that_agree_are_not_mentioned(
    views: MemberSubscriptions, caplog: pytest.LogCaptureFixture
) -> None:
    views.note("one", wants_view(orders="a || b"))
    views.note("two", wants_view(orders="b||a"))

    assert caplog.messages == []


def test_member_that_differs_is_named_with_both_expressions(
    views: MemberSubscriptions, caplog: pytest.LogCaptureFixture
) -> None:
    views.note("one", wants_view(orders="paid"))
    views.note("two", wants_view(orders="new", stock="*"))

    assert caplog.messages == [
        "subscription of a member differs from its group "
        "group=g member=two topic=orders has='new' others_have='paid'",
        "subscription of a member differs from its group "
        "group=g member=two topic=stock has='*' others_have=nothing",
    ]


def test_difference_is_logged_once_and_again_when_it_changes(
    views: MemberSubscriptions, caplog: pytest.LogCaptureFixture
) -> None:
    views.note("one", wants_view(orders="paid"))
    for expression in ("new", "new", "new", "old"):
        views.note("two", wants_view(orders=expression))

    assert [text.partition("has=")[2] for text in caplog.messages] == [
        "'new' others_have='paid'",
        "'old' others_have='paid'",
    ]


def test_newcomer_is_compared_with_what_most_have(
    views: MemberSubscriptions, caplog: pytest.LogCaptureFixture
) -> None:
    for client_id, expression in (("one", "a"), ("two", "b"), ("three", "b")):
        views.note(client_id, wants_view(orders=expression))
    caplog.clear()
    views.note("four", wants_view(orders="b"))

    assert caplog.messages == []


def test_retry_topic_and_members_without_topics_have_no_say(
    views: MemberSubscriptions, caplog: pytest.LogCaptureFixture
) -> None:
    views.note("reader", Subscriptions())
    views.note("one", wants_view(**{"orders": "*", "%RETRY%g": "*"}))
    views.note("two", wants_view(orders="*"))

    assert caplog.messages == []


def test_member_that_left_has_no_say(
    views: MemberSubscriptions, caplog: pytest.LogCaptureFixture
) -> None:
    views.note("one", wants_view(orders="a"))
    views.forget("one")
    views.note("two", wants_view(orders="b"))

    assert (caplog.messages, list(views.by_client())) == ([], ["two"])


def test_log_is_bounded(views: MemberSubscriptions, caplog: pytest.LogCaptureFixture) -> None:
    views.note("one", wants_view(orders="*"))
    views.note("two", wants_view(**{f"t{n}": "x" * 10_000 for n in range(100)}))

    assert len(caplog.messages) == LOGGED_TOPICS_MAX
    assert max(map(len, caplog.messages)) < 500


def register(registry: ConsumerRegistry, peer: Connection, client_id: str, **topics: str) -> None:
    registry.register(
        peer, client_id, "g", kind="", model="", consume_from="", subscriptions=wants(**topics)
    )


async def test_members_view_goes_with_its_last_connection() -> None:
    registry = ConsumerRegistry(ManualClock())
    stays, old, new = connection(), connection(), connection()
    register(registry, stays, "one", orders="*")
    register(registry, old, "two", orders="*")
    register(registry, new, "two", orders="*")
    group = registry.group("g")
    assert group is not None

    registry.connection_closed(old)
    assert list(group.views.by_client()) == ["one", "two"]
    registry.connection_closed(new)
    assert list(group.views.by_client()) == ["one"]


async def test_heartbeat_without_subscriptions_keeps_the_members_view() -> None:
    registry = ConsumerRegistry(ManualClock())
    peer = connection()
    register(registry, peer, "one", orders="a")
    registry.register(peer, "one", "g", kind="", model="", consume_from="", subscriptions=None)

    group = registry.group("g")
    assert group is not None
    assert [w.expression for w in group.views.by_client()["one"]] == ["a"]


async def test_member_that_takes_another_name_leaves_no_view_behind() -> None:
    registry = ConsumerRegistry(ManualClock())
    peer = connection()
    register(registry, peer, "one", orders="*")
    register(registry, peer, "two", orders="*")

    group = registry.group("g")
    assert group is not None
    assert list(group.views.by_client()) == ["two"]


async def test_list_of_connections_tells_each_members_subscriptions(tmp_path: Path) -> None:
    broker = BrokerParts(tmp_path)
    broker.join("g", "one", "orders")
    broker.join("g", "two", "orders", "stock")
    answer = await broker.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g")
    broker.store.close()

    members = ConsumerConnection.decode(answer.body).subscriptions_by_client
    assert members is not None
    assert {client_id: sorted(topics) for client_id, topics in members.items()} == {
        "one": ["orders"],
        "two": ["orders", "stock"],
    }
    assert members["one"]["orders"].sub_string == "*"
