"""What can be set on a pop consumer; the defaults are RocketMQ's.

Source: DefaultMQPushConsumer and ConsumeMessagePopConcurrentlyService, RocketMQ 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cometmq.client.config.base import Checked
from cometmq.system.settings import setting

UNLIMITED = -1


@dataclass(frozen=True)
class PopSettings(Checked):
    """Settings of a pop consumer."""

    section: ClassVar[str] = "pop"

    concurrency: int = setting(20, key="consumeThreadMax", low=1, high=1000)
    """Number of handler calls that run at a time, over all queues."""

    batch_max: int = setting(1, key="consumeMessageBatchMaxSize", low=1, high=32)
    """Limit on messages in one call of a batch handler."""

    pop_batch: int = setting(32, key="popBatchNums", low=1, high=32)
    """Messages per pop request."""

    invisible_ms: int = setting(60_000, key="popInvisibleTime", unit="ms", low=5_000, high=300_000)
    """Invisible time: how long other members do not see a delivered message. After that it is
    redelivered."""

    queue_messages_max: int = setting(96, key="popThresholdForQueue", low=1, high=1_000)
    """Limit on delivered and not acknowledged messages of one queue; above it the queue is not
    popped."""

    hold_ms: int = setting(15_000, unit="ms", low=0, high=60_000)
    """How long a broker holds a pop request while the queue has no new message."""

    answer_margin_ms: int = setting(10_000, unit="ms", low=100)
    """Timeout of a pop request, in addition to ``hold_ms``."""

    ack_ms: int = setting(3_000, unit="ms", low=100)
    """Timeout of an ack or of a change of the invisible time."""

    retry_ms: int = setting(1_000, key="pullTimeDelayMillsWhenException", unit="ms", low=1)
    """Pause of a queue after a failed request."""

    deliveries_max: int = setting(UNLIMITED, key="maxReconsumeTimes", low=UNLIMITED, high=2**31 - 1)
    """Retries after which only the invisible time is changed, until the broker dead-letters the
    message; -1 for 16."""

    assignment_ms: int = setting(
        20_000, key="rocketmq.client.rebalance.waitInterval", unit="ms", low=100
    )
    """Interval at which the assignment is fetched from the brokers."""

    trace: bool = setting(False, key="enableMsgTrace")
    """Whether deliveries are recorded in the trace topic."""

    trace_topic: str = setting("", key="customizedTraceTopic")
    """Topic of the traces; empty for RocketMQ's trace topic."""

    stop_ms: int = setting(30_000, key="awaitTerminationMillisWhenShutdown", unit="ms", low=0)
    """How long `close` waits for running handlers."""
