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
    """Settings of a consumer whose brokers hand out messages one by one."""

    section: ClassVar[str] = "pop"

    concurrency: int = setting(20, key="consumeThreadMax", low=1, high=1000)
    """Handler calls that run at a time, over all queues."""

    batch_max: int = setting(1, key="consumeMessageBatchMaxSize", low=1, high=32)
    """Messages that one call of a batch handler gets at most."""

    pop_batch: int = setting(32, key="popBatchNums", low=1, high=32)
    """Messages asked for at once."""

    invisible_ms: int = setting(60_000, key="popInvisibleTime", unit="ms", low=5_000, high=300_000)
    """How long others don't see a message that was handed out; then it is handed out again."""

    queue_messages_max: int = setting(96, key="popThresholdForQueue", low=1, high=1_000)
    """Messages of one queue that are handed out and not answered for; above this it waits."""

    hold_ms: int = setting(15_000, unit="ms", low=0, high=60_000)
    """How long a broker holds a request while the queue has nothing new."""

    answer_margin_ms: int = setting(10_000, unit="ms", low=100)
    """Time allowed for the answer beyond the hold."""

    ack_ms: int = setting(3_000, unit="ms", low=100)
    """Time for telling a broker that a message is done with, or is to come again."""

    retry_ms: int = setting(1_000, key="pullTimeDelayMillsWhenException", unit="ms", low=1)
    """Pause of a queue after a request failed."""

    deliveries_max: int = setting(UNLIMITED, key="maxReconsumeTimes", low=UNLIMITED, high=2**31 - 1)
    """Retries after which a message is only put off, until its broker gives it up; -1 for 16."""

    assignment_ms: int = setting(
        20_000, key="rocketmq.client.rebalance.waitInterval", unit="ms", low=100
    )
    """How often the brokers are asked which queues are this consumer's."""

    trace: bool = setting(False, key="enableMsgTrace")
    """Whether deliveries are told to the trace topic."""

    trace_topic: str = setting("", key="customizedTraceTopic")
    """Where to; empty means RocketMQ's own trace topic."""

    stop_ms: int = setting(30_000, key="awaitTerminationMillisWhenShutdown", unit="ms", low=0)
    """How long a graceful stop waits for handlers."""
