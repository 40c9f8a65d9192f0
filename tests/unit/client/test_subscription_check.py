"""Members of a group with different subscriptions are found."""

from __future__ import annotations

import pytest

from cometmq.client.filters import Filter
from cometmq.client.subscription_check import Difference, differences
from cometmq.protocol.bodies.client import ConsumerConnection, MemberSubscription
from cometmq.protocol.bodies.heartbeat import SubscriptionData

ME = "me@1"
OTHER = "other@2"


def members(**topics: str) -> ConsumerConnection:
    """What our broker answers: this member's topics, and another's."""
    other = {topic: MemberSubscription(sub_string=text) for topic, text in topics.items()}
    return ConsumerConnection(subscriptions_by_client={ME: {}, OTHER: other})


def merged(**topics: str) -> ConsumerConnection:
    """What RocketMQ's broker answers: one table for the group."""
    return ConsumerConnection(
        subscription_table={
            topic: SubscriptionData(topic=topic, sub_string=text) for topic, text in topics.items()
        }
    )


def wanted(**topics: str) -> dict[str, Filter]:
    return {topic: Filter.tags(text) for topic, text in topics.items()}


def found(table: ConsumerConnection, mine: dict[str, Filter]) -> list[Difference]:
    return list(differences(table, mine, me=ME))


@pytest.mark.parametrize(
    ("theirs", "mine"),
    [("*", "*"), ("*", ""), ("a || b", "b||a"), ("a || b", "b || a || b"), ("a", " a ")],
)
def test_filters_that_mean_the_same_agree(theirs: str, mine: str) -> None:
    assert found(members(orders=theirs), wanted(orders=mine)) == []


def test_another_expression_is_told_with_both_texts() -> None:
    assert found(members(orders="paid"), wanted(orders="new || paid")) == [
        Difference(OTHER, "orders", "paid", "new || paid")
    ]


def test_topic_of_one_member_only_is_told() -> None:
    assert found(members(orders="*", stock="*"), wanted(orders="*", prices="a")) == [
        Difference(OTHER, "prices", None, "a"),
        Difference(OTHER, "stock", "*", None),
    ]


def test_tags_and_sql_of_the_same_text_differ() -> None:
    assert found(members(orders="a"), {"orders": Filter.sql("a")}) == [
        Difference(OTHER, "orders", "a", "a")
    ]


@pytest.mark.parametrize("merges", [False, True], ids=["members", "merged"])
@pytest.mark.parametrize(
    ("theirs", "mine", "differ"),
    [("class", "class", False), ("class", "tags", True), ("tags", "class", True)],
)
def test_class_filters_are_told_from_tags(
    theirs: str, mine: str, differ: bool, merges: bool
) -> None:
    """In a heartbeat, both have the type TAG."""
    filters = {"class": Filter.of_class("Dear", "class Dear: ..."), "tags": Filter.tags("Dear")}
    data = filters[theirs].data("orders")
    member = MemberSubscription(
        sub_string=data.sub_string, class_filter_mode=data.class_filter_mode
    )
    table = (
        ConsumerConnection(subscription_table={"orders": data})
        if merges
        else ConsumerConnection(subscriptions_by_client={OTHER: {"orders": member}})
    )
    text = {"class": "class Dear", "tags": "Dear"}

    expected = Difference("" if merges else OTHER, "orders", text[theirs], text[mine])
    assert found(table, {"orders": filters[mine]}) == ([expected] if differ else [])


def test_class_filters_are_compared_by_name() -> None:
    """A name that is no tag expression, too, is compared as it is."""
    table = merged(orders="a || b")
    table.subscription_table["orders"].class_filter_mode = True

    assert found(table, {"orders": Filter.of_class("b || a", "class A: ...")}) != []


def test_retry_topic_does_not_count() -> None:
    table = ConsumerConnection(
        subscriptions_by_client={OTHER: {"%RETRY%g": MemberSubscription(sub_string="*")}}
    )

    assert found(table, {}) == []


def test_own_entry_does_not_count() -> None:
    table = ConsumerConnection(
        subscriptions_by_client={ME: {"old": MemberSubscription(sub_string="*")}}
    )

    assert found(table, wanted(orders="*")) == []


@pytest.mark.parametrize("table", [members(), merged()], ids=["members", "merged"])
def test_those_without_topics_have_no_say(table: ConsumerConnection) -> None:
    """A broker knows a member a moment before it knows what the member wants."""
    assert found(table, wanted(orders="*")) == []


def test_groups_table_stands_for_the_others_where_members_are_not_told() -> None:
    assert found(merged(stock="*"), wanted(orders="*")) == [
        Difference("", "orders", None, "*"),
        Difference("", "stock", "*", None),
    ]


def test_difference_says_who_and_what() -> None:
    named = Difference(OTHER, "orders", None, "a")
    unnamed = Difference("", "orders", "b", "a")

    assert str(named) == "member other@2: topic orders: theirs not subscribed, mine 'a'"
    assert str(unnamed) == "the group's table at the broker: topic orders: theirs 'b', mine 'a'"
