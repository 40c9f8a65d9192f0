"""Where a group begins in a queue of which it has committed nothing.

Source: RebalancePushImpl.computePullFromWhereWithException, RocketMQ 5.3.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Any

from cometmq.client.offsets.store import OffsetStore
from cometmq.client.queue_offsets import QueueOffsets
from cometmq.model.errors import ConfigError
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies import ConsumeFromWhere


class StartFrom(Enum):
    """Where a group starts in a queue without a committed offset."""

    LAST = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    """At the end of the queue. ``docs/howto/consume.md`` names an exception."""
    FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    """At the oldest message."""


def check_start(group: str, start: Any, *, times: bool = True) -> None:
    """Refuse what is no start: anything else would mean the end of the queue.

    Args:
        group: the consumer's group.
        start: what the application gave.
        times: whether a time is allowed.

    Raises:
        ConfigError: says what was met and what is expected.
    """
    if isinstance(start, StartFrom) or (times and isinstance(start, datetime)):
        return
    first, last = "StartFrom.FIRST", "StartFrom.LAST"
    expected = f"{first}, {last} or a datetime" if times else f"{first} or {last}"
    raise ConfigError(f"consumer {group}: start_from={start!r}: expected {expected}")


def consume_from_where(start: StartFrom | datetime) -> ConsumeFromWhere:
    """Say the start as a heartbeat does."""
    if isinstance(start, StartFrom):
        return start.value
    return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP


async def first_offset(
    queue: MessageQueue,
    *,
    store: OffsetStore,
    offsets: QueueOffsets,
    start: StartFrom | datetime,
    retry: bool,
) -> QueueOffset:
    """Give the offset at which to begin with a queue.

    Args:
        queue: the queue.
        store: where the group's offsets are kept; one that is kept wins.
        offsets: asks brokers about the queue.
        start: where a group without an offset begins; a time means the first message stored then
            or later.
        retry: whether the queue is of the group's retry topic: nothing of it is skipped, as long as
            the start is not a time.

    Raises:
        CometError: nobody could tell; the queue must not be begun in this round.
    """
    kept = await store.stored(queue)
    if kept is not None:
        return kept
    if isinstance(start, datetime):
        if retry:
            return (await offsets.bounds(queue)).max_offset
        return await offsets.at_time(queue, int(start.timestamp() * 1000))
    if start is StartFrom.FIRST or retry:
        return QueueOffset(0)
    return (await offsets.bounds(queue)).max_offset
