"""Groups rows by topic and queue, in the order of the rows.

    queue_id (and broker_name)   just this queue
    sharding_key                 the queue that the key's Java hash chooses among the topic's queues
    neither                      any queue of the topic

A row that names a queue goes there even if it has a key. Producers in Java choose the same queue
for a key (SelectMessageQueueByHash), as long as they see the same queues.
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
from cometmq.spark.writing.rows import Numbers, Rows, blank, true, wrong_topic

QueuesOf = Callable[[str], Sequence[MessageQueue]]
"""Gives the queues of a topic that can be written to, always in the same order."""

_ANY = -1


class Group(NamedTuple):
    """Rows that go the same way."""

    topic: str
    queue: MessageQueue | None
    """None for any queue of the topic."""
    rows: Numbers
    """Their numbers in the record batch, in order."""
    alone: bool
    """Whether each of them needs a request of its own."""


def grouped(rows: Rows, delayed: Numbers, topic: str, queues_of: QueuesOf) -> Iterator[Group]:
    """Yield the groups of a record batch.

    Args:
        rows: the rows.
        delayed: which of them are delivered later.
        topic: the option ``topic``; empty if the rows name theirs.
        queues_of: the queues of each topic.

    Raises:
        RowError: a row names a topic or a queue that cannot be.
        Whatever ``queues_of`` raises.
    """
    for name, of_topic in _by_topic(rows, topic):
        queues = queues_of(name)
        places = _places(rows, of_topic, queues, name)
        alone = np.ones(len(of_topic), bool) if name.startswith(RETRY_PREFIX) else delayed[of_topic]
        codes = (places + 1) * 2 + alone
        order = np.argsort(codes, kind="stable")
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        for part in np.split(order, starts[1:]):
            place = int(places[part[0]])
            queue = None if place == _ANY else queues[place]
            yield Group(name, queue, of_topic[part], bool(alone[part[0]]))


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
        own = codes == code
        _check_topic(rows, own, name)
        yield name, np.flatnonzero(own)


def _check_topic(rows: Rows, own: Numbers, name: str) -> None:
    if why := wrong_topic(name):
        rows.refuse(own, f"topic is {name!r}: {why}")


def _places(rows: Rows, which: Numbers, queues: Sequence[MessageQueue], topic: str) -> Numbers:
    """Give each row's queue by its place among the topic's, or `_ANY`."""
    places = np.full(len(rows), _ANY)
    if (keys := rows.column("sharding_key")) is not None:
        rows.refuse(blank(keys), "sharding_key is blank")
        places = _by_key(keys, len(queues))
    if (ids := rows.column("queue_id")) is not None:
        named = true(pc.is_valid(ids))
        asked = np.zeros(len(rows), bool)
        asked[which] = True
        _place_named(rows, ids, named & asked, places, queues, topic)
    return places[which]


def _by_key(keys: pa.Array, count: int) -> Numbers:
    coded = keys.dictionary_encode()
    chosen = [abs(java_hash(key)) % count for key in coded.dictionary.to_pylist()]
    codes = np.asarray(pc.fill_null(coded.indices, len(chosen)))
    places: Numbers = np.array([*chosen, _ANY])[codes]
    return places


def _place_named(
    rows: Rows,
    ids: pa.Array,
    named: Numbers,
    places: Numbers,
    queues: Sequence[MessageQueue],
    topic: str,
) -> None:
    """Put the place of each row that names a queue into ``places``."""
    brokers = rows.column("broker_name")
    names = [None] * len(rows) if brokers is None else brokers.to_pylist()
    found: dict[tuple[str | None, int], int] = {}
    for row in np.flatnonzero(named).tolist():
        asked = (names[row], ids[row].as_py())
        if asked not in found:
            found[asked] = _named(rows, row, asked, queues, topic)
        places[row] = found[asked]


def _named(
    rows: Rows, row: int, asked: tuple[str | None, int], queues: Sequence[MessageQueue], topic: str
) -> int:
    broker, queue_id = asked
    fits = [
        place
        for place, queue in enumerate(queues)
        if queue.queue_id == queue_id and broker in (None, queue.broker_name)
    ]
    if len(fits) == 1:
        return fits[0]
    wrong = np.zeros(len(rows), bool)
    wrong[row] = True
    wanted = f"queue {queue_id}" + ("" if broker is None else f" of {broker}")
    if fits:
        several = ", ".join(queues[place].broker_name for place in fits)
        rows.refuse(wrong, f"{wanted} of topic {topic} is on {several}: name one in broker_name")
    rows.refuse(wrong, f"topic {topic} has no {wanted} that can be written to")
    raise AssertionError("a row was refused")
