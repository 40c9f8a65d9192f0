"""The options of writing to topics.

Source: ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.spark.errors import OptionError
from cometmq.spark.options.connection import ConnectionOptions, check_references
from cometmq.spark.options.parsing import option

MIB = 1 << 20


@dataclass(frozen=True)
class TopicWriteOptions(ConnectionOptions):
    """Options of ``df.write.format("rocketmq")`` and ``df.writeStream.format("rocketmq")``."""

    topic: str = option("", "topic")
    """The topic of all rows; a column ``topic`` is needed where this is not given, and is passed
    over where it is."""

    delivery: str = option("at-least-once", "delivery")
    """How sure the write is: ``at-least-once`` awaits every acknowledgement; repeated rows have the
    unique keys of their twins."""

    job_id: str = option("", "jobId")
    """What unique keys are made of besides partition and row (and batch, for streams). Give it
    where the same write may be started again and shall be recognized; else it is the query's id,
    or of a batch write a random one."""

    producer_group: str = option("spark-rocketmq-writer", "producerGroup")
    """The group that brokers see as the sender."""

    reserved_properties: str = option("error", "reservedProperties", choices=("error", "drop"))
    """What becomes of entries of the column ``properties`` whose names are RocketMQ's own: the
    write fails, or they are left out."""

    acknowledge: str = option("safe", "send.acknowledge", choices=("safe", "stored"))
    """When a message counts as sent: once the broker has flushed and replicated it as it is set to,
    or as soon as it is stored. What is stored and not safe is sent again."""

    batch_bytes: int = option(MIB, "send.batchBytes", unit="bytes", low=1024, high=4 * MIB - 65_536)
    """Messages for one queue travel together up to this size."""

    body_bytes_max: int = option(
        4 * MIB, "send.bodyBytesMax", unit="bytes", low=1, high=16 * MIB - 65_536
    )
    """The largest body the brokers take; larger ones fail the task before anything is sent."""

    pending_max: int = option(8, "send.pendingMax", unit="requests", low=1, high=1024)
    """Requests of one task on their way at a time; of one queue with an order, never more than
    one."""

    pending_bytes: int = option(16 * MIB, "send.pendingBytes", unit="bytes", low=MIB)
    """Bytes of one task that may wait for acknowledgement before the next rows are taken."""

    try_timeout_ms: int = option(10_000, "send.timeoutMs", unit="ms", low=1)
    """Time for the answer to one request."""

    delivery_timeout_ms: int = option(120_000, "send.deliveryTimeoutMs", unit="ms", low=1)
    """Time for all tries of one request, a broker's restart included; then the task fails."""

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            OptionError: says which.
        """
        check_references(self)
        if self.batch_bytes > self.pending_bytes:
            raise OptionError(
                f"option send.batchBytes is {self.batch_bytes}: "
                f"at most send.pendingBytes, {self.pending_bytes}, is expected"
            )
