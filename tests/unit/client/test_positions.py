"""How far an application has come: handed out, finished, committed."""

from __future__ import annotations

from cometmq.client.fetching import Batch
from cometmq.client.pull.positions import Positions
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import LogOffset, QueueOffset
from cometmq.model.queue import MessageQueue

ONE, TWO = MessageQueue("t", "a", 1), MessageQueue("t", "a", 2)


def batch(queue: MessageQueue, *offsets: int, ends: int) -> Batch:
    messages = [
        StoredMessage(
            topic=queue.topic, body=b"x", properties={}, queue_id=queue.queue_id,
            queue_offset=QueueOffset(offset), log_offset=LogOffset(0), flag=0, sys_flag=0,
            born_time_ms=0, born_host="", store_time_ms=0, store_host="", reconsume_times=0,
            prepared_offset=0, body_crc=0, size_bytes=0, offset_message_id="", broker_name="a",
        )
        for offset in offsets
    ]  # fmt: skip
    return Batch(queue, messages, QueueOffset(ends))


def test_a_message_is_finished_when_the_next_one_is_asked_for() -> None:
    positions = Positions()
    positions.take(batch(ONE, 3, 4, ends=9))

    positions.finish()
    positions.hand_out_one()
    assert (positions.position(ONE), positions.finished(ONE)) == (4, None)

    positions.finish()
    positions.hand_out_one()
    assert (positions.position(ONE), positions.finished(ONE)) == (9, 4)
    assert not positions.waiting


def test_the_last_message_of_a_batch_carries_over_what_was_not_wanted_behind_it() -> None:
    positions = Positions()
    positions.take(batch(ONE, 3, 7, ends=20))

    positions.hand_out_all()
    positions.finish()

    assert positions.due() == {ONE: 20}


def test_a_batch_without_messages_is_finished_at_once() -> None:
    positions = Positions()

    positions.take(batch(ONE, ends=50))

    assert not positions.waiting
    assert positions.due() == {ONE: 50}


def test_what_was_committed_is_not_due_again() -> None:
    positions = Positions()
    positions.take(batch(ONE, 0, ends=1))
    positions.hand_out_all()
    positions.finish()

    positions.committed(ONE, QueueOffset(1))

    assert positions.due() == {}
    positions.declare(ONE, QueueOffset(0))
    assert positions.due([ONE, TWO]) == {ONE: 0}


def test_a_move_counts_at_once_and_drops_what_was_in_hand() -> None:
    positions = Positions()
    positions.take(batch(ONE, 0, 1, ends=2))
    positions.hand_out_one()

    positions.move(ONE, QueueOffset(7))
    positions.finish()

    assert (positions.position(ONE), positions.finished(ONE)) == (7, 7)
    assert not positions.waiting


def test_a_dropped_queue_does_not_take_another_ones_batch_along() -> None:
    positions = Positions()
    positions.take(batch(TWO, 0, 1, ends=2))
    positions.hand_out_one()

    positions.drop(ONE)
    assert positions.waiting
    positions.drop(TWO)
    assert not positions.waiting
    assert positions.position(TWO) is None


def test_a_batch_that_is_set_aside_goes_on_behind_what_was_handed_out() -> None:
    positions = Positions()
    positions.take(batch(ONE, 0, 1, 2, ends=3))
    positions.hand_out_one()

    assert positions.set_aside(TWO) is None
    rest = positions.set_aside(ONE)

    assert rest is not None
    assert [message.queue_offset for message in rest.messages] == [1, 2]
    assert (rest.next_offset, positions.position(ONE)) == (3, 1)
    assert positions.set_aside(ONE) is None


def test_what_was_handed_out_last_may_be_taken_back() -> None:
    positions = Positions()
    positions.take(batch(ONE, 0, 1, 2, ends=3))
    positions.hand_out_one()
    positions.finish()
    positions.hand_out_all()

    positions.take_back()
    positions.finish()

    assert (positions.position(ONE), positions.due()) == (1, {ONE: 1})
    assert [message.queue_offset for message in positions.hand_out_all()] == [1, 2]


def test_what_is_finished_is_not_taken_back() -> None:
    positions = Positions()
    positions.take(batch(ONE, 0, ends=1))
    positions.hand_out_one()
    positions.finish()

    positions.take_back()

    assert not positions.waiting
    assert positions.due() == {ONE: 1}
