"""Differences between the subscriptions of members."""

from __future__ import annotations

from cometmq.console.groups.members import NAMED_MAX, NOT_SUBSCRIBED, Difference, differences
from cometmq.protocol.bodies.client import MemberSubscription


def tags(expression: str) -> MemberSubscription:
    return MemberSubscription(sub_string=expression)


def test_each_subscription_to_a_topic_is_named_with_its_members() -> None:
    sql = MemberSubscription(sub_string="a = 1", expression_type="SQL92")
    said = {
        "one": {"orders": tags("a || b"), "same": tags("*")},
        "two": {"orders": tags("b||a"), "same": tags("")},
        "three": {"orders": sql, "same": tags("*"), "extra": tags("*")},
    }
    assert differences(said) == [
        Difference("extra", "", NOT_SUBSCRIBED, ["one", "two"], 2),
        Difference("extra", "TAG", "*", ["three"], 1),
        Difference("orders", "TAG", "a || b", ["one", "two"], 2),
        Difference("orders", "SQL92", "a = 1", ["three"], 1),
    ]


def test_a_difference_names_some_of_many_members() -> None:
    said = {f"member-{number:02}": {"orders": tags("a")} for number in range(40)}
    said["other"] = {"orders": tags("b")}
    many, one = differences(said)
    assert (len(many.members), many.members_total) == (NAMED_MAX, 40)
    assert (one.members, one.members_total) == (["other"], 1)
