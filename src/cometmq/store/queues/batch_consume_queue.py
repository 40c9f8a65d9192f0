# cython: annotation_typing=False, cdivision=True
"""A consume queue whose units may stand for several messages: a batch that is one record.

    unit := log_offset:i64 size:i32 tags_code:i64 store_ms:i64 base:i64 count:i16 -1:i32 0:i32

``base`` is the queue offset of the first message, ``count`` the number of messages: 1 for a record
that is no batch. Units follow each other without fillers, so a search finds the unit of a queue
offset. A reader takes the next unit's ``base`` as the end of a unit: a damaged ``count`` skips no
message.
Source: BatchConsumeQueue, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections import deque

from cometmq.store.log import record_layout
from cometmq.store.log.segments import Segments
from cometmq.store.queues.consume_queue import ConsumeQueue

logger = logging.getLogger(__name__)

BATCH_UNIT_BYTES = 46
_BYTES = BATCH_UNIT_BYTES  # a C number once compiled
_STORE_TIME_AT = 20
_BASE_AT = 28
_COUNT_AT = 36
_COMPACTED_AT = 38
_NOT_COMPACTED = -1


class BatchConsumeQueue(ConsumeQueue):
    """The units of one queue of a topic with ``queue.type=BatchCQ``.

    Args:
        topic: the name of the topic.
        queue_id: the number of the queue.
        segments: the files, not yet loaded.
        unsynced: the list that gets the queue as soon as it has unsynced units.
    """

    def __init__(
        self,
        topic: str,
        queue_id: int,
        segments: Segments,
        unsynced: deque[ConsumeQueue] | None = None,
    ) -> None:
        ConsumeQueue.__init__(self, topic, queue_id, segments, None, unsynced)
        self.unit_bytes = _BYTES
        self.holds_batches = True

    def put_batch(
        self,
        queue_offset: int,
        log_offset: int,
        size: int,
        tags_code: int,
        store_ms: int,
        count: int,
    ) -> None:
        """Append the unit of a record; do nothing if the queue has it.

        Args:
            queue_offset: the offset of its first message.
            log_offset: where the record is.
            size: of the record.
            tags_code: what consumers filter by.
            store_ms: when it was stored.
            count: the number of its messages.
        """
        if log_offset + size <= self.max_physical:
            return
        if queue_offset != self.max_offset and not self._jump(queue_offset):
            return
        if self._position + _BYTES > self._room_end:
            self._reserve(1)
        memory, at = self._memory, self._position
        record_layout.write_unit(memory, at, log_offset, size, tags_code)
        record_layout.put_i64(memory, at + _STORE_TIME_AT, store_ms)
        record_layout.put_i64(memory, at + _BASE_AT, queue_offset)
        record_layout.put_i16(memory, at + _COUNT_AT, count)
        record_layout.put_i32(memory, at + _COMPACTED_AT, _NOT_COMPACTED)
        record_layout.put_i32(memory, at + _COMPACTED_AT + 4, 0)
        if self.first_unit == self.end_unit:
            self.min_offset = queue_offset
        self._position += _BYTES
        self.end_unit += 1
        self.max_offset = queue_offset + count
        self.max_physical = log_offset + size
        if not self._is_listed:
            self._list()

    def number_of(self, queue_offset: int) -> int:
        """Return the number of the unit with a message between the bounds, or of the next unit."""
        if queue_offset >= self.max_offset:
            return self.end_unit
        low, high = self.first_unit, self.end_unit
        while low + 1 < high:  # the unit is in [low, high)
            middle = (low + high) // 2
            if self.offset_of(middle) <= queue_offset:
                low = middle
            else:
                high = middle
        return low

    def offset_of(self, number: int) -> int:
        """Return the queue offset of the first message of a unit."""
        segment = self._segment_of(number)
        at = number * _BYTES - segment.base_offset
        return record_layout.get_i64(segment.memory, at + _BASE_AT)

    def offset_behind(self, number: int) -> int:
        """Return the queue offset behind the messages of a unit between the bounds."""
        return self.offset_of(number + 1) if number + 1 < self.end_unit else self.max_offset

    def span_of(self, number: int) -> tuple[int, int, int]:
        """Return store time, first queue offset and number of messages, as a unit has them."""
        segment = self._segment_of(number)
        at = number * _BYTES - segment.base_offset
        return (
            record_layout.get_i64(segment.memory, at + _STORE_TIME_AT),
            record_layout.get_i64(segment.memory, at + _BASE_AT),
            record_layout.get_i16(segment.memory, at + _COUNT_AT),
        )

    def _set_offsets(self) -> None:
        """Set the bounds as queue offsets, after a change of the bounds as unit numbers."""
        self.max_offset = 0
        if self.end_unit > self._first_in_files():
            _, base, count = self.span_of(self.end_unit - 1)
            self.max_offset = base + max(count, 1)
        has_messages = self.first_unit < self.end_unit
        self.min_offset = self.offset_of(self.first_unit) if has_messages else self.max_offset

    def _continue_at(self, queue_offset: int) -> bool:
        if self.end_unit > self._first_in_files():
            logger.error(
                "queue lacks units, their messages are skipped topic=%s queue=%d from=%d to=%d",
                *(self.topic, self.queue_id, self.max_offset, queue_offset),
            )
        return True
