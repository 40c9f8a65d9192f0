"""Ranges of queues: the offsets that a batch takes of each, and their partitions.

The rules are those of Spark's Kafka source (KafkaOffsetRangeCalculator,
KafkaMicroBatchStream.rateLimit).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from cometmq.spark.offsets import QueueKey, QueueRange


def limit(
    ranges: Iterable[QueueRange], most: int, sizes: Mapping[QueueKey, float] | None = None
) -> list[QueueRange]:
    """Shorten ranges to ``most`` in all, each in proportion to what it has.

    A range that is not empty keeps at least one offset, so that no queue waits for ever; so the
    sum may be larger than asked by one per range.

    Args:
        ranges: the ranges.
        most: the limit, in offsets, or in bytes if there are sizes.
        sizes: the size of a message, by queue; queues without it have the mean size.
    """
    ranges = list(ranges)
    mean: float = 1 if sizes is None else sum(sizes.values()) / max(len(sizes), 1)
    total = sum(each.size * (sizes or {}).get(each.key, mean) for each in ranges)
    if total <= most:
        return ranges
    return [
        each._replace(end=each.start + max(1, int(each.size * most // total)))
        if each.size
        else each
        for each in ranges
    ]


def split(
    ranges: Iterable[QueueRange], *, min_partitions: int | None, max_records: int | None
) -> list[QueueRange]:
    """Turn ranges into the ones that tasks read, the largest first; empty ones are left out.

    Args:
        ranges: one per queue.
        min_partitions: how many there have to be at least, as long as there are offsets enough;
            large ranges are cut in proportion, small ones stay whole.
        max_records: how many offsets one may have at most.
    """
    parts = [each for each in ranges if each.size]
    if max_records is not None:
        parts = [part for each in parts for part in _cut(each, -(-each.size // max_records))]
    if parts and min_partitions is not None and len(parts) < min_partitions:
        parts = _cut_to(parts, min_partitions)
    return sorted(parts, key=lambda part: (-part.size, part))


def _cut_to(ranges: list[QueueRange], wanted: int) -> list[QueueRange]:
    """Cut large ranges until there are ``wanted``; small ones stay whole."""
    total = sum(each.size for each in ranges)
    shares = [max(1, each.size * wanted // total) for each in ranges]
    while sum(shares) < wanted:
        i = max(range(len(ranges)), key=lambda i: ranges[i].size / shares[i])
        if ranges[i].size <= shares[i]:
            break
        shares[i] += 1
    return [part for each, parts in zip(ranges, shares, strict=True) for part in _cut(each, parts)]


def _cut(each: QueueRange, parts: int) -> list[QueueRange]:
    """Cut a range into ``parts`` of nearly one size."""
    parts = min(parts, each.size)
    places = [each.start + each.size * i // parts for i in range(parts + 1)]
    return [each._replace(start=low, end=high) for low, high in itertools.pairwise(places)]
