"""A queue's messages on their way: what may be committed, what an ordered consumer gets, lateness.

Every property is checked beside a plain model: sorted offsets.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.client._push.process_queue import FetchedBatch, ProcessQueue
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import LogOffset, QueueOffset
from cometmq.model.queue import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 0)


class Clock:
    """A steady clock that stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def message(offset: int) -> StoredMessage:
    """A message at an offset of the queue."""
    return StoredMessage(
        topic=QUEUE.topic,
        body=b"12345",
        properties={},
        queue_id=0,
        queue_offset=QueueOffset(offset),
        log_offset=LogOffset(offset * 100),
        flag=0,
        sys_flag=0,
        born_time_ms=0,
        born_host="127.0.0.1:1",
        store_time_ms=0,
        store_host="127.0.0.1:2",
        reconsume_times=0,
        prepared_offset=0,
        body_crc=0,
        size_bytes=100,
        offset_message_id="",
        broker_name=QUEUE.broker_name,
    )


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
