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
    """Messages asked for at once; a broker gives at most 32 of those in its memory."""

    hold_ms: int = setting(20_000, key="brokerSuspendMaxTimeMillis", unit="ms", low=0, high=120_000)
    """How long a broker holds a pull while the queue has nothing new."""

    answer_margin_ms: int = setting(10_000, unit="ms", low=100)
    """Time allowed for the answer beyond the hold."""

    fetched_max: int = setting(10_000, key="pullThresholdForAll", low=1, high=1_000_000)
    """Messages fetched ahead of the application, over all queues of the consumer."""

    queue_messages_max: int = setting(1_000, key="pullThresholdForQueue", low=1, high=65_535)
    """Messages of one queue that are fetched and not handed out; above this it is not pulled."""

    queue_mib_max: int = setting(100, key="pullThresholdSizeForQueue", unit="MiB", low=1, high=1024)
    """The same, by the size of their records."""

    span_max: int = setting(2_000, key="consumeMaxSpan", low=1, high=65_535)
    """From the first to the last offset of a queue's messages that are not handed out."""

    retry_ms: int = setting(1_000, key="pullTimeDelayMillsWhenException", unit="ms", low=1)
    """Pause of a queue after a pull of it failed."""

    auto_commit_ms: int = setting(5_000, key="autoCommitIntervalMillis", unit="ms", low=0)
    """How often finished messages are committed by themselves; 0 leaves it to ``commit()``."""

    rebalance_ms: int = setting(
        20_000, key="rocketmq.client.rebalance.waitInterval", unit="ms", low=100
    )
    """How often the queues of subscribed topics are divided when nothing calls for it."""

    deliveries_max: int = setting(16, key="maxReconsumeTimes", low=0, high=2**31 - 1)
    """Times that a message is sent back before it becomes a dead letter."""

    offset_folder: str = setting("", key="rocketmq.client.localOffsetStoreDir")
    """Where offsets are kept when broadcasting; empty means ``.rocketmq_offsets`` at home."""

    trace: bool = setting(False, key="enableMsgTrace")
    """Whether deliveries are told to the trace topic."""

    trace_topic: str = setting("", key="customizedTraceTopic")
    """Where to; empty means RocketMQ's own trace topic."""
