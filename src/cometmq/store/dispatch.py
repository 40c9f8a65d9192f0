# cython: annotation_typing=False, cdivision=True
"""Dispatch: what a record in the commit log means for its consume queue and for the index.

    transaction bits of sys_flag    unit in the queue    keys in the index
    none, commit                    yes                  yes
    prepared                        no                   yes
    rollback                        no                   no

Doing it twice changes nothing. Source: CommitLogDispatcherBuildConsumeQueue and
CommitLogDispatcherBuildIndex, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from cometmq.model.delay import read_delay_levels
from cometmq.model.topic import DELAY_TOPIC
from cometmq.protocol.hashing import extend_hash, index_hash, java_hash
from cometmq.protocol.properties import index_keys_of, marker, tags_code_of, value_of
from cometmq.store.consume_queue import ConsumeQueue
from cometmq.store.index import Index

logger = logging.getLogger(__name__)

_DELAY_MARKER = marker(b"DELAY")
_UNKNOWN_LEVEL_MS = 1000


class TopicQueues:
    """The queues of one topic, and what appending to it needs again and again.

    Args:
        name: of the topic.
    """

    def __init__(self, name: str) -> None:
        encoded = name.encode()
        self.name = name
        self.long_name = len(encoded) > 127
        length_bytes = 2 if self.long_name else 1
        self.field = len(encoded).to_bytes(length_bytes, "big") + encoded
        self.key_seed = java_hash(name + "#")
        self.is_delay = name == DELAY_TOPIC
        self.queues: dict[int, ConsumeQueue] = {}


class QueueTable:
    """All queues of a store.

    Args:
        make: makes the queue of a topic and a number, still without files.
    """

    def __init__(self, make: Callable[[str, int], ConsumeQueue]) -> None:
        self._make = make
        self.topics: dict[str, TopicQueues] = {}

    def topic(self, name: str) -> TopicQueues:
        """Return a topic's queues, an empty set of them where there are none yet."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = TopicQueues(name)
        return topic

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue that exists."""
        found = self.topics.get(topic)
        return found.queues.get(queue_id) if found is not None else None

    def queue(self, topic: TopicQueues, queue_id: int) -> ConsumeQueue:
        """Return a queue, making it where it does not exist."""
        queue = topic.queues.get(queue_id)
        if queue is None:
            queue = topic.queues[queue_id] = self._make(topic.name, queue_id)
        return queue

    def all(self) -> list[ConsumeQueue]:
        """Return every queue."""
        return [queue for topic in list(self.topics.values()) for queue in topic.queues.values()]


class Dispatcher:
    """Feeds queues and index.

    Args:
        index: where keys go; None where messages cannot be looked up by key.
        delay_levels: the delay of each level, as in the settings.
    """

    def __init__(self, index: Index | None, delay_levels: str) -> None:
        levels = read_delay_levels(delay_levels)
        self._index: Any = index
        self._delays_ms = levels.delays_ms
        self._max_level = levels.max_level

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
        """Write what follows from one record; return its tags code.

        Raises:
            OSError: the disk is full or broken and room was not made before.
        """
        kind = sys_flag & 0xC
        tags_code = 0
        if kind == 0 or kind == 8:
            tags_code = self.tags_code(topic, store_ms, properties)
            queue.put(queue_offset, log_offset, size, tags_code, store_ms)
        if kind != 0xC and self._index is not None:
            self._put_keys(topic.key_seed, log_offset, store_ms, properties)
        return tags_code

    def tags_code(self, topic: TopicQueues, store_ms: int, properties: bytes) -> int:
        """Return the hash of a message's tags, or in the delay topic when it is due."""
        if topic.is_delay:
            due_ms = self._due_ms(store_ms, properties)
            if due_ms:
                return due_ms
        return tags_code_of(properties)

    def _due_ms(self, store_ms: int, properties: bytes) -> int:
        text = value_of(properties, _DELAY_MARKER)
        level = int(text) if text is not None and text.isdigit() and len(text) < 10 else 0
        if level == 0:
            return 0
        delay_ms = self._delays_ms.get(min(level, self._max_level), _UNKNOWN_LEVEL_MS)
        return store_ms + delay_ms

    def _put_keys(self, seed: int, log_offset: int, store_ms: int, properties: bytes) -> None:
        index = self._index
        newest = index.newest
        if newest is not None and log_offset < newest.end_log:
            return
        keys = index_keys_of(properties)
        for key in keys:
            index.put(index_hash(extend_hash(seed, key)), log_offset, store_ms)
        if keys:
            index.newest.write_header()
