"""What the result of a handler's call means for the messages it was given.

Pure: nothing here waits, sends or changes a queue. A result of None is success, and an exception
means later. `ConsumeLater` is no failure, so only its cause is recorded with the message.

Source: ConsumeMessageConcurrentlyService.processConsumeResult and
ConsumeMessageOrderlyService.processConsumeResult, RocketMQ 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from cometmq.client.errors import ConsumeLater
from cometmq.client.handlers import ConsumeContext, Consumed, ConsumedInOrder, OrderedContext
from cometmq.client.hooks import ConsumeEnd

SUSPEND_MS_MIN = 10
SUSPEND_MS_MAX = 30_000


def has_meaning(result: object) -> bool:
    """Return whether a result says what became of the messages; any other counts as success."""
    return result is None or isinstance(result, (Consumed, ConsumedInOrder))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of messages that may be consumed in any order."""

    done: int
    """How many, from the first on, are done with; the others are to be delivered again."""
    delay_level: int
    """For those others: a level, 0 to let the broker choose, -1 for dead letters at once."""
    end: ConsumeEnd
    error: BaseException | None = None
    """What the handler raised, if that says why it failed."""
    delay_s: float | None = None
    """For those others: the exact delay that the handler asked for, or None."""


def outcome_of(
    result: object, error: BaseException | None, context: ConsumeContext, count: int
) -> Outcome:
    """Judge one call of a handler.

    Args:
        result: what it returned; anything but an enumeration's failure is success.
        error: what it raised, or None.
        context: what the handler was shown, and may have changed.
        count: how many messages it was given.
    """
    if isinstance(error, ConsumeLater):
        return Outcome(
            0, error.delay_level, ConsumeEnd.FAILED, error.__cause__, delay_s=error.delay_s
        )
    if error is not None:
        return Outcome(0, context.delay_level, ConsumeEnd.EXCEPTION, error)
    if result in (Consumed.LATER, ConsumedInOrder.SUSPEND, ConsumedInOrder.ROLLBACK):
        return Outcome(0, context.delay_level, ConsumeEnd.FAILED)
    done = count if context.done is None else min(max(context.done, 0), count)
    return Outcome(done, context.delay_level, ConsumeEnd.SUCCESS)


class OrderedAction(Enum):
    """What to do with a queue after a call with messages of it."""

    COMMIT = "commit"
    """The messages that are open are done with."""
    LEAVE_OPEN = "leave open"
    """They stay open until a later call commits them or rolls them back."""
    SUSPEND = "suspend"
    """Those of the call come again after a pause, or are given up once there were too many."""
    ROLL_BACK = "roll back"
    """All open ones come again after a pause."""


@dataclass(frozen=True, slots=True)
class OrderedOutcome:
    """What came of messages that are consumed in order."""

    action: OrderedAction
    suspend_ms: int
    end: ConsumeEnd
    error: BaseException | None = None
    delay_level: int = 0
    """-1 to dead-letter the messages at once."""


def ordered_outcome_of(
    result: object, error: BaseException | None, context: OrderedContext, *, suspend_ms: int
) -> OrderedOutcome:
    """Judge one call of a handler that consumes in order.

    Args:
        result: what it returned; anything but an enumeration's failure is success.
        error: what it raised, or None.
        context: what the handler was shown, and may have changed.
        suspend_ms: the pause that the settings say.
    """
    asked = error.suspend_ms if isinstance(error, ConsumeLater) else None
    pause = _clamped(next(ms for ms in (asked, context.suspend_ms, suspend_ms) if ms is not None))
    if isinstance(error, ConsumeLater):
        level = error.delay_level
        return OrderedOutcome(
            OrderedAction.SUSPEND, pause, ConsumeEnd.FAILED, error.__cause__, delay_level=level
        )
    if error is not None:
        return OrderedOutcome(OrderedAction.SUSPEND, pause, ConsumeEnd.EXCEPTION, error)
    if result in (ConsumedInOrder.SUSPEND, Consumed.LATER):
        return OrderedOutcome(OrderedAction.SUSPEND, pause, ConsumeEnd.FAILED)
    if context.auto_commit or result is ConsumedInOrder.COMMIT:
        return OrderedOutcome(OrderedAction.COMMIT, pause, ConsumeEnd.SUCCESS)
    if result is ConsumedInOrder.ROLLBACK:
        return OrderedOutcome(OrderedAction.ROLL_BACK, pause, ConsumeEnd.FAILED)
    return OrderedOutcome(OrderedAction.LEAVE_OPEN, pause, ConsumeEnd.SUCCESS)


def _clamped(suspend_ms: int) -> int:
    """Keep a pause within limits; below zero means the settings' in Java, and the least here."""
    return min(max(suspend_ms, SUSPEND_MS_MIN), SUSPEND_MS_MAX)
