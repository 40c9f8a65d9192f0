"""The heartbeat that a client sends to brokers.

Source: HeartbeatData, ConsumerData, ProducerData and SubscriptionData, RocketMQ 5.3.
"""

from enum import StrEnum

from msgspec import field

from cometmq.protocol.bodies.base import Body, Part


class ConsumeType(StrEnum):
    """How a group gets its messages; in the order of their numbers on the wire."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Whether each member of a group gets every message or its share."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """The offset at which a new group begins to read."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(Part, kw_only=True):
    """The subscription of a group to one topic."""

    topic: str = ""
    sub_string: str = ""
    """The expression; ``*`` for everything."""
    expression_type: str = "TAG"
    tags_set: list[str] = field(default_factory=list)
    code_set: list[int] = field(default_factory=list)
    """The hash of each tag."""
    sub_version: int = 0
    """Milliseconds; a later one replaces an earlier one."""
    class_filter_mode: bool = False


class ConsumerData(Part, kw_only=True):
    """One consumer group of a client."""

    group_name: str = ""
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


class ProducerData(Part, kw_only=True):
    """One producer group of a client."""

    group_name: str = ""


class HeartbeatData(Body, kw_only=True):
    """HEART_BEAT (34)."""

    client_id: str = field(name="clientID", default="")
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


class CheckClientRequestBody(Body, kw_only=True):
    """CHECK_CLIENT_CONFIG (46): whether the broker can filter by a subscription."""

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData | None = None
    namespace: str | None = None
