"""The limits on a queue's count, size and span, for one queue and for a topic."""

from __future__ import annotations

import pytest

from cometmq.client._consuming.pulls import ReplicaChoice
from cometmq.client._push.process_queue import Limits, ProcessQueue
from cometmq.client.settings import PushSettings
from cometmq.model.queue import MessageQueue
from support.consuming import QUEUE, stored

MIB = 1024 * 1024


def holding(count: int, *, bytes_each: int = 100, last: int | None = None) -> ProcessQueue:
    """A queue with messages, the last of them at an offset farther away if asked for."""
    offsets = [*range(count - 1), count - 1 if last is None else last]
    messages = [stored(offset) for offset in offsets]
    for message in messages:
        message.size_bytes = bytes_each
    queue = ProcessQueue(QUEUE)
    queue.put(messages)
    return queue


@pytest.mark.parametrize(("count", "reached"), [(10, False), (11, True)])
def test_a_queue_reaches_its_limit_above_its_count(count: int, reached: bool) -> None:
    limits = Limits(PushSettings(queue_messages_max=10), spans=True)

    assert bool(limits.reached_limit(holding(count))) is reached


@pytest.mark.parametrize(("bytes_each", "reached"), [(MIB, False), (MIB + 1, True)])
def test_a_queue_reaches_its_limit_above_its_size(bytes_each: int, reached: bool) -> None:
    limits = Limits(PushSettings(queue_mib_max=2), spans=True)

    assert bool(limits.reached_limit(holding(2, bytes_each=bytes_each))) is reached


@pytest.mark.parametrize(("last", "reached"), [(20, False), (21, True)])
def test_a_queue_reaches_its_limit_above_its_span(last: int, reached: bool) -> None:
    limits = Limits(PushSettings(span_max=20), spans=True)

    assert bool(limits.reached_limit(holding(2, last=last))) is reached


def test_the_span_does_not_matter_when_consuming_in_order() -> None:
    limits = Limits(PushSettings(span_max=20), spans=False)

    assert limits.reached_limit(holding(2, last=5_000)) is None


def test_the_reason_is_told() -> None:
    limits = Limits(PushSettings(queue_messages_max=1), spans=True)

    assert limits.reached_limit(holding(2)) == "2 messages, more than 1"


def test_a_topics_limits_are_divided_among_its_queues_and_replace_theirs() -> None:
    limits = Limits(PushSettings(topic_messages_max=100, topic_mib_max=10), spans=True)

    limits.share(QUEUE.topic, 3)

    assert limits.limits_of(QUEUE.topic) == (33, 3 * MIB)
    assert limits.limits_of("other") == (1000, 100 * MIB)


def test_a_share_of_a_topic_is_never_less_than_one() -> None:
    limits = Limits(PushSettings(topic_messages_max=2, topic_mib_max=1), spans=True)

    limits.share(QUEUE.topic, 16)

    assert limits.limits_of(QUEUE.topic) == (1, MIB)


def test_queues_keep_their_own_limits_when_the_topic_has_none() -> None:
    limits = Limits(PushSettings(queue_messages_max=7), spans=True)

    limits.share(QUEUE.topic, 4)

    assert limits.limits_of(QUEUE.topic) == (7, 100 * MIB)


def test_whoever_waits_is_told_when_a_share_has_changed() -> None:
    limits, told = Limits(PushSettings(), spans=True), []
    limits.waiting.add(lambda: told.append(True))

    limits.share(QUEUE.topic, 4)

    assert told == [True]


def test_a_queue_is_pulled_from_the_replica_its_broker_advised() -> None:
    choice, other = ReplicaChoice(), MessageQueue("t", "b", 0)

    choice.advise(QUEUE, 1)

    assert (choice.of(QUEUE), choice.of(other)) == (1, 0)
    choice.advise(QUEUE, 0)
    assert choice.of(QUEUE) == 0


def test_a_forced_replica_wins_over_all_advice() -> None:
    choice = ReplicaChoice()
    choice.advise(QUEUE, 1)

    choice.forced = 2
    assert choice.of(QUEUE) == 2
    choice.forced = None
    assert choice.of(QUEUE) == 1
