# cython: annotation_typing=False, cdivision=True
"""Dispatches records of the commit log to consume queues and index.

    transaction bits of sys_flag    unit in the queue    keys in the index
    none, commit                    yes                  yes
    prepared                        no                   yes
    rollback                        no                   no

A record with a batch gets one unit for all of its messages, in a queue that holds batches.
Dispatch is idempotent. Source: CommitLogDispatcherBuildConsumeQueue and
CommitLogDispatcherBuildIndex, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from sys import intern
from typing import Any

from cometmq.model import property_names
from cometmq.model.delay import DelayLevels
from cometmq.model.flags import SysFlag
from cometmq.model.topic import DELAY_TOPIC
from cometmq.protocol import hashing, octets
from cometmq.protocol import properties as property_text
from cometmq.protocol.batch import MESSAGES_MAX
from cometmq.protocol.properties import marker, tags_code_of, value_of
from cometmq.store.index.key_index import Index
from cometmq.store.queues.batch_consume_queue import BatchConsumeQueue
from cometmq.store.queues.consume_queue import ConsumeQueue

logger = logging.getLogger(__name__)

_DELAY_MARKER = marker(b"DELAY")
_COUNT_MARKER = marker(property_names.INNER_NUM.encode())
_INNER_BATCH = int(SysFlag.INNER_BATCH)


class TopicQueues:
    """The queues of one topic, and values that every append to it needs.

    Args:
        name: the name of the topic.
    """

    def __init__(self, name: str) -> None:
        encoded = name.encode()
        self.name = name
        self.long_name = len(encoded) > 127
        length_bytes = 2 if self.long_name else 1
        self.field = len(encoded).to_bytes(length_bytes, "big") + encoded
        self.key_seed = hashing.java_hash(name + "#")
        self.is_delay = name == DELAY_TOPIC
        self.queues: dict[int, ConsumeQueue] = {}


class QueueTable:
    """All queues of a store.

    Args:
        make: makes the queue of a topic and a number, without files; the queue adds itself
            to the given list of those with unsynced units. The last argument is whether it holds
            batches; None if its topic decides.
        move_units: moves the units of a queue of single messages to one that holds batches.
    """

    def __init__(
        self,
        make: Callable[[str, int, deque[ConsumeQueue], bool | None], ConsumeQueue],
        move_units: Callable[[ConsumeQueue, BatchConsumeQueue], object] = lambda *_: None,
    ) -> None:
        self._make = make
        self._move_units = move_units
        self.topics: dict[str, TopicQueues] = {}
        self.unsynced: deque[ConsumeQueue] = deque()

    def topic(self, name: str) -> TopicQueues:
        """Return the queues of a topic; add the topic if it has none."""
        topic = self.topics.get(name)
        if topic is None:
            name = intern(name)  # as the names of sends are
            topic = self.topics[name] = TopicQueues(name)
        return topic

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue, or None if it does not exist."""
        found = self.topics.get(topic)
        return found.queues.get(queue_id) if found is not None else None

    def queue(self, topic: TopicQueues, queue_id: int) -> ConsumeQueue:
        """Return a queue; make it if it does not exist."""
        queue = topic.queues.get(queue_id)
        return self.add(topic, queue_id, None) if queue is None else queue

    def add(self, topic: TopicQueues, queue_id: int, holds_batches: bool | None) -> ConsumeQueue:
        """Make a queue that does not exist; its topic decides whether it holds batches if None."""
        queue = self._make(topic.name, queue_id, self.unsynced, holds_batches)
        topic.queues[queue_id] = queue
        return queue

    def queue_for(self, topic: TopicQueues, queue_id: int, sys_flag: int) -> ConsumeQueue:
        """Return the queue that takes a record with these flags, as `queue` does.

        Raises:
            OSError: the disk refused.
        """
        queue = self.queue(topic, queue_id)
        if sys_flag & _INNER_BATCH and not queue.holds_batches:
            queue = self.hold_batches(topic, queue)
        return queue

    def hold_batches(self, topic: TopicQueues, queue: ConsumeQueue) -> ConsumeQueue:
        """Replace a queue of single messages by one that holds batches; return that.

        A slave may get messages of a topic before it knows the attributes of the topic.

        Raises:
            OSError: the disk refused; the topic keeps its queue.
        """
        other: Any = self._make(queue.topic, queue.queue_id, self.unsynced, True)
        self._move_units(queue, other)
        topic.queues[queue.queue_id] = other
        return other  # type: ignore[no-any-return]

    def all(self) -> list[ConsumeQueue]:
        """Return every queue; from the thread of the store."""
        return [queue for topic in self.topics.values() for queue in topic.queues.values()]

    def take_unsynced(self, least_pages: int) -> Iterator[ConsumeQueue]:
        """Yield the queues with at least this number of unsynced pages, 0 for any unit.

        From one thread at a time, which syncs each of them before it takes the next one.
        """
        for _ in range(len(self.unsynced)):
            queue = self.unsynced.popleft()
            if least_pages and queue.due_pages() < least_pages:
                self.unsynced.append(queue)
            else:
                queue.unlist()
                yield queue


