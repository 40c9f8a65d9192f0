"""Offsets of a pull consumer: handed out, finished, committed."""

from __future__ import annotations

import threading

import pytest

from cometmq.client._pull.fetcher import Batch
from cometmq.client._pull.positions import LISTED_MAX, Positions, check_assigned
from cometmq.client.errors import NotAssignedError
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from support.clients.consumer_inputs import stored_in

ONE, TWO = MessageQueue("t", "a", 1), MessageQueue("t", "a", 2)


def batch(queue: MessageQueue, *offsets: int, ends: int) -> Batch:
    return Batch(queue, [stored_in(queue, offset) for offset in offsets], QueueOffset(ends))


A, B, C = (threading.Thread(name=name) for name in "abc")
"""Readers; they need not run to be told apart."""


def nothing_waits(queue: MessageQueue) -> None:
    """The messages that wait of a queue."""


def test_a_message_is_finished_when_its_reader_asks_for_the_next_one() -> None:
    positions = Positions(nothing_waits)
    rest = batch(ONE, 3, 4, ends=9)
    first = rest.split_off(1)

    positions.finish(A)
    positions.deliver(A, first)
    assert (positions.position(ONE), positions.finished(ONE)) == (4, None)

    positions.finish(A)
    positions.deliver(A, rest)
    assert (positions.position(ONE), positions.finished(ONE)) == (9, 4)


def test_the_last_message_of_a_batch_carries_over_what_was_not_wanted_behind_it() -> None:
    positions = Positions(nothing_waits)

    positions.deliver(A, batch(ONE, 3, 7, ends=20))
    positions.finish(A)

    assert positions.to_commit() == {ONE: 20}


def test_everything_before_the_lowest_message_in_hand_is_finished() -> None:
    positions = Positions(nothing_waits)
    positions.deliver(A, batch(ONE, 5, ends=6))
    positions.deliver(B, batch(ONE, 6, 7, ends=8))

    positions.finish(B)
    assert positions.to_commit() == {ONE: 5}
    positions.deliver(B, batch(ONE, 9, ends=10))
    positions.finish(A)
    assert positions.to_commit() == {ONE: 9}
    positions.finish(B)
    assert positions.to_commit() == {ONE: 10}


def test_what_another_queue_has_in_hand_keeps_nothing_back() -> None:
    positions = Positions(nothing_waits)
    positions.deliver(A, batch(TWO, 5, ends=6))
    positions.deliver(B, batch(ONE, 6, ends=7))

    positions.finish(B)

    assert positions.to_commit() == {ONE: 7}


def test_a_batch_without_messages_is_finished_at_once() -> None:
    positions = Positions(nothing_waits)

    positions.pass_over(batch(ONE, ends=50))

    assert positions.to_commit() == {ONE: 50}


def test_a_batch_without_messages_finishes_nothing_that_is_in_hand() -> None:
    positions = Positions(nothing_waits)
    positions.deliver(A, batch(ONE, 3, ends=4))

    positions.pass_over(batch(ONE, ends=50))
    assert positions.to_commit() == {ONE: 3}

    positions.finish(A)
    assert positions.to_commit() == {ONE: 50}


def test_what_was_committed_is_not_due_again() -> None:
    positions = Positions(nothing_waits)
    positions.deliver(A, batch(ONE, 0, ends=1))
    positions.finish(A)

    positions.committed(ONE, QueueOffset(1))

    assert positions.to_commit() == {}
    positions.set_finished(ONE, QueueOffset(0))
    assert positions.to_commit([ONE, TWO]) == {ONE: 0}


def test_a_move_counts_at_once_and_drops_what_was_in_hand() -> None:
    positions = Positions(nothing_waits)
    positions.deliver(A, batch(ONE, 0, ends=1))

    positions.move(ONE, QueueOffset(7))
    dropped = positions.finish(A)

    assert dropped is not None
    assert dropped.dropped
    assert (positions.position(ONE), positions.finished(ONE)) == (7, 7)


def test_a_dropped_queue_does_not_take_another_ones_messages_along() -> None:
    positions = Positions(nothing_waits)
    positions.deliver(A, batch(TWO, 0, ends=2))

    positions.drop(ONE)
    positions.finish(A)

    assert positions.to_commit() == {TWO: 2}


def test_what_was_handed_out_last_may_be_taken_back() -> None:
    waiting: dict[MessageQueue, int] = {}
    positions = Positions(waiting.get)
    positions.deliver(A, batch(ONE, 0, ends=1))
    positions.finish(A)
    positions.deliver(A, batch(ONE, 1, 2, ends=3))

    hand = positions.take_back(A)
    positions.finish(A)

    assert hand is not None
    assert [message.queue_offset for message in hand.messages] == [1, 2]
    assert (positions.position(ONE), positions.to_commit()) == (1, {ONE: 1})


