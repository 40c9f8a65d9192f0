"""The limits of a micro-batch of topics: offsets, bytes, and the store time that it covers.

time       exact: brokers say which message is the first one behind it
offsets    divided among the queues in proportion to their new messages
bytes      divided in the same way, by the size of the first new messages of each queue
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cometmq.spark.compat import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from cometmq.spark.offsets import Bounds, QueueKey, QueueRange
from cometmq.spark.options.topics import TopicReadOptions
from cometmq.spark.planning import limit

if TYPE_CHECKING:
    from cometmq.spark.brokers import Away, BrokerSession, Sample

SAMPLE_MESSAGES = 32
"""Messages whose size is taken for the size of the others; RocketMQ returns no more at once."""
ROWS_MAX = 1 << 62
"""More than a batch can have: the limit that Spark is told if the options have none in rows."""


def read_limit(options: TopicReadOptions) -> ReadLimit:
    """Return the limit for Spark, which has no limit for several things: the others hold, too."""
    if options.max_offsets_per_trigger is not None:
        return ReadMaxRows(options.max_offsets_per_trigger)
    if options.max_bytes_per_trigger is not None:
        return ReadMaxBytes(options.max_bytes_per_trigger)
    return ReadAllAvailable() if options.max_time_per_trigger is None else ReadMaxRows(ROWS_MAX)


def cut(
    ranges: Sequence[QueueRange],
    options: TopicReadOptions,
    session: BrokerSession,
    group: str,
    bounds: Mapping[QueueKey, Bounds],
    away: Away | None,
) -> list[QueueRange]:
    """Shorten ranges of all new messages, one for each queue, to what one micro-batch may have.

    Queues whose broker does not respond are put into ``away``, and their ranges are empty.
    """
    found = list(ranges)
    starts = {each.key: each.start for each in found if each.size}
    samples: Mapping[QueueKey, Sample] = {}
    by_bytes, span_s = options.max_bytes_per_trigger, options.max_time_per_trigger_s
    if starts and (by_bytes is not None or span_s is not None):
        most = SAMPLE_MESSAGES if by_bytes is not None else 1
        samples = session.samples(starts, group=group, messages=most, away=away)
    if samples and span_s is not None:
        end_ms = min(each.stored_ms for each in samples.values()) + int(1_000 * span_s)
        longer = {
            each.key: end_ms
            for each in found
            if each.size
            and each.key not in (away or ())
            and not 0 < bounds[each.key].newest_ms < end_ms
        }
        ends = session.at_time(longer, away=away) if longer else {}
        # Its clock may have been set back: then a broker finds a time before the range, but the
        # first message of the range is not behind it.
        least = {key: starts[key] + (each.stored_ms < end_ms) for key, each in samples.items()}
        found = [
            each._replace(end=min(max(ends[each.key], least.get(each.key, each.start)), each.end))
            if each.key in ends
            else each
            for each in found
        ]
    if away:
        found = [each._replace(end=each.start) if each.key in away else each for each in found]
    if options.max_offsets_per_trigger is not None:
        found = limit(found, options.max_offsets_per_trigger)
    if by_bytes is not None:
        found = limit(found, by_bytes, {key: each.size for key, each in samples.items()})
    return found
