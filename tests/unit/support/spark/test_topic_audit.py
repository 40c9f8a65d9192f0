"""The audit of written topics finds what it is there to find."""

from __future__ import annotations

import pytest

from cometmq.model.message import StoredMessage
from support.clients.consumer_inputs import stored as message_at
from support.spark.topic_audit import Audit, first_ones, order_by_key


def messages(*pairs: tuple[str, str]) -> list[StoredMessage]:
    """Messages of body and unique key."""
    return [
        message_at(place, body=body.encode(), UNIQ_KEY=key)
        for place, (body, key) in enumerate(pairs)
    ]


def test_twins_with_one_key_are_fine_and_counted() -> None:
    audit = Audit.of("ab", messages(("a", "1"), ("b", "2"), ("a", "1")))
    audit.check()
    assert audit.repeated == 1


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([("a", "1")], "1 rows are lost, such as ..b"),
        ([("a", "1"), ("b", "2"), ("c", "3")], "nobody wrote ..c"),
        ([("a", "1"), ("b", "2"), ("a", "3")], "twins without a common key: ..a"),
        ([("a", "1"), ("b", "1")], "twins without a common key: ..1"),
    ],
)
def test_what_is_wrong_is_named(pairs: list[tuple[str, str]], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        Audit.of("ab", messages(*pairs)).check()


def test_first_ones_keep_the_order_of_first_appearance() -> None:
    found = first_ones(messages(("a", "1"), ("b", "2"), ("a", "1"), ("c", "3"), ("b", "2")))
    assert [message.body for message in found] == [b"a", b"b", b"c"]


def test_a_key_in_two_queues_is_found() -> None:
    queues = {("x", 0): messages(("a1", "1")), ("x", 1): messages(("a2", "2"))}
    with pytest.raises(AssertionError, match="a is in"):
        order_by_key(queues, lambda message: message.body.decode()[0])
    assert order_by_key(queues, lambda message: message.body.decode()) == {
        "a1": ["a1"],
        "a2": ["a2"],
    }