def test_what_was_taken_back_is_not_finished_by_what_comes_behind_it() -> None:
    waiting: dict[MessageQueue, int] = {}
    positions = Positions(waiting.get)
    positions.deliver(A, batch(ONE, 5, ends=6))
    positions.deliver(B, batch(ONE, 6, ends=7))

    positions.take_back(A)
    waiting[ONE] = 5
    positions.finish(B)
    assert (positions.position(ONE), positions.fetch_from(ONE), positions.to_commit()) == (
        7,
        5,
        {ONE: 5},
    )

    del waiting[ONE]
    positions.deliver(B, batch(ONE, 5, ends=6))
    assert positions.position(ONE) == 7
    positions.finish(B)
    assert positions.to_commit() == {ONE: 7}


def test_what_is_finished_is_not_taken_back() -> None:
    positions = Positions(nothing_waits)
    positions.deliver(A, batch(ONE, 0, ends=1))
    positions.finish(A)

    assert positions.take_back(A) is None
    assert positions.to_commit() == {ONE: 1}


def test_what_waits_is_not_finished_though_fetching_ended_before_the_commit() -> None:
    waiting: dict[MessageQueue, int] = {}
    positions = Positions(waiting.get)
    positions.deliver(A, batch(ONE, 0, ends=1))
    positions.deliver(B, batch(ONE, 1, ends=2))
    positions.take_back(A)
    waiting[ONE] = 0
    positions.finish(B)

    positions.count_finished()
    waiting.clear()

    assert positions.to_commit() == {ONE: 0}


def test_a_declared_offset_overrides_what_was_finished_before() -> None:
    positions = Positions(nothing_waits)
    positions.deliver(A, batch(ONE, 0, ends=5))
    positions.finish(A)

    positions.set_finished(ONE, QueueOffset(2))

    assert positions.to_commit() == {ONE: 2}


def test_nothing_of_a_dropped_queue_is_counted() -> None:
    positions = Positions(nothing_waits)
    positions.deliver(A, batch(ONE, 0, ends=5))
    positions.finish(A)

    positions.drop(ONE)
    positions.deliver(A, batch(ONE, 0, ends=1))

    assert positions.to_commit() == {}


def test_the_error_of_a_queue_that_is_not_assigned_lists_those_that_are() -> None:
    check_assigned(ONE, [ONE])
    with pytest.raises(NotAssignedError, match=r"assigned are: none\. Use one .* or call assign"):
        check_assigned(ONE, [])
    many = [MessageQueue("t", "b", number) for number in range(LISTED_MAX + 2)]
    with pytest.raises(NotAssignedError, match=r"assigned are: t@b:0, .*t@b:7 and 2 more\. "):
        check_assigned(MessageQueue("u", "b", 0), many)


async def test_a_released_queue_counts_what_its_readers_finish_in_time_and_in_order() -> None:
    positions = Positions(nothing_waits)
    positions.deliver(A, batch(ONE, 5, ends=6))
    positions.deliver(B, batch(ONE, 6, 7, ends=8))
    positions.deliver(C, batch(ONE, 8, ends=9))

    released = positions.release(ONE)
    assert positions.position(ONE) is None
    positions.finish(B)
    assert await released.finished(0.0) is None, "the lowest message is not finished"
    positions.finish(A)
    assert await released.finished(0.0) == 8
    positions.take_back(C)
    assert await released.finished(60.0) == 8, "its reader has failed"
    assert positions.to_commit() == {}


async def test_a_released_queue_has_what_was_finished_before() -> None:
    positions = Positions(nothing_waits)
    positions.deliver(A, batch(ONE, 5, ends=6))
    positions.finish(A)
    positions.deliver(A, batch(TWO, 5, ends=6))

    released = positions.release(ONE)

    assert (released.offset, released.last) == (6, [])
    assert await released.finished(60.0) == 6


def test_a_queue_is_moved_until_the_offset_is_committed_that_was_chosen() -> None:
    positions = Positions(nothing_waits)
    positions.move(ONE, QueueOffset(3))
    positions.set_finished(TWO, QueueOffset(4))
    assert positions.is_moved(ONE)
    assert positions.is_moved(TWO)

    positions.committed(ONE, QueueOffset(3))
    positions.drop(TWO)

    assert not positions.is_moved(ONE)
    assert not positions.is_moved(TWO)
