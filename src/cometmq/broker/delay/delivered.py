"""Recognizes the messages that were delivered after the offsets were last stored.

A broker that was killed may have delivered messages that its stored offsets do not count.
The copies are in the log, behind the position that was stored with the offsets. The messages of a
level are delivered in their order: the copy of one shows that all before it were delivered, or
skipped. A copy has everything of its message but the queue and the store time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from cometmq.broker.offsets.offset_store import Numbers
from cometmq.model import property_names
from cometmq.model.delay import delay_queue
from cometmq.model.errors import ProtocolError
from cometmq.model.topic import DELAY_TOPIC
from cometmq.protocol.properties import decode_properties, marker, value_of
from cometmq.protocol.record import RecordParts, split_record
from cometmq.store import MessageStore

log = logging.getLogger(__name__)

SCAN_BYTES_MAX: Final = 512 * 1024 * 1024
"""A start does not read more of the log: a few seconds at most."""
SKIPPED_MAX: Final = 128
"""Messages that the broker may have skipped between two that it delivered."""

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
    waiting = {
        level: offset
        for level in levels
        if (offset := offsets.get(level, 0)) < store.next_offset(DELAY_TOPIC, delay_queue(level))
    }
    found: Numbers = {}
    scan_bytes = store.written_to - log_offset
    if not waiting or scan_bytes <= 0:
        return found
    if scan_bytes > SCAN_BYTES_MAX:
        log.warning(
            "messages may be delivered again: the schedule offsets are older than the last"
            " %d MiB of the log",
            SCAN_BYTES_MAX >> 20,
        )
        return found
    for facts in store.facts_from(log_offset):
        if value_of(facts.properties, _REAL_TOPIC) != facts.topic:
            continue
        text = value_of(facts.properties, _DELAY) or b""
        level = int(text) if text.isdigit() and len(text) < 10 else 0
        if level not in waiting:
            continue
        behind = _offset_behind(store, level, waiting[level], facts.log_offset, facts.total)
        if behind is None:
            del waiting[level]  # its next messages cannot be recognized either
        else:
            waiting[level] = found[level] = behind
    for level, offset in found.items():
        log.info(
            "scheduled messages were delivered before the crash level=%d from=%d to=%d",
            *(level, offsets.get(level, 0), offset),
        )
    return found


def _offset_behind(
    store: MessageStore, level: int, offset: int, log_offset: int, size_bytes: int
) -> int | None:
    """Return the offset behind the message of which the log has a copy; None for no message."""
    copy = _record(store, log_offset, size_bytes)
    if copy is None:
        return None
    for first, count in ((offset, 1), (offset + 1, SKIPPED_MAX)):  # mostly it is the next one
        units = store.consume_queue_units(DELAY_TOPIC, delay_queue(level), first, count)
        for at, (scheduled_at, scheduled_bytes, _) in enumerate(units, start=first):
            scheduled = _record(store, scheduled_at, scheduled_bytes)
            if scheduled is not None and _is_copy(copy, scheduled):
                return at + 1
    return None


def _record(store: MessageStore, log_offset: int, size_bytes: int) -> RecordParts | None:
    data = store.record_at(log_offset, size_bytes)
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
