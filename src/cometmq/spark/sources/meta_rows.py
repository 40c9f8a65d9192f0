"""The rows of ``rocketmq-meta``: bounds of each queue, committed offset and lag of each group.

A queue has one row for each group that has committed an offset of it or was asked for by name, and
one row without a group if there is none. Needs no Spark.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from cometmq.model.namespace import is_system_group
from cometmq.model.topic import is_system_topic
from cometmq.spark.brokers import BrokerSession
from cometmq.spark.offsets import QueueKey
from cometmq.spark.options.meta import MetaOptions
from cometmq.spark.schema import TIMESTAMP, Column, arrow_schema

META: tuple[Column, ...] = (
    Column("topic", pa.string(), False, "STRING", "the topic"),
    Column("broker_name", pa.string(), False, "STRING", "the broker that has the queue"),
    Column("queue_id", pa.int32(), False, "INT", "the queue within topic and broker"),
    Column("consumer_group", pa.string(), True, "STRING", "the group; null if there is none"),
    Column("min_offset", pa.int64(), False, "BIGINT", "the offset of the oldest message"),
    Column("max_offset", pa.int64(), False, "BIGINT", "the offset of the next message"),
    Column("committed_offset", pa.int64(), True, "BIGINT", "the committed offset; null if none"),
    Column("lag", pa.int64(), True, "BIGINT", "messages not consumed yet"),
    Column(
        "last_store_timestamp", TIMESTAMP, True, "TIMESTAMP", "store time of the newest message"
    ),
    Column("observed_timestamp", TIMESTAMP, False, "TIMESTAMP", "time of the request"),
)
"""The columns of the format."""

REPLY_SUFFIX = "_REPLY_TOPIC"
ROWS_MAX = 10_000


class QueueState(NamedTuple):
    """What a broker says of a queue."""

    min_offset: int
    max_offset: int
    last_store_ms: int
    """0 if there is no message."""


def chosen_topics(options: MetaOptions, session: BrokerSession) -> list[str]:
    """Return the topics that there are rows for.

    Raises:
        UnreachableError: no name server answers.
    """
    if options.topics:
        return list(options.topics)
    if options.subscribe_pattern:
        return session.topics_matching(options.subscribe_pattern)
    topics = session.topics()
    if options.include_system:
        return topics
    own = _own_names(session)
    return [topic for topic in topics if topic not in own and not is_system_topic(topic)]


def _own_names(session: BrokerSession) -> set[str]:
    """Return the topics that brokers make for themselves, which bear their and their cluster's
    names."""
    brokers = session.brokers()
    clusters = set(brokers.values())
    return {*brokers, *clusters, *(cluster + REPLY_SUFFIX for cluster in clusters)}


class GroupChoice:
    """Which groups there are rows for.

    Args:
        options: of the query.
    """

    def __init__(self, options: MetaOptions) -> None:
        self.named = options.group_names
        """Groups that have a row in every queue."""
        self._pattern = re.compile(options.group_pattern) if options.group_pattern else None
        self._system = options.include_system

    def takes(self, group: str) -> bool:
        """Whether there are rows for a group that has committed something."""
        if self.named:
            return group in self.named
        if self._pattern is not None:
            return self._pattern.fullmatch(group) is not None
        return self._system or not is_system_group(group)


def broker_rows(
    options: MetaOptions, session: BrokerSession, broker: str, topics: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one broker.

    Args:
        options: of the query.
        session: with the brokers.
        broker: its name.
        topics: those that are looked at; one that is deleted meanwhile has no rows.

    Raises:
        UnreachableError: the broker does not answer.
    """
    keys = [key for key in session.queues(topics, gone=set()) if key.broker == broker]
    states = _states(session, keys)
    observed = time.time_ns() // 1_000
    committed = session.group_offsets(broker)
    choice = GroupChoice(options)
    for key in sorted(states):
        yield from _queue_rows(key, states[key], _groups_of(key, committed, choice), observed)


def _states(session: BrokerSession, keys: Iterable[QueueKey]) -> dict[QueueKey, QueueState]:
    gone: set[QueueKey] = set()
    stats = session.stats(keys, gone=gone)
    rest = set(keys) - stats.keys() - gone
    bounds = session.bounds(rest, gone=gone) if rest else {}
    found = {
        key: QueueState(each.min_offset, each.max_offset, each.last_update_timestamp)
        for key, each in stats.items()
    }
    found.update({key: QueueState(each.min, each.max, 0) for key, each in bounds.items()})
    return found


def _groups_of(
    key: QueueKey,
    committed: Mapping[tuple[str, str], Mapping[int, int]],
    choice: GroupChoice,
) -> dict[str, int | None]:
    found: dict[str, int | None] = dict.fromkeys(choice.named)
    for (topic, group), offsets in committed.items():
        if topic == key.topic and key.queue_id in offsets and choice.takes(group):
            found[group] = offsets[key.queue_id]
    return found


def _queue_rows(
    key: QueueKey, state: QueueState, groups: Mapping[str, int | None], observed_us: int
) -> Iterator[dict[str, Any]]:
    last_us = state.last_store_ms * 1_000 if state.last_store_ms > 0 else None
    nobody: dict[str | None, int | None] = {None: None}
    for group, offset in sorted(groups.items()) or nobody.items():
        yield {
            "topic": key.topic,
            "broker_name": key.broker,
            "queue_id": key.queue_id,
            "consumer_group": group,
            "min_offset": state.min_offset,
            "max_offset": state.max_offset,
            "committed_offset": offset,
            "lag": None if group is None else lag(state, offset),
            "last_store_timestamp": last_us,
            "observed_timestamp": observed_us,
        }


def lag(state: QueueState, committed: int | None) -> int:
    """Return how many messages a group has to see still; all while it has committed nothing."""
    place = state.min_offset if committed is None else max(committed, state.min_offset)
    return max(state.max_offset - place, 0)


def batches(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[Column]
) -> Iterator[pa.RecordBatch]:
    """Yield the asked columns of rows in batches of bounded size."""
    schema = arrow_schema(columns)
    waiting: list[Mapping[str, Any]] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == ROWS_MAX:
            yield _batch(waiting, schema)
            waiting = []
    if waiting:
        yield _batch(waiting, schema)


def _batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
