"""What can be set on a pull consumer; the defaults are RocketMQ's.

Source: DefaultLitePullConsumer and DefaultMQPullConsumer, RocketMQ 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cometmq.client.config.base import Checked
from cometmq.system.settings import setting


@dataclass(frozen=True)
class PullSettings(Checked):
    """Settings of a pull consumer."""

    section: ClassVar[str] = "pull"

    pull_batch: int = setting(32, key="pullBatchSize", low=1, high=1024)
    """Messages per pull; a broker returns at most 32 messages that are in memory."""

    hold_ms: int = setting(20_000, key="brokerSuspendMaxTimeMillis", unit="ms", low=0, high=120_000)
    """How long a broker holds a pull while the queue has no new message."""

    answer_margin_ms: int = setting(10_000, unit="ms", low=100)
    """Timeout of a pull, in addition to ``hold_ms``."""

    fetched_max: int = setting(10_000, key="pullThresholdForAll", low=1, high=1_000_000)
    """Limit on messages fetched ahead of the application, over all queues."""

    queue_messages_max: int = setting(1_000, key="pullThresholdForQueue", low=1, high=65_535)
    """Limit on fetched and not delivered messages of one queue; above it the queue is not
    pulled."""

    queue_mib_max: int = setting(100, key="pullThresholdSizeForQueue", unit="MiB", low=1, high=1024)
    """The same limit, by the size of the records."""

    span_max: int = setting(2_000, key="consumeMaxSpan", low=1, high=65_535)
    """Limit on the range from the first to the last offset of a queue's fetched messages."""

    retry_ms: int = setting(1_000, key="pullTimeDelayMillsWhenException", unit="ms", low=1)
    """Pause of a queue after a failed pull."""

    auto_commit_ms: int = setting(5_000, key="autoCommitIntervalMillis", unit="ms", low=0)
    """Interval of automatic commits; 0 commits only on `commit()`."""

    rebalance_ms: int = setting(
        20_000, key="rocketmq.client.rebalance.waitInterval", unit="ms", low=100
    )
    """Interval of rebalances, in addition to those that changes cause."""

    deliveries_max: int = setting(16, key="maxReconsumeTimes", low=0, high=2**31 - 1)
    """Number of send-backs after which a message is dead-lettered."""

    offset_folder: str = setting("", key="rocketmq.client.localOffsetStoreDir")
    """Folder of the local offset file for ``broadcast``; empty means ``~/.rocketmq_offsets``."""

    trace: bool = setting(False, key="enableMsgTrace")
    """Whether deliveries are recorded in the trace topic."""

    trace_topic: str = setting("", key="customizedTraceTopic")
    """Topic of the traces; empty for RocketMQ's trace topic."""
