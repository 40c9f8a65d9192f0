"""What can be set on a push consumer; the defaults are RocketMQ's.

Source: DefaultMQPushConsumer, RocketMQ 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cometmq.client.config.base import KIB, Checked
from cometmq.system.settings import setting

UNLIMITED = -1


@dataclass(frozen=True)
class PushSettings(Checked):
    """Settings of a push consumer."""

    section: ClassVar[str] = "push"

    concurrency: int = setting(20, key="consumeThreadMax", low=1, high=1000)
    """Number of handler calls that run at a time, over all queues."""

    batch_max: int = setting(1, key="consumeMessageBatchMaxSize", low=1, high=1024)
    """Limit on messages in one call of a batch handler."""

    pull_batch: int = setting(32, key="pullBatchSize", low=1, high=1024)
    """Messages per pull; a broker returns at most 32 messages that are in memory."""

    pull_bytes: int = setting(256 * KIB, key="pullBatchSizeInBytes", unit="bytes", low=1)
    """Bytes per pull; brokers before 5.0 ignore it."""

    pull_interval_ms: int = setting(0, key="pullInterval", unit="ms", low=0, high=65_535)
    """Pause between two pulls of a queue."""

    hold_ms: int = setting(15_000, unit="ms", low=0, high=120_000)
    """How long a broker holds a pull while the queue has no new message."""

    answer_ms: int = setting(30_000, unit="ms", low=100)
    """Timeout of a pull, including the time for which the broker holds it."""

    queue_messages_max: int = setting(1_000, key="pullThresholdForQueue", low=1, high=65_535)
    """Limit on fetched and not consumed messages of one queue; above it the queue is not pulled."""

    queue_mib_max: int = setting(100, key="pullThresholdSizeForQueue", unit="MiB", low=1, high=1024)
    """The same limit, by the size of the stored records."""

    topic_messages_max: int = setting(
        UNLIMITED, key="pullThresholdForTopic", low=UNLIMITED, high=6_553_500
    )
    """The same limit over all assigned queues of a topic, divided among them; -1 for none."""

    topic_mib_max: int = setting(
        UNLIMITED, key="pullThresholdSizeForTopic", unit="MiB", low=UNLIMITED, high=102_400
    )
    """The same limit by the size of the stored records; -1 for none."""

    span_max: int = setting(2_000, key="consumeConcurrentlyMaxSpan", low=1, high=65_535)
    """Limit on the range from the first to the last offset of a queue's unconsumed messages.
    Ordered consumers ignore it."""

    retry_ms: int = setting(1_000, key="pullTimeDelayMillsWhenException", unit="ms", low=1)
    """Pause of a queue after a failed pull."""

    deliveries_max: int = setting(UNLIMITED, key="maxReconsumeTimes", low=UNLIMITED, high=2**31 - 1)
    """Retries before a message is dead-lettered; -1 for 16, or for no limit if ``ordered``."""

    consume_minutes_max: int = setting(15, key="consumeTimeout", unit="min", low=1)
    """Time limit of a handler call. After it the message is sent back for redelivery, and the call
    continues."""

    suspend_ms: int = setting(1_000, key="suspendCurrentQueueTimeMillis", unit="ms", low=10)
    """Pause of a queue after the handler of an ordered consumer failed; limited to 30,000."""

    send_filter: bool = setting(False, key="postSubscriptionWhenPull")
    """Whether each pull contains the filter; otherwise the broker uses the group's subscription."""

    persist_ms: int = setting(5_000, key="persistConsumerOffsetInterval", unit="ms", low=100)
    """Interval of offset commits."""

    rebalance_ms: int = setting(
        20_000, key="rocketmq.client.rebalance.waitInterval", unit="ms", low=100
    )
    """Interval of rebalances, in addition to those that changes cause."""

    lock_ms: int = setting(20_000, key="rocketmq.client.rebalance.lockInterval", unit="ms", low=100)
    """Interval at which ordered consumers renew their queue locks at the brokers."""

    unlock_delay_ms: int = setting(
        0, key="rocketmq.client.unlockDelayTimeMills", unit="ms", low=0, high=60_000
    )
    """How long a released queue stays locked if it has unconsumed messages. RocketMQ 4.9 uses
    20,000, later versions 0."""

    offset_folder: str = setting("", key="rocketmq.client.localOffsetStoreDir")
    """Folder of the local offset file for ``broadcast``; empty means ``~/.rocketmq_offsets``."""

    trace: bool = setting(False, key="enableMsgTrace")
    """Whether deliveries are recorded in the trace topic."""

    trace_topic: str = setting("", key="customizedTraceTopic")
    """Topic of the traces; empty for RocketMQ's trace topic."""

    stop_ms: int = setting(30_000, key="awaitTerminationMillisWhenShutdown", unit="ms", low=0)
    """How long `close` waits for running handlers. RocketMQ's default is not to wait."""
