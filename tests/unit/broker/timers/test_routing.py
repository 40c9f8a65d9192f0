"""Which messages wait for a time, and with which properties."""

from __future__ import annotations

import pytest

from cometmq.broker.timers.routing import TimerRouting
from cometmq.model.delay import DelayLevels
from cometmq.model.errors import ResponseError
from cometmq.protocol.recall_handle import decode_handle
from support.brokers.timers import RULES, timer_routing
from support.checks.manual_clock import ManualClock

CLOCK = ManualClock()
NOW_MS = CLOCK.now_ms()
DAYS_3_MS = 259_200_000


@pytest.fixture
def routing() -> TimerRouting:
    return timer_routing(CLOCK)


@pytest.mark.parametrize(
    ("properties", "slot_ms"),
    [
        ({"TIMER_DELAY_SEC": "2"}, 1_000),
        ({"TIMER_DELAY_MS": "2001"}, 2_000),
        ({"TIMER_DELAY_MS": "1"}, 0),
        ({"TIMER_DELIVER_MS": str(NOW_MS + 2_999)}, 2_000),
        ({"TIMER_DELAY_SEC": "1", "TIMER_DELAY_MS": "9000"}, 0),
        ({"TIMER_DELAY_MS": "9000", "TIMER_DELIVER_MS": "0"}, 8_000),
        ({"TIMER_DELAY_SEC": "259200", "DELAY": "0"}, DAYS_3_MS - 1_000),
    ],
    ids=str,
)
def test_a_message_waits_in_the_slot_before_its_time(
    routing: TimerRouting, properties: dict[str, str], slot_ms: int
) -> None:
    waiting = routing.delayed("T", 3, properties | {"UNIQ_KEY": "K"})
    assert waiting is not None
    assert (waiting.topic, waiting.queue_id) == ("rmq_sys_wheel_timer", 0)
    more = {"REAL_TOPIC": "T", "REAL_QID": "3", "TIMER_OUT_MS": str(NOW_MS + slot_ms)}
    assert waiting.properties == properties | more | {"UNIQ_KEY": "K"}
    handle = decode_handle(routing.handle_of(waiting))
    assert handle == ("T", "b", str(NOW_MS + slot_ms + 1), "K")


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"TIMER_DELAY_SEC": "0"},
        {"TIMER_DELAY_MS": "-5"},
        {"TIMER_DELIVER_MS": str(NOW_MS)},
        {"TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": "1"},
    ],
    ids=str,
)
def test_other_messages_do_not_wait(routing: TimerRouting, properties: dict[str, str]) -> None:
    assert routing.delayed("T", 0, properties) is None
    assert routing.committed("T", 0, properties) is None


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELAY_SEC": "soon"},
        {"TIMER_DELAY_SEC": "1 "},
        {"TIMER_DELAY_SEC": "259201"},
        {"TIMER_DELAY_SEC": "9" * 30},
        {"TIMER_DELIVER_MS": str(2**63 - 1)},
        {"TIMER_DELAY_SEC": "0", "TIMER_DEL_UNIQKEY": "T+K"},
        {"TIMER_DELAY_SEC": "9", "TIMER_DEL_UNIQKEY": "U+K"},
    ],
    ids=str,
)
def test_illegal_times_and_recalls_of_other_topics_are_refused(
    routing: TimerRouting, properties: dict[str, str]
) -> None:
    with pytest.raises(ResponseError, match="timer message illegal") as refused:
        routing.delayed("T", 0, properties)
    assert refused.value.code == 13


def test_a_delay_level_drops_the_timer(routing: TimerRouting) -> None:
    for route in (routing.delayed, routing.committed):
        waiting = route("T", 0, {"DELAY": "1", "TIMER_DELAY_SEC": "soon"})
        assert waiting is not None
        assert waiting.topic == "SCHEDULE_TOPIC_XXXX"
        assert "TIMER_DELAY_SEC" not in waiting.properties
        assert routing.handle_of(waiting) == ""


def test_a_commit_is_never_refused(routing: TimerRouting) -> None:
    assert routing.committed("T", 0, {"TIMER_DELAY_SEC": "soon"}) is None
    waiting = routing.committed("T", 0, {"TIMER_DELAY_SEC": "999999"})
    assert waiting is not None


def test_disabled_timers_refuse_messages_that_wait() -> None:
    routing = timer_routing(CLOCK, rules=RULES._replace(is_enabled=False))
    with pytest.raises(ResponseError, match="timerWheelEnable is false"):
        routing.delayed("T", 0, {"TIMER_DELAY_SEC": "5"})
    assert routing.delayed("T", 0, {"a": "b"}) is None


@pytest.mark.parametrize(
    ("count", "chance", "is_refused"),
    [(10, 0, False), (11, 99, True), (11, 100, False), (19, 899, True), (20, 999, True)],
)
def test_a_slot_with_too_many_messages_takes_no_more(
    count: int, chance: int, is_refused: bool
) -> None:
    rules = RULES._replace(congestion_max=10)
    routing = TimerRouting(
        DelayLevels.parse(),
        lambda: rules,
        now_ms=CLOCK.now_ms,
        count_in=lambda slot_ms: count,
        chance=lambda below: chance,
    )
    if not is_refused:
        assert routing.delayed("T", 0, {"TIMER_DELAY_SEC": "5"}) is not None
        return
    with pytest.raises(ResponseError, match="max num limit is 20") as refused:
        routing.delayed("T", 0, {"TIMER_DELAY_SEC": "5"})
    assert refused.value.code == 1


@pytest.mark.parametrize("topic", ["%RETRY%g", "%DLQ%g"])
def test_retries_and_dead_letters_have_no_handle(routing: TimerRouting, topic: str) -> None:
    waiting = routing.delayed(topic, 0, {"TIMER_DELAY_SEC": "5"})
    assert waiting is not None
    assert routing.handle_of(waiting) == ""
