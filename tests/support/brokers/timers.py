"""Parts of timer messages that tests of other features need."""

from __future__ import annotations

from cometmq.broker.timers.routing import TimerRouting, TimerRules
from cometmq.model.delay import DelayLevels
from cometmq.system.clock import Clock

RULES = TimerRules(
    is_enabled=True,
    precision_ms=1000,
    max_delay_ms=259_200_000,
    congestion_max=2**31 - 1,
    broker_name="b",
)


def timer_routing(
    clock: Clock, levels: str | None = None, rules: TimerRules = RULES
) -> TimerRouting:
    """Return what decides which messages wait, for a broker whose wheel is empty."""
    return TimerRouting(
        DelayLevels.parse(levels) if levels else DelayLevels.parse(),
        lambda: rules,
        now_ms=clock.now_ms,
        count_in=lambda slot_ms: 0,
    )