BitmapOf = Callable[[str, bytes, int, int], bytes]
"""Returns the bit map of a message: topic, properties, store time in ms, how many messages are
stored together."""


class Dispatcher:
    """Appends units to queues and entries to the index.

    Args:
        index: the index; None if messages cannot be looked up by key.
        delay_levels: the delay of each level, as in the settings.
    """

    def __init__(self, index: Index | None, delay_levels: str) -> None:
        self._index: Any = index
        self._delay_levels = delay_levels
        self._levels = DelayLevels.parse(delay_levels)
        self.bitmap_of: BitmapOf | None = None
        """Returns the bit map of a message that gets an extension unit."""
        self.at_once = 1
        """How many messages are stored together."""

    def without_keys(self) -> Dispatcher:
        """Return a dispatcher that appends to queues only."""
        other = Dispatcher(None, self._delay_levels)
        other.bitmap_of = self.bitmap_of
        return other

    def dispatch(
        self,
        topic: TopicQueues,
        queue: ConsumeQueue,
        log_offset: int,
        size: int,
        queue_offset: int,
        sys_flag: int,
        store_ms: int,
        properties: bytes,
    ) -> int:
        """Dispatch a record as `dispatch_in` does; return its tags code."""
        return self.dispatch_in(
            topic,
            queue,
            log_offset,
            size,
            queue_offset,
            sys_flag,
            store_ms,
            properties,
            0,
            len(properties),
        )

    def dispatch_in(
        self,
        topic: TopicQueues,
        queue: ConsumeQueue,
        log_offset: int,
        size: int,
        queue_offset: int,
        sys_flag: int,
        store_ms: int,
        memory: Any,
        at: int,
        end: int,
    ) -> int:
        """Dispatch a record whose properties are from ``at`` to ``end`` in a buffer.

        Its keys are in the index only after `add_keys`.

        Raises:
            OSError: the disk is full or broken, and `make_room` was not called before; the record
                has neither unit nor keys.
        """
        kind = sys_flag & 0xC
        tags_code = 0
        tags_at, tags_end, keys_at, keys_end, id_at, id_end = property_text.spans_of(
            memory, at, end
        )
        if kind == 0 or kind == 8:
            if topic.is_delay:
                tags_code = self.tags_code(topic, store_ms, memory[at:end])
            elif tags_at < tags_end:
                tags_code = hashing.extend_hash_in(0, memory, tags_at, tags_end)
            if queue.holds_batches:
                batches: Any = queue
                count = 1
                if sys_flag & _INNER_BATCH:
                    count = count_of(octets.bytes_in(memory, at, end - at))
                batches.put_batch(queue_offset, log_offset, size, tags_code, store_ms, count)
            elif queue.ext is None or self.bitmap_of is None:
                queue.put(queue_offset, log_offset, size, tags_code, store_ms)
            else:
                bitmap = self.bitmap_of(
                    topic.name, octets.bytes_in(memory, at, end - at), store_ms, self.at_once
                )
                queue.put(queue_offset, log_offset, size, tags_code, store_ms, bitmap)
        if kind != 0xC and self._index is not None:
            self._put_keys(
                topic.key_seed, log_offset, store_ms, memory, keys_at, keys_end, id_at, id_end
            )
        return tags_code

    def add_keys(self) -> None:
        """Add the keys of the records of `dispatch_in` to the index.

        Raises:
            OSError: the disk is full or broken; all records have their units, the last ones lack
                keys.
        """
        if self._index is not None:
            self._index.add_noted()

    def tags_code(self, topic: TopicQueues, store_ms: int, properties: bytes) -> int:
        """Return the hash of the tags of a message, or its due time in the delay topic."""
        if topic.is_delay:
            due_ms = self._due_ms(store_ms, properties)
            if due_ms:
                return due_ms
        return tags_code_of(properties)

    def _due_ms(self, store_ms: int, properties: bytes) -> int:
        text = value_of(properties, _DELAY_MARKER)
        level = self._levels.level_of(None if text is None else text.decode("ascii", "replace"))
        return store_ms + self._levels.delay_ms(level) if level else 0

    def _put_keys(
        self,
        seed: int,
        log_offset: int,
        store_ms: int,
        memory: Any,
        at: int,
        end: int,
        id_at: int,
        id_end: int,
    ) -> None:
        """Index a record under its unique id and under its keys, which spaces separate."""
        index = self._index
        if index.end_log() > log_offset:
            return
        if id_at < id_end:
            hashed = hashing.extend_hash_in(seed, memory, id_at, id_end)
            index.note(hashing.index_hash(hashed), log_offset, store_ms)
        while at < end:
            stop = octets.end_of_run(memory, at, end, 32)
            if at < stop:
                hashed = hashing.extend_hash_in(seed, memory, at, stop)
                index.note(hashing.index_hash(hashed), log_offset, store_ms)
            at = stop + 1


def count_of(properties: bytes) -> int:
    """Return how many messages a record with a batch has, as its properties say; 1 if they do not.

    Records are from this broker, or from a master that checks them as this one does.
    """
    text = value_of(properties, _COUNT_MARKER)
    count = int(text) if text is not None and text.isdigit() and len(text) <= 5 else 1
    return count if 1 <= count <= MESSAGES_MAX else 1
