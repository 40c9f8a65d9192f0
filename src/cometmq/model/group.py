"""The consumer group: its settings on a broker, with its retry policy.

Source: SubscriptionGroupConfig, GroupRetryPolicy and SimpleSubscriptionData, RocketMQ 5.3.
"""

from typing import Final

import msgspec

RETRY_MAX_TIMES = 16


CUSTOMIZED: Final = "CUSTOMIZED"
EXPONENTIAL: Final = "EXPONENTIAL"

_FIRST_DELAY = 2
"""The entry of a customized policy before the first retry: those of RocketMQ's default policy are
the delay levels, and retries begin at level 3."""
_FACTORS_MAX = 32


class CustomizedRetryPolicy(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Delays between the retries of a message, in milliseconds."""

    next: list[int] | None = None
    """The third entry is the delay before the first retry, the last one that before all further
    retries; None for RocketMQ's delay levels."""

    def delay_ms(self, reconsume_times: int) -> int | None:
        """Return the delay before the next retry of a message; None for the default."""
        if not self.next:
            return None
        return self.next[min(reconsume_times + _FIRST_DELAY, len(self.next) - 1)]


class ExponentialRetryPolicy(msgspec.Struct, kw_only=True):
    """Delays that grow by a factor, in milliseconds."""

    initial: int = 5_000
    max: int = 7_200_000
    multiplier: int = 2

    def delay_ms(self, reconsume_times: int) -> int:
        """Return the delay before the next retry of a message."""
        factor: int = self.multiplier ** min(reconsume_times, _FACTORS_MAX)
        return min(self.max, self.initial * factor)


class GroupRetryPolicy(msgspec.Struct, kw_only=True, rename="camel"):
    """The retry policy of a group: ``CUSTOMIZED`` or ``EXPONENTIAL``."""

    type: str = CUSTOMIZED
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None

    def delay_ms(self, reconsume_times: int) -> int | None:
        """Return the delay before the next retry of a message.

        Args:
            reconsume_times: its retries so far.

        Returns:
            None for the default policy: the broker's delay levels, from level 3 on.
        """
        policy = {
            CUSTOMIZED: self.customized_retry_policy,
            EXPONENTIAL: self.exponential_retry_policy,
        }.get(self.type)
        return policy.delay_ms(max(reconsume_times, 0)) if policy is not None else None


class SimpleSubscriptionData(msgspec.Struct, kw_only=True, rename="camel"):
    """The subscription of a group to one topic, as it is stored with the settings of the group."""

    topic: str | None = None
    expression_type: str | None = None
    expression: str | None = None
    version: int = 0


class SubscriptionGroupConfig(msgspec.Struct, kw_only=True, rename="camel"):
    """The settings of one consumer group on one broker."""

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = RETRY_MAX_TIMES
    group_retry_policy: GroupRetryPolicy = msgspec.field(default_factory=GroupRetryPolicy)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: list[SimpleSubscriptionData] | None = None
    attributes: dict[str, str] = {}
