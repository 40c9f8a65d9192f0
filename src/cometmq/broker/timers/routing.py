"""Routes timer messages: the properties with which a message waits for its time.

    TIMER_DELAY_SEC, TIMER_DELAY_MS    from now
    TIMER_DELIVER_MS                   ms since 1970

The first of them that a message has counts. A message waits in queue 0 of ``rmq_sys_wheel_timer``,
with its target queue in REAL_TOPIC and REAL_QID, and the slot of its time in TIMER_OUT_MS: the last
one that begins before it. A message with TIMER_OUT_MS has waited already.

A delay level goes first: the timer properties are dropped then.

Source: HookUtils.transformTimerMessage, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from cometmq.broker.delay.routing import Scheduled, schedule
from cometmq.broker.targets import random_queue, target_properties
from cometmq.broker.timers.senders import TimerSenders
from cometmq.model import property_names as names
from cometmq.model.delay import DelayLevels
from cometmq.model.errors import ResponseError
from cometmq.model.numbers import number_of
from cometmq.model.topic import DLQ_PREFIX, RETRY_PREFIX, TIMER_TOPIC
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.recall_handle import RecallHandle
from cometmq.remoting import Request

TIMER_QUEUE: Final = 0
DELIVERED_BYTES: Final = 128
"""Bytes that the properties of a delivered message may have beyond the waiting one's."""
_LONG_MAX: Final = 2**63 - 1


class TimerRules(NamedTuple):
    """The settings of a broker that apply to timer messages."""

    is_enabled: bool
    precision_ms: int
    max_delay_ms: int
    congestion_max: int
    """Messages of one slot above which further ones are refused at random; above twice that, all.
    """
    broker_name: str


class TimerRouting:
    """Decides which messages wait.

    Args:
        levels: the delay levels, which go first.
        rules: returns the current rules.
        now_ms: the wall clock.
        count_in: returns how many messages wait in a slot.
        chance: returns a number below another one, at random.
    """

    def __init__(
        self,
        levels: DelayLevels,
        rules: Callable[[], TimerRules],
        *,
        now_ms: Callable[[], int],
        count_in: Callable[[int], int],
        chance: Callable[[int], int] = random_queue,
    ) -> None:
        self.levels = levels
        self._rules = rules
        self._now_ms = now_ms
        self._count_in = count_in
        self._chance = chance
        self.senders = TimerSenders()

    def delayed(
        self,
        topic: str,
        queue_id: int,
        properties: Mapping[str, str],
        request: Request | None = None,
    ) -> Scheduled | None:
        """Return where a message waits for its delay; None for a message that does not wait.

        Args:
            topic, queue_id: the target queue of the message.
            properties: its properties; not changed.
            request: the request that sends it; None for what no client has sent.

        Raises:
            ResponseError: the broker takes no such message.
        """
        if self.levels.level_of(properties.get(names.DELAY)):
            properties = {n: value for n, value in properties.items() if n not in names.TIMERS}
            return schedule(self.levels, topic, queue_id, properties)
        out_ms = self.check(topic, properties)
        if out_ms is None:
            return None
        self._refuse_congestion(out_ms)
        return _waiting(topic, queue_id, self.senders.named(properties, request), out_ms)

    def committed(
        self, topic: str, queue_id: int, properties: Mapping[str, str]
    ) -> Scheduled | None:
        """Return as `delayed` where a half message waits that is committed; never refuses it."""
        if self.levels.level_of(properties.get(names.DELAY)):
            return self.delayed(topic, queue_id, properties)
        at_ms = _time_of(properties, self._now_ms())
        if at_ms is None or at_ms <= self._now_ms():
            return None
        return _waiting(topic, queue_id, properties, self.slot_of(at_ms))

    def check(self, topic: str, properties: Mapping[str, str]) -> int | None:
        """Return the slot in which a message without a delay level is due; None if it is now.

        Raises:
            ResponseError: its time is none or too far away, or timers are disabled.
        """
        rules, now_ms = self._rules(), self._now_ms()
        if names.TIMER_OUT_MS in properties or not properties.keys() & names.TIMERS:
            return None
        if not rules.is_enabled:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled, timerWheelEnable is false",
            )
        at_ms = _time_of(properties, now_ms)
        recalled = properties.get(names.TIMER_DEL_UNIQKEY)
        if at_ms is None or at_ms > now_ms + rules.max_delay_ms:
            raise _illegal(rules)
        if recalled is not None and (at_ms <= now_ms or not recalled.startswith(f"{topic}+")):
            raise _illegal(rules)
        return None if at_ms <= now_ms else self.slot_of(at_ms)

    def checked_half(
        self, topic: str, properties: dict[str, str], request: Request | None
    ) -> dict[str, str]:
        """Check a half message without a delay level as `check` does; return its properties.

        Raises:
            ResponseError: see `check`.
        """
        is_timed = self.check(topic, properties) is not None
        return self.senders.named(properties, request) if is_timed else properties

    def slot_of(self, at_ms: int) -> int:
        """Return the last slot that begins before a time."""
        return (at_ms - 1) // self._rules().precision_ms * self._rules().precision_ms

    def handle_of(self, scheduled: Scheduled) -> str:
        """Return the handle that recalls a message; empty if it cannot be recalled."""
        return "" if scheduled.topic != TIMER_TOPIC else self.handle_for(scheduled.properties)

    def handle_for(self, properties: Mapping[str, str]) -> str:
        """Return as `handle_of` the handle of a message that waits with these properties."""
        topic = properties[names.REAL_TOPIC]
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return ""
        due_ms = int(properties[names.TIMER_OUT_MS]) + 1
        key = properties.get(names.UNIQ_KEY, "")
        return RecallHandle(topic, self._rules().broker_name, str(due_ms), key).encode()

    def _refuse_congestion(self, slot_ms: int) -> None:
        most = self._rules().congestion_max
        count = self._count_in(slot_ms)
        if count <= most:
            return
        # RocketMQ refuses more often the emptier the slot is.
        if count >= 2 * most or self._chance(1000) < 1000 * (count - most) // most:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control, max num limit is {2 * most} or the current"
                f" value is greater than {most} and less than {2 * most}, trigger random flow"
                " control",
            )


def _waiting(topic: str, queue_id: int, properties: Mapping[str, str], out_ms: int) -> Scheduled:
    changed = {
        **properties,
        names.TIMER_OUT_MS: str(out_ms),
        **target_properties(topic, queue_id),
    }
    return Scheduled(TIMER_TOPIC, TIMER_QUEUE, changed)


def _time_of(properties: Mapping[str, str], now_ms: int) -> int | None:
    """Return when a message with timer properties is due; None for a text that is no number."""
    if names.TIMER_OUT_MS in properties:
        return None
    for name, unit_ms, since_ms in (
        (names.TIMER_DELAY_SEC, 1000, now_ms),
        (names.TIMER_DELAY_MS, 1, now_ms),
        (names.TIMER_DELIVER_MS, 1, 0),
    ):
        text = properties.get(name)
        if text is not None:
            number = number_of(text.encode())
            if number is None or abs(number) > _LONG_MAX:
                return None
            return since_ms + number * unit_ms
    return None


def _illegal(rules: TimerRules) -> ResponseError:
    return ResponseError(
        ResponseCode.MESSAGE_ILLEGAL,
        "timer message illegal, the delay time should not be bigger than the max delay"
        f" {rules.max_delay_ms}ms; or if set del msg, the delay time should be bigger than the"
        " current time",
    )
