"""The messages of a queue in flight: offsets to commit, order, delays, and limits."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.client._consuming.pulls import ReplicaChoice
from cometmq.client._push.process_queue import FetchedBatch, Limits, ProcessQueue
from cometmq.client.settings import PushSettings
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import LogOffset, QueueOffset
from cometmq.model.queue import MessageQueue
from support.clients.consumer_inputs import QUEUE, stored


class Clock:
    """A steady clock that stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def message(offset: int) -> StoredMessage:
    """A message at an offset of the queue."""
    found = stored(offset, body=b"12345")
    found.log_offset = LogOffset(offset * 100)
    return found


def messages(*offsets: int) -> list[StoredMessage]:
    """Messages at these offsets."""
    return [message(offset) for offset in offsets]


def offsets(found: list[StoredMessage]) -> list[int]:
    """The offsets of messages."""
    return [each.queue_offset for each in found]


def filled(*at: int) -> ProcessQueue:
    """A process queue with messages at these offsets."""
    queue = ProcessQueue(QUEUE)
    queue.put(messages(*at))
    return queue


class Consumer:
    """Puts messages into a queue and finishes them by their offsets, as workers do by position."""

    def __init__(self, *at: int) -> None:
        self.queue = ProcessQueue(QUEUE)
        self._where: dict[int, tuple[FetchedBatch, int]] = {}
        self.put(*at)

    def put(self, *at: int) -> None:
        batch = self.queue.put(messages(*at))
        if batch is not None:
            fresh = enumerate(offsets(batch.messages))
            self._where |= {offset: (batch, index) for index, offset in fresh}

    def finish(self, *at: int) -> int | None:
        for offset in at:
            batch, index = self._where[offset]
            batch.finish(index, index + 1)
            assert not batch.is_open(index)
        return self.queue.committable()


def test_the_commit_stops_at_the_first_unfinished_message() -> None:
    consumer = Consumer(3, 4, 5, 9)

    assert consumer.finish(4, 5) == 3
    assert consumer.finish(3) == 9
    assert consumer.finish(9) == 10


def test_a_part_of_a_batch_is_finished_at_once() -> None:
    queue = ProcessQueue(QUEUE)
    batch = queue.put(messages(3, 4, 5, 9))
    assert batch is not None

    batch.finish(1, 3)
    assert (queue.committable(), queue.count) == (3, 2)
    batch.finish(0, 3)
    assert (queue.committable(), queue.count) == (9, 1)


def test_nothing_may_be_committed_of_a_queue_that_was_forgotten() -> None:
    consumer = Consumer(3)
    consumer.queue.clear()

    assert consumer.finish(3) is None
    assert (consumer.queue.count, consumer.queue.size_bytes) == (0, 0)


def test_nothing_may_be_committed_of_a_queue_that_had_no_message() -> None:
    assert ProcessQueue(QUEUE).committable() is None


def test_messages_finished_twice_count_once() -> None:
    consumer = Consumer(3, 4)

    consumer.finish(3)
    consumer.finish(3)

    assert (consumer.queue.count, consumer.queue.size_bytes) == (1, 100)


def test_finished_messages_are_not_kept_for_those_that_are_not() -> None:
    queue = ProcessQueue(QUEUE)
    batch = queue.put(messages(3, 4))
    assert batch is not None

    batch.finish(0, 1)
    assert [each and each.queue_offset for each in batch.messages] == [None, 4]
    batch.finish(1, 2)
    assert batch.messages == [None, None]


def test_the_span_reaches_from_the_first_to_the_last_unfinished_message() -> None:
    consumer = Consumer(10, 11, 50)
    consumer.put(60)
    assert consumer.queue.span == 50

    consumer.finish(10)
    assert consumer.queue.span == 49
    consumer.finish(50, 60)
    assert consumer.queue.span == 0


def test_a_message_that_is_there_already_stays_and_is_not_counted_again() -> None:
    consumer = Consumer(3, 4)

    consumer.put(4, 5)
    assert consumer.queue.put(messages(3)) is None

    assert consumer.queue.count == 3
    assert consumer.queue.first_unconsumed == 3
    assert consumer.finish(3, 4) == 5


