"""Finds messages by their store time, and the store time of a message.

All messages of a batch that is one record have its store time.
Source: ConsumeQueue.getOffsetInQueueByTime, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.record_lookup import HEAD_BYTES, bring_in, is_in_memory
from cometmq.store.log.record_scan import record_size, store_time
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.repair import Repair


def cold_store_time(
    log: CommitLog, queue: ConsumeQueue, queue_offset: int
) -> Callable[[], object] | None:
    """Return a function that reads what `store_time_of_unit` needs; None if it is in memory."""
    if not queue.min_offset <= queue_offset < queue.max_offset:
        return None
    number = queue.number_of(queue_offset)
    at = number * queue.unit_bytes
    is_recent = number >= queue.recent_from()
    is_there = is_recent or is_in_memory(queue.segments.find(at), at, queue.unit_bytes)
    if is_there:
        log_offset = queue.unit(number)[0]
        is_there = log.is_recent(log_offset) or is_in_memory(
            log.segments.find(log_offset), log_offset, HEAD_BYTES
        )
    return None if is_there else partial(TimeSearchPages(log, queue, 0).store_time, number)


def store_time_of_unit(
    log: CommitLog, queue: ConsumeQueue, queue_offset: int, repair: Repair
) -> int:
    """Return when the message of a unit was stored, or -1 if its record is deleted."""
    if not queue.min_offset <= queue_offset < queue.max_offset:
        return -1
    return _sound_store_time(log, queue, queue.number_of(queue_offset), repair)


def _sound_store_time(log: CommitLog, queue: ConsumeQueue, number: int, repair: Repair) -> int:
    found_ms = _store_time_of(log, queue, number)
    if found_ms < 0 and repair.repair(queue, number):
        found_ms = _store_time_of(log, queue, number)
    return found_ms


def _store_time_of(log: CommitLog, queue: ConsumeQueue, number: int) -> int:
    log_offset, size, _ = queue.unit(number)
    segment = log.segments.find(log_offset)
    if segment is None or log_offset + size > log.readable_to():
        return -1
    position = log_offset - segment.base_offset
    return store_time(segment, position) if record_size(segment, position) == size else -1


def offset_at_time(
    log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, repair: Repair, *, upper: bool
) -> int:
    """Return the offset of the message stored at a time; see `MessageStore.offset_at_time`."""
    end = queue.end_at(log.readable_to())
    low, high = queue.first_unit, queue.number_of(end)
    while low < high:
        middle = (low + high) // 2
        stored_ms = _sound_store_time(log, queue, middle, repair)
        if _is_before(stored_ms, timestamp_ms, upper):
            low = middle + 1
        else:
            high = middle
    found = queue.offset_behind(low - 1) if low > queue.first_unit else queue.min_offset
    return max(found - 1, queue.min_offset) if upper else found


def _is_before(stored_ms: int, timestamp_ms: int, upper: bool) -> bool:
    return stored_ms < timestamp_ms or (upper and stored_ms == timestamp_ms)


class TimeSearchPages:
    """Reads the pages that `offset_at_time` needs into memory.

    Make it in the thread of the store, call it in any: it has its own list of the queue's files,
    which stay in memory as long as it does.

    Args:
        log, queue: of the search.
        timestamp_ms, upper: see `offset_at_time`.
    """

    def __init__(
        self, log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, *, upper: bool = False
    ) -> None:
        self._log = log
        self._timestamp_ms = timestamp_ms
        self._upper = upper
        self._segments = list(queue.segments.items)
        self._numbers = range(queue.first_unit, queue.end_unit)
        self._unit_bytes = queue.unit_bytes
        self._buffered = queue.buffered_log_offsets()

    def __call__(self) -> None:
        """Read them.

        Raises:
            OSError: the disk is broken.
        """
        low, high = self._numbers.start, self._numbers.stop
        while low < high:
            middle = (low + high) // 2
            stored_ms = self.store_time(middle)
            if _is_before(stored_ms, self._timestamp_ms, self._upper):
                low = middle + 1
            else:
                high = middle

    def store_time(self, number: int) -> int:
        """Return the store time of a unit, after reading what it needs into memory."""
        log_offset = self._buffered.get(number)
        if log_offset is None:
            log_offset = self._log_offset(number * self._unit_bytes)
        segment = self._log.segments.find(log_offset)
        if segment is None:
            return -1
        bring_in(segment, log_offset, HEAD_BYTES)
        return store_time(segment, log_offset - segment.base_offset)

    def _log_offset(self, unit_at: int) -> int:
        for segment in self._segments:
            if segment.base_offset <= unit_at < segment.end_offset:
                bring_in(segment, unit_at, self._unit_bytes)
                at = unit_at - segment.base_offset
                return int.from_bytes(segment.view[at : at + 8], signed=True)
        return -1
