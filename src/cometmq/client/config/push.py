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
    """Settings of a consumer that calls a handler with each message."""

    section: ClassVar[str] = "push"

    concurrency: int = setting(20, key="consumeThreadMax", low=1, high=1000)
    """Handler calls that run at a time, over all queues."""

    batch_max: int = setting(1, key="consumeMessageBatchMaxSize", low=1, high=1024)
    """Messages that one call of a batch handler gets at most."""

    pull_batch: int = setting(32, key="pullBatchSize", low=1, high=1024)
    """Messages asked for at once; a broker gives at most 32 of those in its memory."""

    pull_bytes: int = setting(256 * KIB, key="pullBatchSizeInBytes", unit="bytes", low=1)
    """Bytes asked for at once; brokers before 5.0 do not heed it."""

    pull_interval_ms: int = setting(0, key="pullInterval", unit="ms", low=0, high=65_535)
    """Pause between two pulls of a queue."""

    hold_ms: int = setting(15_000, unit="ms", low=0, high=120_000)
    """How long a broker holds a pull while the queue has nothing new."""

    answer_ms: int = setting(30_000, unit="ms", low=100)
    """Time for the answer to a pull, the hold included."""

    queue_messages_max: int = setting(1_000, key="pullThresholdForQueue", low=1, high=65_535)
    """Messages of one queue that are fetched and not yet consumed; above this it is not pulled."""

    queue_mib_max: int = setting(100, key="pullThresholdSizeForQueue", unit="MiB", low=1, high=1024)
    """The same, by the size of their records as stored."""

    topic_messages_max: int = setting(
        UNLIMITED, key="pullThresholdForTopic", low=UNLIMITED, high=6_553_500
    )
    """The same over all queues this consumer has of a topic, divided among them; -1 for none."""

    topic_mib_max: int = setting(
        UNLIMITED, key="pullThresholdSizeForTopic", unit="MiB", low=UNLIMITED, high=102_400
    )
    """The same, by the size of their records as stored; -1 for none."""

    span_max: int = setting(2_000, key="consumeConcurrentlyMaxSpan", low=1, high=65_535)
    """From the first to the last offset of a queue's unconsumed messages; not when in order."""

    retry_ms: int = setting(1_000, key="pullTimeDelayMillsWhenException", unit="ms", low=1)
    """Pause of a queue after a pull of it failed."""

    deliveries_max: int = setting(UNLIMITED, key="maxReconsumeTimes", low=UNLIMITED, high=2**31 - 1)
    """Retries before a message becomes a dead letter; -1 for 16, or for no limit when in order."""

    consume_minutes_max: int = setting(15, key="consumeTimeout", unit="min", low=1)
    """A handler that takes longer has its message sent back, while it still runs."""

    suspend_ms: int = setting(1_000, key="suspendCurrentQueueTimeMillis", unit="ms", low=10)
    """Pause of a queue consumed in order after its handler failed; at most 30,000 are kept."""

    send_filter: bool = setting(False, key="postSubscriptionWhenPull")
    """Whether each pull carries the filter, instead of the broker looking it up by group."""

    persist_ms: int = setting(5_000, key="persistConsumerOffsetInterval", unit="ms", low=100)
    """How often offsets are stored."""

    rebalance_ms: int = setting(
        20_000, key="rocketmq.client.rebalance.waitInterval", unit="ms", low=100
    )
    """How often the queues are divided among the group's members when nothing calls for it."""

    lock_ms: int = setting(20_000, key="rocketmq.client.rebalance.lockInterval", unit="ms", low=100)
    """How often the locks of queues that are consumed in order are renewed at the brokers."""

    unlock_delay_ms: int = setting(
        0, key="rocketmq.client.unlockDelayTimeMills", unit="ms", low=0, high=60_000
    )
    """How long a queue that is given up stays locked when messages of it are left; RocketMQ 4.9
    waits 20,000, later ones do not wait."""

    offset_folder: str = setting("", key="rocketmq.client.localOffsetStoreDir")
    """Where a consumer of broadcasts keeps its offsets; empty means ``~/.rocketmq_offsets``."""

    trace: bool = setting(False, key="enableMsgTrace")
    """Whether deliveries are told to the trace topic."""

    trace_topic: str = setting("", key="customizedTraceTopic")
    """Where to; empty means RocketMQ's own trace topic."""

    stop_ms: int = setting(30_000, key="awaitTerminationMillisWhenShutdown", unit="ms", low=0)
    """How long a graceful stop waits for handlers; RocketMQ's own default is not to wait."""