def test_an_ordered_consumer_begins_once_until_it_finds_nothing() -> None:
    queue = ProcessQueue(QUEUE)
    assert not queue.begin_ordered()

    queue.put(messages(1, 2))
    assert queue.begin_ordered()
    queue.put(messages(3))
    assert not queue.begin_ordered()
    assert offsets(queue.take(2)) == [1, 2]
    assert offsets(queue.take(2)) == [3]
    queue.put(messages(4))
    assert not queue.begin_ordered()
    assert offsets(queue.take(9)) == [4]
    assert queue.take(9) == []
    queue.put(messages(5))
    assert queue.begin_ordered()


def test_taking_open_messages_out_returns_the_offset_after_them() -> None:
    queue = filled(1, 2, 3)
    queue.take(2)

    assert queue.count == 3
    assert queue.take_open() == 3
    assert queue.count == 1
    assert queue.take_open() is None


def test_open_messages_come_again_first_after_a_rollback() -> None:
    queue = filled(1, 2, 3)
    queue.take(2)

    queue.rollback()

    assert offsets(queue.take(3)) == [1, 2, 3]
    assert queue.take_open() == 4


def test_some_open_messages_can_come_again_while_others_stay_open() -> None:
    queue = filled(1, 2, 3)
    taken = queue.take(2)

    queue.put_back(taken[1:])

    assert offsets(queue.take(9)) == [2, 3]
    assert queue.take_open() == 4


def test_messages_that_come_again_one_after_the_other_come_in_order() -> None:
    queue = filled(1, 2, 3, 4)
    taken = queue.take(3)

    queue.put_back(taken[:1])
    queue.put_back(taken[1:])

    assert offsets(queue.take(9)) == [1, 2, 3, 4]
    assert (queue.count, queue.take_open(), queue.count) == (4, 5, 0)


def test_a_lock_is_fresh_for_thirty_seconds() -> None:
    clock = Clock()
    queue = ProcessQueue(QUEUE, now=clock)
    assert not queue.lock_is_fresh()
    queue.note_lock()

    clock.now += 30
    assert queue.lock_is_fresh()
    clock.now += 0.001
    assert not queue.lock_is_fresh()


def test_a_lock_is_not_fresh_after_the_machine_was_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = ProcessQueue(QUEUE, now=Clock())
    queue.note_lock()
    woken_ns = time.time_ns() + 31 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: woken_ns)

    assert not queue.lock_is_fresh()
    queue.note_lock()
    assert queue.lock_is_fresh()


@pytest.mark.parametrize("leave", ["finish", "take_open", "drop", "clear"])
def test_removed_messages_are_reported_to_the_pull_loop(leave: str) -> None:
    queue = ProcessQueue(QUEUE)
    batch = queue.put(messages(1, 2))
    assert batch is not None
    told: list[bool] = []
    queue.on_removed = lambda: told.append(True)

    if leave == "finish":
        batch.finish(0, 1)
    else:
        queue.take(1)
        getattr(queue, leave)()

    assert told == [True]


def test_administrators_are_told_what_is_fetched_and_what_is_open() -> None:
    queue = filled(4, 5, 6)
    queue.take(1)
    queue.drop()

    told = queue.info(QueueOffset(3))

    assert (told.commit_offset, told.cached_msg_count) == (3, 2)
    assert (told.cached_msg_min_offset, told.cached_msg_max_offset) == (5, 6)
    assert (told.transaction_msg_min_offset, told.transaction_msg_count) == (4, 1)
    assert told.droped
    assert not told.locked


@given(st.data())
def test_commits_never_pass_an_unfinished_message(data: st.DataObject) -> None:
    """Against a model: the lowest unfinished offset, or the one behind the highest."""
    consumer, next_offset = Consumer(), 0
    queue = consumer.queue
    unfinished: list[int] = []
    for _ in range(data.draw(st.integers(1, 12))):
        gaps = data.draw(st.lists(st.integers(1, 4), max_size=6))
        fresh = []
        for gap in gaps:
            next_offset += gap
            fresh.append(next_offset)
        consumer.put(*fresh)
        unfinished += fresh
        if not unfinished:
            continue
        done = data.draw(st.lists(st.sampled_from(unfinished), unique=True))
        unfinished = [offset for offset in unfinished if offset not in done]
        told = consumer.finish(*done)
        assert told == (min(unfinished) if unfinished else next_offset + 1)
        assert queue.count == len(unfinished)
        assert queue.size_bytes == 100 * len(unfinished)
        assert queue.first_unconsumed == (min(unfinished) if unfinished else None)
        assert queue.span == (max(unfinished) - min(unfinished) if unfinished else 0)


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
