"""The options of writing to topics."""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.spark.errors import OptionError
from cometmq.spark.options.connection import ConnectionOptions, check_references
from cometmq.spark.options.parsing import option

MIB = 1 << 20
AUTO, AT_LEAST_ONCE, EXACTLY_ONCE = "auto", "at-least-once", "exactly-once"


@dataclass(frozen=True)
class TopicWriteOptions(ConnectionOptions):
    """Options of ``df.write.format("rocketmq")`` and ``df.writeStream.format("rocketmq")``."""

    topic: str = option("", "topic")
    """The topic of all rows. Without it a column ``topic`` is needed; with it that column is
    ignored."""
    delivery: str = option(AUTO, "delivery", choices=(AUTO, AT_LEAST_ONCE, EXACTLY_ONCE))
    """The delivery guarantee if a task or a batch is repeated. ``exactly-once`` needs brokers of
    CometMQ and the right to read the topic, and fails where a row may be stored twice. ``auto``
    logs a warning there and goes on as ``at-least-once``: a row may be stored twice, with equal
    unique ids."""
    job_id: str = option("", "jobId")
    """Part of the unique ids, with batch, partition and content. Set it to the name of one set of
    rows, such as ``prices-2026-11-28``, if the write may be repeated and its duplicates must be
    found; never use a name again for other rows. In ``foreachBatch`` it names one of several
    writes. The default is the query's id, or a random id outside of queries."""
    producer_group: str = option("spark-rocketmq-writer", "producerGroup")
    """The producer group."""
    counts_folder: str = option("", "countsFolder")
    """Folder of the driver for the totals of rows, bytes, requests and retries, one file for each
    query or ``jobId``, as JSON. Empty for no files."""
    reserved_properties: str = option("error", "reservedProperties", choices=("error", "drop"))
    """For entries of the column ``properties`` with RocketMQ's own names: fail the write, or drop
    the entry."""
    acknowledge: str = option("safe", "send.acknowledge", choices=("safe", "stored"))
    """When a message counts as sent. ``safe``: after the flush and replication that the broker
    requires; a message that is only stored is sent again. ``stored``: as soon as it is stored."""
    batch_bytes: int = option(MIB, "send.batchBytes", unit="bytes", low=1024, high=4 * MIB - 65_536)
    """Size limit of a batch of messages for one queue."""
    body_bytes_max: int = option(
        4 * MIB, "send.bodyBytesMax", unit="bytes", low=1, high=16 * MIB - 65_536
    )
    """Size limit of a body; a larger one fails the task before any message is sent."""
    pending_max: int = option(8, "send.pendingMax", unit="requests", low=1, high=1024)
    """Limit on requests in flight of one task; for an ordered queue, one."""
    pending_bytes: int = option(16 * MIB, "send.pendingBytes", unit="bytes", low=MIB)
    """Limit on unacknowledged bytes of one task; above it the task waits (back-pressure)."""
    rows_per_s: float = option(0.0, "send.rowsPerSecond", unit="rows per second", low=0)
    """Limit on the rows that one task sends per second; 0 for no limit. A write has as many tasks
    at a time as partitions and cores. Rows that are sent again do not count."""
    bytes_per_s: float = option(0.0, "send.bytesPerSecond", unit="bytes per second", low=0)
    """Limit on the bytes of bodies and properties that one task sends per second; 0 for no
    limit."""
    try_timeout_ms: int = option(10_000, "send.timeoutMs", unit="ms", low=1)
    """Timeout of one request."""
    delivery_timeout_ms: int = option(120_000, "send.deliveryTimeoutMs", unit="ms", low=1)
    """Timeout of all attempts of one request, including a restart of the broker; then the task
    fails."""

    def check(self) -> None:
        """Refuse options that are not available or contradict each other.

        Raises:
            OptionError: an option is refused; the text names it.
        """
        check_references(self)
        if self.batch_bytes > self.pending_bytes:
            raise OptionError(
                f"option send.batchBytes is {self.batch_bytes}: "
                f"at most send.pendingBytes, {self.pending_bytes}, is expected"
            )
