"""Messages that wait: the states of timer messages, and half messages without a decision."""

from __future__ import annotations

import pytest

from cometmq.client.admin.waiting_messages import (
    TimerState,
    decided_offsets,
    timer_state,
    timers_in,
    undecided,
)
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import HALF_TOPIC, TIMER_TOPIC
from cometmq.protocol.recall_handle import decode_handle
from support.clients.consumer_inputs import stored_in

TIMER_QUEUE = MessageQueue(TIMER_TOPIC, "broker-a", 0)
FAR_MS = 2**45
"""A time that tests do not reach."""
HALF_QUEUE = MessageQueue(HALF_TOPIC, "broker-a", 0)


@pytest.mark.parametrize(
    ("due_ms", "state"), [(5_000, "waiting"), (4_999, "due"), (4_000, "due"), (3_999, "past")]
)
def test_a_timer_is_past_when_the_second_of_its_slot_is_over(due_ms: int, state: str) -> None:
    assert timer_state(due_ms, 5_000).value == state


def test_a_timer_that_was_stored_again_is_there_once_and_a_recall_is_none() -> None:
    common = {"REAL_TOPIC": "alarms", "TIMER_OUT_MS": str(FAR_MS)}
    records = [
        stored_in(TIMER_QUEUE, 0, properties={**common, "UNIQ_KEY": "a"}),
        stored_in(TIMER_QUEUE, 1, properties={**common, "UNIQ_KEY": "b"}),
        stored_in(TIMER_QUEUE, 2, properties={**common, "UNIQ_KEY": "a", "TIMER_ROLL_TIMES": "1"}),
        stored_in(
            TIMER_QUEUE, 3, properties={**common, "UNIQ_KEY": "b", "TIMER_DEL_UNIQKEY": "alarms+b"}
        ),
    ]
    rolled, recalled = timers_in(records)

    assert (rolled.message.queue_offset, rolled.state) == (2, TimerState.WAITING)
    assert recalled.state is TimerState.RECALLED
    assert decode_handle(rolled.handle)[:2] == ("alarms", "broker-a")


@pytest.mark.parametrize(
    ("body", "offsets"),
    [
        (b"12", [12]),
        (b"12,13,15,", [12, 13, 15]),
        (b"", []),
        (b"12,x,-1," + b"9" * 20, [12]),
    ],
    ids=["RocketMQ 4", "RocketMQ 5", "empty", "damaged"],
)
def test_a_message_of_decisions_names_queue_offsets(body: bytes, offsets: list[int]) -> None:
    assert decided_offsets(body) == offsets


def test_a_half_message_that_was_put_back_is_there_once_and_the_oldest_is_first() -> None:
    halves = [
        stored_in(HALF_QUEUE, offset, born_time_ms=born_ms, properties={"UNIQ_KEY": unique_id})
        for offset, born_ms, unique_id in
        ((5, 300, "a"), (6, 100, "b"), (7, 200, "c"), (8, 300, "a"), (9, 200, "c"))
    ]  # fmt: skip

    assert [each.queue_offset for each in undecided(halves, {5})] == [6, 9, 8]
    assert [each.queue_offset for each in undecided(halves, {5, 6, 9})] == [7, 8]
