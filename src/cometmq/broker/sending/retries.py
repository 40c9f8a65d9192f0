"""How often a message is retried, and the delay level of each retry.

The consumer decides first, then the settings of its group, then the broker:

    number    maxReconsumeTimes of the request, else retryMaxTimes of the group
    delay     the level of the request, else the group's retry policy, else level 3 + retries so far

Delays are those of delay levels. A policy of other delays gets of the levels that are not shorter
the shortest, so that no retry comes too early, and none at once.

Source: AbstractSendMessageProcessor, RocketMQ 5.3, whose brokers keep retry policies and use none;
its proxy does.
"""

from __future__ import annotations

from typing import Final

from cometmq.model.delay import DelayLevels
from cometmq.model.group import GroupRetryPolicy, SubscriptionGroupConfig

VERSION_WITH_MAX_RECONSUME: Final = 121
"""From 3.4.9 on clients send the limit of the retries of a message."""
FIRST_RETRY_LEVEL: Final = 3
"""The delay level of the first retry; each further one takes the next."""


def retries_max(group: SubscriptionGroupConfig, requested: int | None, version: int) -> int:
    """Return the limit of the retries of a message: the limit that its client sends, if any."""
    if requested is not None and version >= VERSION_WITH_MAX_RECONSUME:
        return requested
    return group.retry_max_times


def retry_level(policy: GroupRetryPolicy, levels: DelayLevels, reconsume_times: int) -> int:
    """Return the delay level of the next retry of a message, unless its consumer sets one.

    Args:
        policy: the retry policy of the group.
        levels: the levels of the broker.
        reconsume_times: the retries of the message so far.
    """
    delay_ms = policy.delay_ms(reconsume_times)
    if delay_ms is None:
        return FIRST_RETRY_LEVEL + reconsume_times
    return levels.level_for(delay_ms)


def level_of_copy(
    policy: GroupRetryPolicy, levels: DelayLevels, reconsume_times: int, requested: str
) -> str:
    """Return the delay level of a retry that its consumer sends to the retry topic as a copy.

    Such a consumer sets the level that a broker without a policy would choose; if it is that one,
    the policy of the group counts.

    Args:
        policy: the retry policy of the group.
        levels: the levels of the broker.
        reconsume_times: the retries of the message so far, without this one.
        requested: the property DELAY of the copy.
    """
    if levels.level_of(requested) != min(FIRST_RETRY_LEVEL + reconsume_times, levels.highest):
        return requested
    return str(retry_level(policy, levels, reconsume_times))
