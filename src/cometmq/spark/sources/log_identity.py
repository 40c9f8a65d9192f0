"""Recognizes a log that was created again, or that lost its end and goes on with other records.

The rules are those of `cometmq.spark.sources.queue_identity`, with bytes of a log for offsets of a
queue: a checkpoint has the store time of the last record before each offset.
"""

from __future__ import annotations

from collections.abc import Mapping

from cometmq.spark.logs.logs import Logs
from cometmq.spark.offsets import LogOffsets
from cometmq.spark.sources.queue_identity import Change


def stored_at(logs: Logs, ends: LogOffsets) -> dict[str, int]:
    """Return the store times in ms of the last records before these offsets."""
    found = {name: logs.stored_before(name, end) for name, end in sorted(ends.items())}
    return {name: time_ms for name, time_ms in found.items() if time_ms is not None}


def changed_logs(
    logs: Logs, known: LogOffsets, stored: Mapping[str, int], ends: LogOffsets
) -> dict[str, Change]:
    """Return the logs that do not hold the last record before their offset.

    A log that ends before the offset has changed; consume queues may only lag behind its records.

    Args:
        logs: the logs.
        known: the offset of each log.
        stored: the store times of the last records before them; an older version wrote none.
        ends: how far each log may be read.
    """
    begins = logs.begins()
    changed = {}
    for name, place in known.items():
        if place > ends[name]:
            is_same = logs.walked_end(name, ends[name]) >= place
        else:
            met = logs.stored_before(name, place) if name in stored else None
            is_same = met is None or met == stored[name]
        if not is_same:
            changed[name] = _how(logs, name, place, stored.get(name), ends[name], begins[name])
    return changed


def _how(logs: Logs, name: str, place: int, stored_ms: int | None, end: int, begin: int) -> Change:
    oldest_ms = logs.oldest_stored(name)
    if stored_ms is None or oldest_ms is None or oldest_ms > stored_ms:
        return Change(created_again=True, start=begin)
    newer = logs.at_time(stored_ms + 1, {name: end})[name]
    return Change(created_again=False, start=end if newer is None else min(newer, end))
