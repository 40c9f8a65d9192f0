"""The consumer group: its settings on a broker, with its retry policy.

Source: SubscriptionGroupConfig, GroupRetryPolicy and SimpleSubscriptionData, RocketMQ 5.3.
"""

import msgspec

RETRY_MAX_TIMES = 16


class CustomizedRetryPolicy(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Delays between the retries of a message, in milliseconds."""

    next: list[int] | None = None


class ExponentialRetryPolicy(msgspec.Struct, kw_only=True):
    """Delays that grow by a factor, in milliseconds."""

    initial: int = 5_000
    max: int = 7_200_000
    multiplier: int = 2


class GroupRetryPolicy(msgspec.Struct, kw_only=True, rename="camel"):
    """The retry policy of a group: ``CUSTOMIZED`` or ``EXPONENTIAL``."""

    type: str = "CUSTOMIZED"
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None


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
