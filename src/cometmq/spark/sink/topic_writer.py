"""Writes record batches to topics; returns when brokers have acknowledged every row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import pyarrow as pa

from cometmq.client import MessageQueue
from cometmq.client.blocking.portal import Portal
from cometmq.client.library import ClientConnection, EncodedSender
from cometmq.spark.options.writing import TopicWriteOptions
from cometmq.spark.sink.counts import Sent
from cometmq.spark.sink.message_batches import BatchBuffer, MessageBatch, grouped, message_batches
from cometmq.spark.sink.queued_sends import QueuedSends, SendLimits
from cometmq.spark.sink.rate_limit import RateLimit
from cometmq.spark.sink.row_encoder import RowEncoder
from cometmq.spark.sink.rows import Rows, check_columns
from cometmq.spark.sink.unique_ids import Origin


class Connections(Protocol):
    """Connections to brokers, such as `cometmq.spark.brokers.BrokerSession`."""

    def use(self) -> AbstractContextManager[tuple[Portal, ClientConnection]]:
        """Return the portal and a connection, which stays open within ``with``."""


class TopicWriter:
    """Writes the rows of one partition.

    Args:
        connections: the connections to brokers.
        options: the options of the write.
        origin: the origin of the rows; equal rows of equal origins have equal unique ids.
    """

    def __init__(
        self, connections: Connections, options: TopicWriteOptions, origin: Origin
    ) -> None:
        self._connections = connections
        self._options = options
        self._origin = origin

    def write(self, batches: Iterable[pa.RecordBatch]) -> Sent:
        """Write all rows; return when every row is acknowledged.

        Raises:
            OptionError: a column cannot be written.
            RowError: a row cannot become a message; rows of earlier batches may be stored.
            DeliveryError: rows were refused, or not acknowledged in time; others may be stored.
        """
        with self._connections.use() as (portal, connection):
            task = _WriteTask(portal, connection, self._options, self._origin)
            try:
                for batch in batches:
                    task.write(batch)
                return task.finish()
            finally:
                task.cancel()


class _WriteTask:
    """The state of one call of `TopicWriter.write`."""

    def __init__(
        self,
        portal: Portal,
        connection: ClientConnection,
        options: TopicWriteOptions,
        origin: Origin,
    ) -> None:
        self._portal = portal
        self._options = options
        self._origin = origin
        self._encoder = RowEncoder(
            origin,
            body_bytes_max=options.body_bytes_max,
            drop_reserved=options.reserved_properties == "drop",
        )
        sender = EncodedSender(connection, options.producer_group)
        rate = RateLimit(options.rows_per_s, options.bytes_per_s)
        self._batch_bytes = min(options.batch_bytes, rate.bytes_max)
        self._batch_rows = rate.rows_max
        self._sends = QueuedSends(sender, _limits(options), rate, origin)
        self._queues: dict[str, Sequence[MessageQueue]] = {}
        self._buffer = BatchBuffer(self._batch_bytes, self._batch_rows, options.pending_bytes)
        self._rows = self._bytes = 0

    def write(self, record_batch: pa.RecordBatch) -> None:
        """Encode rows and queue them for sending."""
        options = self._options
        check_columns(record_batch.schema, options.topic)
        rows = Rows(record_batch, self._origin, self._rows)
        encoded = self._encoder.encode(rows)
        ready: list[MessageBatch] = []
        for group in grouped(rows, encoded.delayed, options.topic, self._queues_of):
            for batch in message_batches(
                group, encoded.items, self._rows, self._batch_bytes, self._batch_rows
            ):
                self._bytes += len(batch.data)
                ready += self._buffer.add(batch)
        self._rows += len(rows)
        if ready:
            self._portal.run(self._sends.put(ready))

    def finish(self) -> Sent:
        """Send the buffered rows; return when every row is acknowledged."""
        self._portal.run(self._flush())
        return Sent(self._rows, self._bytes, self._sends.requests, self._sends.retries)

    def cancel(self) -> None:
        """Stop sending; after `finish` this does nothing."""
        self._portal.run(self._sends.cancel())

    async def _flush(self) -> None:
        await self._sends.put(self._buffer.flush())
        await self._sends.finish()

    def _queues_of(self, topic: str) -> Sequence[MessageQueue]:
        """Return a topic's queues, which stay the same for the whole task."""
        if topic not in self._queues:
            self._queues[topic] = self._portal.run(self._sends.queues(topic))
        return self._queues[topic]


def _limits(options: TopicWriteOptions) -> SendLimits:
    return SendLimits(
        requests=options.pending_max,
        bytes=options.pending_bytes,
        request_s=options.try_timeout_ms / 1000,
        delivery_s=options.delivery_timeout_ms / 1000,
        safe=options.acknowledge == "safe",
    )
