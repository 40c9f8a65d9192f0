"""Finds in the log which timer messages were delivered already, or stored again.

The stored copy of a message has the log offset of its waiting record as that of a half message. A
copy that RocketMQ stored has none: it is recognized by topic, unique id and time.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Final

from cometmq.broker.timers.senders import REAL_TOPIC
from cometmq.model import property_names as names
from cometmq.model.errors import ProtocolError
from cometmq.model.topic import TIMER_TOPIC
from cometmq.protocol.properties import UNIQ_KEY_MARKER, marker, value_of
from cometmq.protocol.record import RecordParts, split_record
from cometmq.remoting.slices import Slices
from cometmq.store import MessageStore
from cometmq.store.log.record_scan import RecordFacts

log = logging.getLogger(__name__)

SCAN_BYTES_MAX: Final = 512 * 1024 * 1024
"""A start does not read more of the log: a few seconds at most."""

_DEQUEUE = marker(names.TIMER_DEQUEUE_MS.encode())
_ROLL_TIMES = marker(names.TIMER_ROLL_TIMES.encode())
_OUT = marker(names.TIMER_OUT_MS.encode())
_TIMER_TOPIC = TIMER_TOPIC.encode()


class Delivered:
    """The timer messages whose copies are in the log behind an offset.

    Args:
        knows_rocketmq: whether copies that RocketMQ stored count.
    """

    def __init__(self, *, knows_rocketmq: bool = False) -> None:
        self._knows_rocketmq = knows_rocketmq
        self._offsets: set[int] = set()
        self._keys: Counter[tuple[bytes | None, ...]] = Counter()
        """Of copies that RocketMQ stored, or whose waiting record is the first one of the log."""
        self.latest_ms = 0
        """When the last copy was stored, by the clock of its broker: later slots had not begun."""

    def __bool__(self) -> bool:
        return bool(self._offsets or self._keys)

    def __len__(self) -> int:
        return len(self._offsets) + self._keys.total()

    def take(self, store: MessageStore, facts: RecordFacts) -> None:
        """Note which message a record is the copy of, if any."""
        copy = read_copy(store, facts)
        if copy is None:
            return
        self.latest_ms = max(self.latest_ms, copy.store_time_ms)
        if copy.prepared_offset > 0:
            self._offsets.add(copy.prepared_offset)
        else:
            self._keys[_key(copy)] += 1

    def has(self, record: RecordParts) -> bool:
        """Return whether the copy of a waiting record was found."""
        if record.log_offset in self._offsets:
            return True
        if not self._knows_rocketmq and record.log_offset > 0:
            return False
        keys, key = self._keys, _key(record)
        if not keys[key]:
            return False
        keys[key] -= 1  # a producer may have sent it twice
        self._offsets.add(record.log_offset)  # it is looked at again if the store refuses others
        return True


def read_copy(store: MessageStore, facts: RecordFacts) -> RecordParts | None:
    """Return a record if it is the copy of a timer message; else None."""
    if facts.topic == _TIMER_TOPIC:
        if value_of(facts.properties, _ROLL_TIMES) is None:
            return None
    elif (
        value_of(facts.properties, _DEQUEUE) is None
        or value_of(facts.properties, REAL_TOPIC) != facts.topic
    ):
        return None
    data = store.written_record_at(facts.log_offset, facts.total)
    try:
        return None if data is None else split_record(data)
    except ProtocolError:
        return None


def _key(record: RecordParts) -> tuple[bytes | None, ...]:
    text = record.properties
    return value_of(text, REAL_TOPIC), value_of(text, UNIQ_KEY_MARKER), value_of(text, _OUT)


def log_offset_at(store: MessageStore, time_ms: int) -> int:
    """Return a log offset before which nothing was stored since a time: where a file begins."""
    start = store.file_start(store.written_to)
    while start > store.min_log_offset:
        first = next(store.written_facts_from(start), None)
        if first is not None and first.store_ms < time_ms:
            break
        start = max(store.file_start(start - 1), store.min_log_offset)
    return start


def scan_start(store: MessageStore, log_offset: int) -> int:
    """Return where to read the log from, which is not further back than a start may read."""
    oldest = store.written_to - SCAN_BYTES_MAX
    log_offset = max(log_offset, store.min_log_offset)
    if log_offset >= oldest:
        return log_offset
    log.warning(
        "timer messages may be delivered again: it is not known what was delivered before the last"
        " %d MiB of the log",
        SCAN_BYTES_MAX >> 20,
    )
    return max(store.file_start(oldest), store.min_log_offset)


async def delivered_behind(
    store: MessageStore, log_offset: int, slices: Slices, *, knows_rocketmq: bool
) -> Delivered:
    """Return the messages whose copies are in the log from an offset on, where a record begins."""
    found = Delivered(knows_rocketmq=knows_rocketmq)
    facts: Iterator[RecordFacts] = store.written_facts_from(scan_start(store, log_offset))
    async for each in slices.each(facts):
        found.take(store, each)
    return found
