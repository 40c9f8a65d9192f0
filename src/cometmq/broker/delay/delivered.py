"""Recognizes the messages that were delivered after the offsets were last stored.

A broker that was killed may have delivered messages that its stored offsets do not count.
The copies are in the log, behind the position that was stored with the offsets. The messages of a
level are delivered in their order: the copy of one shows that all before it were delivered, or
skipped. A copy has everything of its message but the queue and the store time.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from cometmq.broker.offsets.offset_store import Numbers
from cometmq.model import property_names
from cometmq.model.delay import delay_queue
from cometmq.model.errors import ProtocolError
from cometmq.model.topic import DELAY_TOPIC
from cometmq.protocol.properties import decode_properties, marker, value_of
from cometmq.protocol.record import RecordParts, split_record
from cometmq.remoting.slices import Slices
from cometmq.store import MessageStore
from cometmq.store.log.record_scan import RecordFacts

log = logging.getLogger(__name__)

SCAN_BYTES_MAX: Final = 512 * 1024 * 1024
"""A start does not read more of the log: a few seconds at most."""
SKIPPED_MAX: Final = 128
"""Messages that the broker may have skipped between two that it delivered."""
SEARCHED_MAX: Final = 100_000
"""Messages among which that of the first copy behind a new end of the log is looked for."""
COUNTED_MAX: Final = 2048
"""Messages that the offsets of a master may count beyond the log that its slave had then."""

_DELAY = marker(property_names.DELAY.encode())
_REAL_TOPIC = marker(property_names.REAL_TOPIC.encode())


def offsets_by_log(
    store: MessageStore, offsets: Mapping[int, int], levels: Iterable[int], log_offset: int
) -> Numbers:
    """Return the offsets of the levels of which the log has further delivered messages.

    Args:
        store: the store, after recovery.
        offsets: the stored offset of each level; 0 for a level without one.
        levels: the levels that have queues.
        log_offset: the end of the log when the offsets were stored.
    """
    scan = _Scan(store, offsets, levels, log_offset)
    for facts in scan.records():
        scan.take(facts)
    return scan.result()


async def offsets_by_log_in_slices(
    store: MessageStore, offsets: Mapping[int, int], levels: Iterable[int], log_offset: int
) -> Numbers:
    """Return the offsets as `offsets_by_log`, with other work of the event loop in between."""
    scan = _Scan(store, offsets, levels, log_offset)
    async for facts in Slices().each(scan.records()):
        scan.take(facts)
    return scan.result()


def offsets_before(store: MessageStore, offsets: Mapping[int, int], log_offset: int) -> Numbers:
    """Return the offsets of the levels that count messages whose copies the log has behind an end.

    The first of these copies shows from which message on they are; none is counted any more. If
    there is more of the log than a scan may read, a level without a copy there counts no message
    that was due since that end. So does one whose first copy is that of no message.

    Args:
        store: the store.
        offsets: the offset of each level.
        log_offset: the end, before which the log stays as it is.
    """
    found = {n: store.end_at(DELAY_TOPIC, delay_queue(n), log_offset) for n in offsets}
    firsts = _first_copied(store, offsets, log_offset)
    if store.written_to - log_offset > SCAN_BYTES_MAX:
        since_ms = _store_ms_at(store, log_offset)
        for level in offsets.keys() - firsts.keys():
            firsts[level] = _first_due(store, level, offsets[level], since_ms)
    for level, first in firsts.items():
        found[level] = min(found[level], first)
    found = {level: offset for level, offset in found.items() if offset < offsets[level]}
    for level, offset in found.items():
        log.warning(
            "the log is truncated where it has delivered messages, they are delivered again"
            " level=%d from=%d to=%d",
            *(level, offsets[level], offset),
        )
    return found


def _first_copied(store: MessageStore, offsets: Mapping[int, int], log_offset: int) -> Numbers:
    """Return the first message of each level whose copy is behind an end of the log."""
    firsts: dict[int, RecordParts] = {}
    counts: Counter[int] = Counter()
    for facts in store.written_facts_from(log_offset):
        if facts.log_offset - log_offset >= SCAN_BYTES_MAX:
            break
        level = _level_of_copy(facts)
        if not offsets.get(level):
            continue
        counts[level] += 1
        if level not in firsts:
            copy = _parts(store.written_record_at(facts.log_offset, facts.total))
            if copy is not None:
                firsts[level] = copy
    return {
        level: _message_of(store, level, offsets[level], counts[level], copy)
        for level, copy in firsts.items()
    }


def _message_of(store: MessageStore, level: int, offset: int, count: int, copy: RecordParts) -> int:
    """Return the message of a copy, or the first that may be it.

    Args:
        store: the store.
        level: of the message.
        offset: of the level.
        count: how many messages before it have been delivered since, that one included.
        copy: the copy.
    """
    queue = DELAY_TOPIC, delay_queue(level)
    low = store.bounds(*queue)[0]
    near = max(low, offset - count - SKIPPED_MAX)
    later = _first_due(store, level, offset, copy.store_time_ms + 1)
    for begin, end in ((near, offset), (max(low, later - SEARCHED_MAX), min(near, later))):
        for at, unit in enumerate(store.written_units(*queue, begin, end), begin):
            scheduled = _parts(store.written_record_at(*unit))
            if scheduled is not None and _is_copy(copy, scheduled):
                return at
    return min(near, _first_due(store, level, offset, copy.store_time_ms))


def _store_ms_at(store: MessageStore, log_offset: int) -> int:
    return next((facts.store_ms for facts in store.written_facts_from(log_offset)), 0)


def _first_due(store: MessageStore, level: int, offset: int, since_ms: int) -> int:
    """Return the first message of a level before an offset that was due since a time."""
    queue = DELAY_TOPIC, delay_queue(level)

    def due_ms(at: int) -> int:
        units = store.consume_queue_units(*queue, at, 1)
        return units[0][2] if units else since_ms

    low = min(store.bounds(*queue)[0], offset)
    return low + bisect_left(range(low, offset), since_ms, key=due_ms)


def _level_of_copy(facts: RecordFacts) -> int:
    """Return the level of the message that a record is the copy of; 0 if it is no copy."""
    if value_of(facts.properties, _REAL_TOPIC) != facts.topic:
        return 0
    text = value_of(facts.properties, _DELAY) or b""
    return int(text) if text.isdigit() and len(text) < 10 else 0


class _Scan:
    """Looks for the copies of delivered messages in the log.

    Args:
        store, offsets, levels, log_offset: see `offsets_by_log`.
    """

    def __init__(
        self,
        store: MessageStore,
        offsets: Mapping[int, int],
        levels: Iterable[int],
        log_offset: int,
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._log_offset = log_offset
        self._found: Numbers = {}
        self._waiting = {
            level: offset
            for level in levels
            if (offset := offsets.get(level, 0))
            < store.next_offset(DELAY_TOPIC, delay_queue(level))
        }

    def records(self) -> Iterator[RecordFacts]:
        """Return the records to look at; none if there are too many."""
        scan_bytes = self._store.written_to - self._log_offset
        if not self._waiting or scan_bytes <= 0:
            return iter(())
        if scan_bytes > SCAN_BYTES_MAX:
            log.warning(
                "messages may be delivered again: the schedule offsets are older than the last"
                " %d MiB of the log",
                SCAN_BYTES_MAX >> 20,
            )
            return iter(())
        return self._store.facts_from(self._log_offset)

    def take(self, facts: RecordFacts) -> None:
        """Note which message a record is the copy of, if any."""
        level = _level_of_copy(facts)
        if level not in self._waiting:
            return
        at, counted = self._waiting[level], self._offsets.get(level, 0)
        behind = _offset_behind(self._store, level, at, facts.log_offset, facts.total)
        if behind is None and at == counted > 0:
            first = max(0, counted - COUNTED_MAX)
            behind = _offset_behind(
                *(self._store, level, first, facts.log_offset, facts.total), most=counted - first
            )
        if behind is None:
            del self._waiting[level]  # its next messages cannot be recognized either
            return
        self._waiting[level] = behind
        if behind > counted:
            self._found[level] = behind

    def result(self) -> Numbers:
        """Return the offsets of the levels that have advanced."""
        for level, offset in self._found.items():
            log.info(
                "scheduled messages were delivered already level=%d from=%d to=%d",
                *(level, self._offsets.get(level, 0), offset),
            )
        return self._found


def _offset_behind(
    store: MessageStore,
    level: int,
    offset: int,
    log_offset: int,
    size_bytes: int,
    *,
    most: int = SKIPPED_MAX,
) -> int | None:
    """Return the offset behind the message of which the log has a copy; None for no message."""
    copy = _record(store, log_offset, size_bytes)
    if copy is None:
        return None
    for first, count in ((offset, 1), (offset + 1, most)):  # mostly it is the next one
        units = store.consume_queue_units(DELAY_TOPIC, delay_queue(level), first, count)
        for at, (scheduled_at, scheduled_bytes, _) in enumerate(units, start=first):
            scheduled = _record(store, scheduled_at, scheduled_bytes)
            if scheduled is not None and _is_copy(copy, scheduled):
                return at + 1
    return None


def _record(store: MessageStore, log_offset: int, size_bytes: int) -> RecordParts | None:
    return _parts(store.record_at(log_offset, size_bytes))


def _parts(data: bytes | None) -> RecordParts | None:
    try:
        return None if data is None else split_record(data)
    except ProtocolError:
        return None


def _is_copy(copy: RecordParts, scheduled: RecordParts) -> bool:
    return (
        copy.body == scheduled.body
        and copy.born_time_ms == scheduled.born_time_ms
        and copy.born_host == scheduled.born_host
        and copy.reconsume_times == scheduled.reconsume_times
        and copy.flag == scheduled.flag
        and (
            copy.properties == scheduled.properties  # RocketMQ changes their order
            or decode_properties(copy.properties) == decode_properties(scheduled.properties)
        )
    )
