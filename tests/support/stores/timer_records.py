"""The timer messages in the logs of masters, and the check of them.

A copy names the record that it is the copy of: a delivered message, or one that was stored again on
its way, has the log offset of its waiting record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cometmq.model import property_names as names
from cometmq.model.topic import TIMER_TOPIC
from cometmq.protocol.record import RecordParts


class Recall(NamedTuple):
    """An acknowledged recall, as its handle names the message."""

    broker: str
    key: str
    """Topic and unique id."""
    slot_ms: int


class TimerRecord(NamedTuple):
    """A record of the timer topic, or a delivered message."""

    name: str
    recall: Recall
    """What recalls it; of a recall, what it recalls."""
    log_offset: int
    of_offset: int
    """The log offset of the waiting record of a copy; else 0."""
    waits: bool
    """Whether it is in the timer topic."""
    is_copy: bool
    recalls: bool
    store_ms: int
    due_ms: int
    """When the message is due, as its producer has sent it; not known of a copy."""

    @classmethod
    def of(
        cls, broker: str, topic: str, record: RecordParts, properties: Mapping[str, str]
    ) -> TimerRecord:
        """Return what a record with TIMER_OUT_MS says."""
        recalled = properties.get(names.TIMER_DEL_UNIQKEY)
        key = f"{properties[names.REAL_TOPIC]}+{properties[names.UNIQ_KEY]}"
        waits = topic == TIMER_TOPIC
        after_ms = properties.get(names.TIMER_DELAY_MS)
        return cls(
            record.body.decode().rstrip("."),
            Recall(broker, recalled or key, int(properties[names.TIMER_OUT_MS])),
            record.log_offset,
            record.prepared_offset,
            waits,
            not waits or names.TIMER_ROLL_TIMES in properties,
            recalled is not None,
            record.store_time_ms,
            int(properties[names.TIMER_DELIVER_MS])
            if after_ms is None
            else record.store_time_ms + int(after_ms),
        )


def wrong_timers(records: Sequence[TimerRecord], recalls: Sequence[Recall]) -> Iterator[str]:
    """Yield what is wrong with the timer messages in the end, when all are due.

    Args:
        records: of all masters.
        recalls: the acknowledged ones.
    """
    copies: dict[tuple[str, int], list[TimerRecord]] = defaultdict(list)
    for record in records:
        if record.is_copy:
            copies[record.recall.broker, record.of_offset].append(record)
    recalled = {record.recall for record in records if record.recalls}
    acknowledged = set(recalls)
    for record in records:
        if record.recalls:
            if not record.waits:
                yield f"phantom: a recall of {record.recall} is delivered"
        elif record.waits:
            found = copies.pop((record.recall.broker, record.log_offset), [])
            if len(found) > 1:
                yield f"twice: {record} has the copies {found}"
            if not found and record.recall not in recalled:
                yield f"lost: {record} was not delivered"
        elif record.recall in acknowledged:
            yield f"recalled: {record} was delivered"
    yield from _too_soon(records)


def _too_soon(records: Sequence[TimerRecord]) -> Iterator[str]:
    """Yield the messages that were stored in their topic before they were due."""
    waiting = {(each.recall.broker, each.log_offset): each for each in records if each.waits}
    for record in records:
        first: TimerRecord | None = record
        while first is not None and first.is_copy:
            first = waiting.get((first.recall.broker, first.of_offset))
        if first is None:
            yield f"phantom: {record} is a copy of no message that waits"
        elif not record.waits and record.store_ms < first.due_ms:
            yield f"too soon: {record} is delivered {first.due_ms - record.store_ms} ms early"
