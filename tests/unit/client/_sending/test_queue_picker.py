"""The choice of the queue of a message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.client._sending.queue_picker import KeySelector, RoundRobin, chosen
from cometmq.client.errors import QueueNotFoundError
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.protocol.hashing import java_hash

QUEUES = [MessageQueue("t", broker, number) for broker in "ab" for number in range(2)]
MESSAGE = Message(topic="t", body=b"x")


def test_round_robin_takes_every_queue_once_in_a_round() -> None:
    turn = RoundRobin()

    assert sorted(turn.pick(QUEUES) for _ in QUEUES) == QUEUES


def test_round_robin_leaves_the_broker_that_failed_when_there_is_another() -> None:
    turn = RoundRobin()

    picks = [turn.pick(QUEUES, avoid={"a"}) for _ in range(8)]

    assert {queue.broker_name for queue in picks} == {"b"}


def test_round_robin_goes_back_to_the_only_broker_there_is() -> None:
    only = QUEUES[:2]

    assert RoundRobin().pick(only, avoid={"a"}) in only


@given(st.text(min_size=1), st.integers(min_value=1, max_value=64))
def test_a_key_picks_the_queue_that_java_picks(key: str, count: int) -> None:
    """Java: the absolute value of the remainder of the hash, which keeps the hash's sign."""
    queues = [MessageQueue("t", "a", number) for number in range(count)]
    code = java_hash(key)
    remainder = abs(code) % count * (1 if code >= 0 else -1)

    assert KeySelector(key)(queues, MESSAGE) == queues[abs(remainder)]


def test_a_selector_may_only_pick_what_it_was_offered() -> None:
    with pytest.raises(QueueNotFoundError, match="t@c:0"):
        chosen(lambda queues, message: MessageQueue("t", "c", 0), QUEUES, MESSAGE)
