"""What can be set on a producer; the defaults are RocketMQ's.

Source: DefaultMQProducer, RocketMQ 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cometmq.client.config.base import MIB, Checked
from cometmq.system.settings import setting


@dataclass(frozen=True)
class ProducerSettings(Checked):
    """Settings of a producer."""

    section: ClassVar[str] = "producer"

    retries: int = setting(2, key="retryTimesWhenSendFailed", low=0, high=16)
    """Further tries, on other brokers where there are any, after the first one failed."""

    compress_from_bytes: int = setting(4_096, key="compressMsgBodyOverHowmuch", unit="bytes", low=0)
    """Bodies of this size and above are compressed with zlib; batches never are."""

    compress_level: int = setting(5, low=0, high=9)
    """zlib's level: 1 is fastest, 9 is smallest, 0 stores uncompressed."""

    body_bytes_max: int = setting(4 * MIB, key="maxMessageSize", unit="bytes", low=1)
    """Largest body of a message, or of a whole batch once encoded."""

    new_topic_queues: int = setting(4, key="defaultTopicQueueNums", low=1, high=1024)
    """Queues of a topic that a broker creates because this producer sent to it."""
