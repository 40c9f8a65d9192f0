"""Divides rows into batches of messages: one topic, one queue and one request each.

    queue_id (and broker_name)   the named queue
    sharding_key                 the queue that the key's Java hash selects among the topic's queues
    neither                      any queue of the topic

A row that names a queue goes there even if it has a key. The batches of a queue keep the order of
the rows.

Source: SelectMessageQueueByHash, RocketMQ 5.3, for the queue of a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.model.queue import MessageQueue
from cometmq.model.topic import RETRY_PREFIX
from cometmq.protocol.hashing import java_hash
from cometmq.spark.sink.rows import Numbers, Rows, blank, lengths, topic_problem, true

QueuesOf = Callable[[str], Sequence[MessageQueue]]
"""Returns the writable queues of a topic, always in the same order."""

_ANY = -1


class RowGroup(NamedTuple):
    """Rows of one record batch with the same topic and queue."""

    topic: str
    queue: MessageQueue | None
    """The target queue; None for any queue of the topic."""
    rows: Numbers
    """The numbers of the rows in the record batch, in order."""
    single: bool
    """Whether each row needs a request of its own: brokers refuse such rows in a batch."""


class MessageBatch(NamedTuple):
    """Messages for one queue, encoded for one request."""

    topic: str
    queue: MessageQueue | None
    """The target queue; None for any queue of the topic."""
    data: bytes
    """The encoded messages, back to back."""
    messages: int
    first_row: int
    last_row: int
    single: bool = False
    """Whether the one message is sent by the request for single messages."""


class BatchBuffer:
    """Joins small batches of the same queue until they fill a request.

    Args:
        batch_bytes: size limit of a joined batch.
        batch_rows: size limit of a joined batch in messages.
        total_bytes: size limit of all buffered batches; above it all are returned.
    """

    def __init__(self, batch_bytes: int, batch_rows: int, total_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self._batch_rows = batch_rows
        self._total_bytes = total_bytes
        self._waiting: dict[object, list[MessageBatch]] = {}
        self._sizes: dict[object, int] = {}
        self._rows: dict[object, int] = {}
        self._size = 0

    def add(self, batch: MessageBatch) -> list[MessageBatch]:
        """Add a batch; return the batches to send now, in their order."""
        key, size = (batch.topic, batch.queue), len(batch.data)
        ready: list[MessageBatch] = []
        is_full = self._sizes.get(key, 0) + size > self._batch_bytes
        if batch.single or is_full or self._rows.get(key, 0) + batch.messages > self._batch_rows:
            ready = self._taken(key)
        if batch.single:
            return [*ready, batch]
        self._waiting.setdefault(key, []).append(batch)
        self._sizes[key] = self._sizes.get(key, 0) + size
        self._rows[key] = self._rows.get(key, 0) + batch.messages
        self._size += size
        return [*ready, *self.flush()] if self._size > self._total_bytes else ready

    def flush(self) -> list[MessageBatch]:
        """Return all buffered batches."""
        return [batch for key in list(self._waiting) for batch in self._taken(key)]

    def _taken(self, key: object) -> list[MessageBatch]:
        self._size -= self._sizes.pop(key, 0)
        self._rows.pop(key, None)
        batches = self._waiting.pop(key, [])
        if len(batches) < 2:
            return batches
        data = b"".join(batch.data for batch in batches)
        messages = sum(batch.messages for batch in batches)
        last_row = batches[-1].last_row
        return [batches[0]._replace(data=data, messages=messages, last_row=last_row)]


def grouped(rows: Rows, delayed: Numbers, topic: str, queues_of: QueuesOf) -> Iterator[RowGroup]:
    """Group the rows of a record batch by topic and queue.

    Args:
        rows: the rows.
        delayed: whether each row is a delayed message.
        topic: the option ``topic``; empty if the rows name their topics.
        queues_of: returns the queues of each topic.

    Raises:
        RowError: a row names a topic or queue that does not exist or cannot be written to.
        Whatever ``queues_of`` raises.
    """
    for name, chosen in _by_topic(rows, topic):
        queues = queues_of(name)
        indexes = _queue_indexes(rows, chosen, queues, name)
        single = np.ones(len(chosen), bool) if name.startswith(RETRY_PREFIX) else delayed[chosen]
        codes = (indexes + 1) * 2 + single
        order = np.argsort(codes, kind="stable")
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        for part in np.split(order, starts[1:]):
            index = int(indexes[part[0]])
            queue = None if index == _ANY else queues[index]
            yield RowGroup(name, queue, chosen[part], bool(single[part[0]]))


def message_batches(
    group: RowGroup, items: pa.Array, first_row: int, bytes_max: int, rows_max: int
) -> Iterator[MessageBatch]:
    """Divide a group of rows into batches, in order.

    Args:
        group: the rows.
        items: every row of the record batch, encoded.
        first_row: the number of the record batch's first row in its partition.
        bytes_max: size limit of a batch; a larger row is sent as a single message.
        rows_max: size limit of a batch in messages.
    """
    own = items if len(group.rows) == len(items) else items.take(pa.array(group.rows))
    ends = np.cumsum(lengths(own))
    at = 0
    while at < len(own):
        begin = int(ends[at - 1]) if at else 0
        single = group.single or int(ends[at]) - begin > bytes_max
        stop = at + 1
        if not single:
            stop = int(np.searchsorted(ends, begin + bytes_max, side="right"))
            stop = min(stop, at + rows_max)
        yield MessageBatch(
            group.topic,
            group.queue,
            _data(own.slice(at, stop - at)),
            stop - at,
            first_row + int(group.rows[at]),
            first_row + int(group.rows[stop - 1]),
            single,
        )
        at = stop


def _by_topic(rows: Rows, topic: str) -> Iterator[tuple[str, Numbers]]:
    if topic:
        if len(rows):
            yield topic, np.arange(len(rows))
        return
    column = rows.column("topic")
    if column is None:
        rows.refuse(np.ones(len(rows), bool), "topic is null")
        return
    rows.refuse(true(pc.is_null(column)), "topic is null")
    coded = column.dictionary_encode()
    codes = np.asarray(coded.indices)
    for code, name in enumerate(coded.dictionary.to_pylist()):
        chosen = codes == code
        if problem := topic_problem(name):
            rows.refuse(chosen, f"topic is {name!r}: {problem}")
        yield name, np.flatnonzero(chosen)


def _queue_indexes(
    rows: Rows, chosen: Numbers, queues: Sequence[MessageQueue], topic: str
) -> Numbers:
    """Return the index of each chosen row's queue among the topic's queues, or `_ANY`."""
    indexes = np.full(len(rows), _ANY)
    if (keys := rows.column("sharding_key")) is not None:
        rows.refuse(blank(keys), "sharding_key is blank")
        indexes = _indexes_by_key(keys, len(queues))
    if (ids := rows.column("queue_id")) is not None:
        is_chosen = np.zeros(len(rows), bool)
        is_chosen[chosen] = True
        named = is_chosen & true(pc.is_valid(ids))
        _set_named(rows, ids, named, indexes, queues, topic)
    return indexes[chosen]


def _indexes_by_key(keys: pa.Array, count: int) -> Numbers:
    coded = keys.dictionary_encode()
    chosen = [abs(java_hash(key)) % count for key in coded.dictionary.to_pylist()]
    codes = np.asarray(pc.fill_null(coded.indices, len(chosen)))
    indexes: Numbers = np.array([*chosen, _ANY])[codes]
    return indexes


def _set_named(
    rows: Rows,
    ids: pa.Array,
    named: Numbers,
    indexes: Numbers,
    queues: Sequence[MessageQueue],
    topic: str,
) -> None:
    """Set the index of each row that names a queue."""
    brokers = rows.column("broker_name")
    broker_names = [None] * len(rows) if brokers is None else brokers.to_pylist()
    found: dict[tuple[str | None, int], int] = {}
    for row in np.flatnonzero(named).tolist():
        name = (broker_names[row], ids[row].as_py())
        if name not in found:
            found[name] = _index_of(rows, row, name, queues, topic)
        indexes[row] = found[name]


def _index_of(
    rows: Rows, row: int, name: tuple[str | None, int], queues: Sequence[MessageQueue], topic: str
) -> int:
    broker, queue_id = name
    fits = [
        index
        for index, queue in enumerate(queues)
        if queue.queue_id == queue_id and broker in (None, queue.broker_name)
    ]
    if len(fits) == 1:
        return fits[0]
    wrong = np.zeros(len(rows), bool)
    wrong[row] = True
    wanted = f"queue {queue_id}" + ("" if broker is None else f" of {broker}")
    if fits:
        several = ", ".join(queues[index].broker_name for index in fits)
        rows.refuse(wrong, f"{wanted} of topic {topic} is on {several}: name one in broker_name")
    rows.refuse(wrong, f"topic {topic} has no {wanted} that can be written to")
    raise AssertionError("a row was refused")


def _data(items: pa.Array) -> bytes:
    """Return the bytes of adjacent items."""
    bounds: Numbers = np.frombuffer(items.buffers()[1], "<i4", len(items) + 1, 4 * items.offset)
    return bytes(memoryview(items.buffers()[2])[int(bounds[0]) : int(bounds[-1])])
