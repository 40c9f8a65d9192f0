"""Clients as administrators see them: connections, running state, a message tried out.

Source: ConsumerConnection, ProducerTableInfo, ConsumerRunningInfo, ConsumeMessageDirectlyResult
and relatives, RocketMQ 5.3.
"""

from enum import StrEnum
from typing import Any, ClassVar

from msgspec import field

from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.base import Body, Part
from cometmq.protocol.bodies.common import Connection
from cometmq.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)


class MemberSubscription(Part, kw_only=True):
    """The subscription of one member of a group to one topic."""

    sub_string: str = ""
    """The expression; ``*`` for everything."""
    expression_type: str = "TAG"
    class_filter_mode: bool = False


class ConsumerConnection(Body, kw_only=True):
    """GET_CONSUMER_CONNECTION_LIST (203)."""

    connection_set: list[Connection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None
    subscriptions_by_client: dict[str, dict[str, MemberSubscription]] | None = None
    """By client id and topic; an addition of CometMQ, which RocketMQ's clients ignore."""


class ProducerConnection(Body, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    connection_set: list[Connection] = field(default_factory=list)


class ProducerInfo(Part, kw_only=True):
    """One producer as a broker sees it."""

    client_id: str = ""
    remote_ip: str = field(name="remoteIP", default="")
    language: str | None = None
    version: int = 0
    last_update_timestamp: int = 0


class ProducerTableInfo(Body, kw_only=True):
    """GET_ALL_PRODUCER_INFO (328): producers by group."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


class ProcessQueueInfo(Part, kw_only=True):
    """The messages of one queue that a consumer has fetched and not yet consumed."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = field(name="cachedMsgSizeInMiB", default=0)
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class PopProcessQueueInfo(Part, kw_only=True):
    """The messages of one queue that a consumer has popped and not yet acknowledged."""

    wait_ack_count: int = 0
    droped: bool = False
    last_pop_timestamp: int = 0


class ConsumeStatus(Part, kw_only=True):
    """How fast a consumer is."""

    pull_rt: float = field(name="pullRT", default=0.0)
    pull_tps: float = field(name="pullTPS", default=0.0)
    consume_rt: float = field(name="consumeRT", default=0.0)
    consume_ok_tps: float = field(name="consumeOKTPS", default=0.0)
    consume_failed_tps: float = field(name="consumeFailedTPS", default=0.0)
    consume_failed_msgs: int = 0


class ConsumerRunningInfo(Body, kw_only=True):
    """GET_CONSUMER_RUNNING_INFO (307)."""

    bare_keys: ClassVar[bool] = True

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] | None = None
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: dict[str, Any] | None = None
    jstack: str | None = None


class ConsumeResult(StrEnum):
    """The result of consuming one message, in the order of the numbers on the wire."""

    CR_SUCCESS = "CR_SUCCESS"
    CR_LATER = "CR_LATER"
    CR_ROLLBACK = "CR_ROLLBACK"
    CR_COMMIT = "CR_COMMIT"
    CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    CR_RETURN_NULL = "CR_RETURN_NULL"


class ConsumeMessageDirectlyResult(Body, kw_only=True):
    """CONSUME_MESSAGE_DIRECTLY (309)."""

    order: bool = False
    auto_commit: bool = True
    consume_result: ConsumeResult | None = None
    remark: str | None = None
    spent_time_mills: int = 0
