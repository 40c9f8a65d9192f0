"""Writes record batches to topics; returns when brokers have acknowledged every row.

If brokers have producer sessions, a repeated attempt of the task stores no row twice: it opens the
session of the task, which ends earlier attempts, and leaves out the rows that those have stored.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from cometmq.client import MessageQueue
from cometmq.client.blocking.portal import Portal
from cometmq.client.library import LOGICAL_PREFIX, ClientConnection, EncodedSender
from cometmq.protocol.batch import decode_batch, encode_batch
from cometmq.protocol.properties import UNIQ_KEY_MARKER, value_of
from cometmq.spark.brokers import BrokerSession
from cometmq.spark.errors import DeliveryError, FencedError, NotExactlyOnceError, SourceError
from cometmq.spark.offsets import QueueRange
from cometmq.spark.options.writing import AT_LEAST_ONCE, AUTO, EXACTLY_ONCE, TopicWriteOptions
from cometmq.spark.sink.counts import Sent
from cometmq.spark.sink.message_batches import (
    BatchBuffer,
    MessageBatch,
    RowGroup,
    grouped,
    message_batches,
)
from cometmq.spark.sink.queued_sends import (
    PAUSE_MAX_S,
    PAUSE_S,
    QueuedSends,
    RateLimit,
    SendLimits,
    UncertainError,
)
from cometmq.spark.sink.row_encoder import RowEncoder
from cometmq.spark.sink.rows import Rows, check_columns
from cometmq.spark.sink.stored_ids import StoredIds, read_ids
from cometmq.spark.sink.topic_session import SessionTask, TopicSession
from cometmq.spark.sink.unique_ids import Origin

log = logging.getLogger(__name__)


class TopicWriter:
    """Writes the rows of one partition.

    Args:
        connections: the connections to brokers.
        options: the options of the write.
        origin: the origin of the rows; equal rows of equal origins have equal unique ids.
        is_named: whether the job may be started again by its name.
    """

    def __init__(
        self,
        connections: BrokerSession,
        options: TopicWriteOptions,
        origin: Origin,
        *,
        is_named: bool = True,
    ) -> None:
        self._connections = connections
        self._options = options
        self._settings = options, origin, is_named

    def write(self, batches: Iterable[pa.RecordBatch]) -> Sent:
        """Write all rows; return when every row is acknowledged.

        Raises:
            OptionError: a column cannot be written.
            RowError: a row cannot become a message; rows of earlier batches may be stored.
            DeliveryError: rows were refused, or not acknowledged in time; others may be stored.
            NotExactlyOnceError: a row may be stored twice, and the option ``delivery`` does not
                allow that.
            FencedError: a newer attempt of the task writes the rows. Spark has had time to kill
                this one.
        """
        try:
            return self._write(batches)
        except FencedError as fenced:
            log.warning("waiting to be killed: %s", fenced)
            threading.Event().wait(self._options.delivery_timeout_ms / 1000)
            raise

    def _write(self, batches: Iterable[pa.RecordBatch]) -> Sent:
        with self._connections.use() as (portal, connection):
            task = _WriteTask(portal, connection, self._connections, *self._settings)
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
        connections: BrokerSession,
        options: TopicWriteOptions,
        origin: Origin,
        is_named: bool,
    ) -> None:
        self._portal = portal
        self._connections = connections
        self._options, self._origin = options, origin
        self._encoder = RowEncoder(
            origin,
            body_bytes_max=options.body_bytes_max,
            drop_reserved=options.reserved_properties == "drop",
        )
        self._sender = EncodedSender(connection, options.producer_group)
        rate = RateLimit(options.rows_per_s, options.bytes_per_s)
        self._batch_bytes = min(options.batch_bytes, rate.bytes_max)
        self._batch_rows = rate.rows_max
        limits = _limits(options)
        self._sends = QueuedSends(self._sender, limits, rate, origin)
        self._task = SessionTask(origin, limits, is_named)
        self._sessions: dict[str, TopicSession] = {}
        self._stored: dict[str, StoredIds] = {}
        """The ids that earlier attempts have stored, of topics with a producer session."""
        self._queues: dict[str, Sequence[MessageQueue]] = {}
        self._next_queue: dict[str, Iterator[MessageQueue]] = {}
        self._buffer = BatchBuffer(self._batch_bytes, self._batch_rows, options.pending_bytes)
        self._rows = self._bytes = 0
        self._acknowledged = -1
        self._stalled_s = 0.0
        """When the first uncertain response came since the last acknowledgement."""
        self._pause_s = PAUSE_S

    def write(self, record_batch: pa.RecordBatch) -> None:
        """Encode rows and queue them for sending."""
        options = self._options
        check_columns(record_batch.schema, options.topic)
        rows = Rows(record_batch, self._origin, self._rows)
        encoded = self._encoder.encode(rows)
        if options.delivery == EXACTLY_ONCE:
            rows.refuse(encoded.delayed, "a delayed row cannot be written with exactly-once")
        ready: list[MessageBatch] = []
        for group in grouped(rows, encoded.delayed, options.topic, self._queues_of):
            group = self._not_stored(group, encoded.ids)
            for batch in message_batches(
                group, encoded.items, self._rows, self._batch_bytes, self._batch_rows
            ):
                self._bytes += len(batch.data)
                ready += self._buffer.add(batch)
        self._rows += len(rows)
        if ready:
            self._put(ready)

    def finish(self) -> Sent:
        """Send the buffered rows; return when every row is acknowledged."""
        self._put(self._buffer.flush())
        self._run(self._sends.finish)
        return Sent(self._rows, self._bytes, self._sends.requests, self._sends.retries)

    def cancel(self) -> None:
        """Stop sending; after `finish` this does nothing."""
        self._portal.run(self._sends.cancel())

    def _put(self, batches: list[MessageBatch]) -> None:
        """Queue batches; with a producer session each has a queue, so that it is found again."""
        ready = [
            batch._replace(queue=next(self._next_queue[batch.topic]))
            if batch.queue is None and batch.topic in self._sessions
            else batch
            for batch in batches
        ]
        try:
            self._portal.run(self._sends.put(ready))
        except UncertainError:
            self._recover()
            self._run(partial(self._sends.put, []))

    def _queues_of(self, topic: str) -> Sequence[MessageQueue]:
        """Return a topic's queues, which stay the same for the whole task."""
        if topic not in self._queues:
            queues = self._portal.run(self._sends.queues(topic))
            if self._options.delivery != AT_LEAST_ONCE:
                queues = self._open(topic, queues)
            self._queues[topic] = queues
        return self._queues[topic]

    # --- exactly once -----------------------------------------------------------------------------

    def _open(self, topic: str, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Open the producer session of a topic, and find out what earlier attempts have stored.

        Returns:
            The topic's queues.
        """
        session = TopicSession(self._sender, topic, self._task)
        try:
            if any(queue.broker_name.startswith(LOGICAL_PREFIX) for queue in queues):
                raise NotExactlyOnceError(f"topic {topic} is a static topic, whose queues move")
            ranges = self._portal.run(session.open())
            queues = self._portal.run(self._sends.queues(topic))
            if not {queue.broker_name for queue in queues} <= session.brokers:
                raise DeliveryError(f"topic {topic}: its brokers have just changed")
        except NotExactlyOnceError as reason:
            self._not_exactly_once(reason)
            return queues
        self._use(topic, session)
        first = random.randrange(len(queues))  # many tasks may have one batch each
        self._next_queue[topic] = itertools.cycle(queues[first:] + queues[:first])
        self._stored[topic] = self._read(ranges)
        return queues

    def _use(self, topic: str, session: TopicSession) -> None:
        self._sessions[topic] = session
        self._sends.sessions[topic] = session.session

    def _read(self, ranges: Iterable[QueueRange]) -> StoredIds:
        """Return the ids that are stored in some ranges, none if they may not be read."""
        timeout_ms = self._options.delivery_timeout_ms
        try:
            return read_ids(self._connections, ranges, timeout_ms=timeout_ms)
        except SourceError as reason:
            self._not_exactly_once(reason)
            return StoredIds()

    def _not_exactly_once(self, reason: SourceError) -> None:
        """Go on, if a row may be stored twice.

        Raises:
            NotExactlyOnceError: the option does not allow that.
        """
        if self._options.delivery != AUTO:
            raise NotExactlyOnceError(
                f"{reason}; with delivery=at-least-once a row may be stored twice"
            ) from reason
        log_once(str(reason))

    def _not_stored(self, group: RowGroup, ids: pa.Array) -> RowGroup:
        """Return a group without the rows that earlier attempts have stored."""
        stored = self._stored.get(group.topic)
        if not stored:
            return group
        rows = group.rows[~stored.contains(ids.take(pa.array(group.rows)))]
        return group._replace(rows=rows)

    def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a part of the write, again after each uncertain response."""
        while True:
            try:
                return self._portal.run(work())
            except UncertainError:
                self._recover()

    def _recover(self) -> None:
        """Find out which batches are stored after uncertain responses, and send the others."""
        uncertain = self._portal.run(self._sends.settle())
        now_s = time.monotonic()
        if self._sends.acknowledged > self._acknowledged:
            self._acknowledged = self._sends.acknowledged
            self._stalled_s, self._pause_s = now_s, PAUSE_S
        else:
            time.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        is_late = now_s - self._stalled_s > self._task.limits.delivery_s
        for topic, waiting in uncertain.items():
            error = self._sends.error_of(topic)
            if is_late:
                raise error
            log.info("opening the producer session again: %s", error)
            session = self._sessions[topic]
            ranges = self._portal.run(session.reopen(waiting))
            self._use(topic, session)
            stored = self._read(ranges)
            for queue in waiting:
                first = self._sends.first(queue)
                kept = _without(first, stored)
                if kept is not first:
                    self._sends.replace_first(queue, kept)
        self._portal.run(self._sends.resume())


def _without(batch: MessageBatch, stored: StoredIds) -> MessageBatch | None:
    """Return a batch without its stored messages; None if there is no other."""
    items = decode_batch(batch.data)
    ids = [value_of(item.properties, UNIQ_KEY_MARKER) or b"" for item in items]
    found = stored.contains(pa.array(ids, pa.binary()))
    if not found.any():
        return batch
    kept = [items[number] for number in np.flatnonzero(~found).tolist()]
    return batch._replace(data=encode_batch(kept), messages=len(kept)) if kept else None


_logged: set[str] = set()
_LOGGED_MAX = 1_000


def log_once(reason: str) -> None:
    """Log once in this process why a row may be stored twice."""
    if reason not in _logged and len(_logged) < _LOGGED_MAX:
        _logged.add(reason)
        log.warning(
            "rows are written at least once: a repeated task may store rows twice, with equal"
            " unique ids: %s",
            reason,
        )


def _limits(options: TopicWriteOptions) -> SendLimits:
    return SendLimits(
        requests=options.pending_max,
        bytes=options.pending_bytes,
        request_s=options.try_timeout_ms / 1000,
        delivery_s=options.delivery_timeout_ms / 1000,
        safe=options.acknowledge == "safe",
    )
