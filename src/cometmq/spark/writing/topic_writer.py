"""Writes record batches to topics, and waits until brokers have stored every row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import pyarrow as pa

from cometmq.client import MessageQueue
from cometmq.client._connection.instance import ClientCore
from cometmq.client._sending.sender import Sender
from cometmq.client.blocking.portal import Portal
from cometmq.client.settings import ProducerSettings
from cometmq.spark.options.writing import TopicWriteOptions
from cometmq.spark.writing.delivery import check_delivery
from cometmq.spark.writing.destinations import grouped
from cometmq.spark.writing.encoding import RowEncoder
from cometmq.spark.writing.identity import Origin
from cometmq.spark.writing.lanes import Lanes, Limits
from cometmq.spark.writing.parcels import Parcel, parcels_of, together
from cometmq.spark.writing.rows import Rows, check_columns


class Connections(Protocol):
    """Who has connections to brokers: a `cometmq.spark.brokers.BrokerSession`."""

    def use(self) -> AbstractContextManager[tuple[Portal, ClientCore]]:
        """Give the portal and a running client, which stays open within ``with``."""


class Sent(NamedTuple):
    """What one task has written."""

    rows: int
    bytes: int
    """Of bodies and properties."""
    requests: int
    repeated: int
    """Tries that failed and were made again."""


class TopicWriter:
    """Writes the rows of one partition.

    Args:
        connections: to the brokers.
        options: of the write.
        origin: of the rows; the same rows of the same origin have the same unique ids.
    """

    def __init__(
        self, connections: Connections, options: TopicWriteOptions, origin: Origin
    ) -> None:
        check_delivery(options.delivery)
        self._connections = connections
        self._options = options
        self._origin = origin
        self._encoder = RowEncoder(
            origin,
            body_bytes_max=options.body_bytes_max,
            drop_reserved=options.reserved_properties == "drop",
        )

    def write(self, batches: Iterable[pa.RecordBatch]) -> Sent:
        """Write all rows; return once every one of them was acknowledged.

        Raises:
            OptionError: a column cannot be written.
            RowError: a row cannot become a message; those of earlier batches may be stored.
            DeliveryError: rows were not acknowledged in time, or refused; others may be stored.
        """
        with self._connections.use() as (portal, instance):
            writing = _Writing(portal, instance, self._options, self._origin, self._encoder)
            try:
                for batch in batches:
                    writing.take(batch)
                return writing.finish()
            finally:
                writing.end()


class _Writing:
    """One call of `TopicWriter.write`."""

    def __init__(
        self,
        portal: Portal,
        instance: ClientCore,
        options: TopicWriteOptions,
        origin: Origin,
        encoder: RowEncoder,
    ) -> None:
        self._portal = portal
        self._options = options
        self._origin = origin
        self._encoder = encoder
        settings = ProducerSettings(retries=1, body_bytes_max=options.body_bytes_max)
        self._sender = Sender(instance, options.producer_group, settings)
        self._lanes = Lanes(self._sender, _limits(options), origin)
        self._queues: dict[str, Sequence[MessageQueue]] = {}
        self._gathered: dict[object, _Gathered] = {}
        self._gathered_bytes = 0
        self._rows = self._bytes = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Take the rows of a batch on their way."""
        check_columns(batch.schema, self._options.topic)
        rows = Rows(batch, self._origin, self._rows)
        encoded = self._encoder.encode(rows)
        ready: list[Parcel] = []
        for group in grouped(rows, encoded.delayed, self._options.topic, self._queues_of):
            for parcel in parcels_of(group, encoded.items, self._rows, self._options.batch_bytes):
                ready += self._gather(parcel)
        if self._gathered_bytes > self._options.pending_bytes:
            ready += self._all_gathered()
        self._rows += len(rows)
        if ready:
            self._portal.run(self._lanes.put(ready))

    def finish(self) -> Sent:
        """Return once everything was acknowledged."""
        self._portal.run(self._last())
        return Sent(self._rows, self._bytes, self._lanes.requests, self._lanes.repeated)

    def end(self) -> None:
        """Give up what is still on its way."""
        self._portal.run(self._lanes.cancel())

    async def _last(self) -> None:
        await self._lanes.put(self._all_gathered())
        await self._lanes.finish()

    def _gather(self, parcel: Parcel) -> list[Parcel]:
        """Keep a parcel back for others on its way; give those that are to go."""
        size = len(parcel.data)
        self._bytes += size
        gathered = self._gathered.setdefault((parcel.topic, parcel.queue), _Gathered())
        ready = []
        if parcel.alone or gathered.bytes + size > self._options.batch_bytes:
            self._gathered_bytes -= gathered.bytes
            ready = gathered.taken()
        if parcel.alone:
            return [*ready, parcel]
        gathered.add(parcel)
        self._gathered_bytes += size
        return ready

    def _all_gathered(self) -> list[Parcel]:
        self._gathered_bytes = 0
        return [parcel for gathered in self._gathered.values() for parcel in gathered.taken()]

    def _queues_of(self, topic: str) -> Sequence[MessageQueue]:
        """Give a topic's queues, which stay the same for the whole task."""
        if topic not in self._queues:
            self._queues[topic] = self._portal.run(self._lanes.queues(topic))
        return self._queues[topic]


class _Gathered:
    """Parcels of one way that wait for more, to travel in one request."""

    def __init__(self) -> None:
        self._parcels: list[Parcel] = []
        self.bytes = 0

    def add(self, parcel: Parcel) -> None:
        """Let one more wait."""
        self._parcels.append(parcel)
        self.bytes += len(parcel.data)

    def taken(self) -> list[Parcel]:
        """Give all as one, if there are any, and wait for others."""
        parcels, self._parcels, self.bytes = self._parcels, [], 0
        return [together(parcels)] if parcels else []


def _limits(options: TopicWriteOptions) -> Limits:
    return Limits(
        requests=options.pending_max,
        bytes=options.pending_bytes,
        try_s=options.try_timeout_ms / 1000,
        all_tries_s=options.delivery_timeout_ms / 1000,
        safe=options.acknowledge == "safe",
    )
