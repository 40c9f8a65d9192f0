"""Checks of pop consumption."""

from __future__ import annotations

from collections.abc import Iterator

from cometmq.broker.stats.runtime_info import (
    POP_BEHIND,
    POP_CHECK_POINTS,
    POP_CHECK_POINTS_LIMIT,
    POP_IN_FLIGHT,
    POP_MIXED,
    POP_OLDEST,
)
from cometmq.cli.doctor.cluster import Broker, Cluster
from cometmq.cli.doctor.findings import Finding, Level, fine, shown
from cometmq.model.nouns import counted

FULL_RATIO = 0.8
LATE_MS, VERY_LATE_MS = 5_000, 60_000
"""By how much messages may be redelivered late."""
OLD_MS = 3_600_000
"""For how long a message may be popped and not acknowledged."""
PAGE = "see docs/howto/pop.md"


def in_flight(cluster: Cluster) -> Iterator[Finding]:
    """Find brokers with popped messages that nobody acknowledges, or that are redelivered late."""
    for broker in cluster.brokers:
        if not broker.is_master or POP_IN_FLIGHT not in broker.figures:
            continue
        problems = list(_problems(broker))
        yield from problems
        if not problems:
            count = _number(broker, POP_IN_FLIGHT)
            yield fine("pop", broker.subject, f"{counted(count, 'popped message')} in flight")


def _problems(broker: Broker) -> Iterator[Finding]:
    count, limit = _number(broker, POP_CHECK_POINTS), _number(broker, POP_CHECK_POINTS_LIMIT)
    if limit and count >= FULL_RATIO * limit:
        yield Finding(
            "pop", Level.PROBLEM if count >= limit else Level.WARNING, broker.subject,
            f"{counted(count, 'check point')} in flight, of at most {limit}",
            f"less than {FULL_RATIO:.0%}: at the limit pops find nothing",
            "let consumers acknowledge, or set a shorter invisible time or a larger"
            f" popCheckPointsMax; {PAGE}",
        )  # fmt: skip
    behind_ms = _number(broker, POP_BEHIND)
    if behind_ms >= LATE_MS:
        yield Finding(
            "pop", Level.PROBLEM if behind_ms >= VERY_LATE_MS else Level.WARNING, broker.subject,
            f"a message is visible again since {behind_ms / 1000:g} s, and not redelivered",
            f"less than {LATE_MS / 1000:g} s",
            f"look at its log: the disk or the retry topic of the group refuses; {PAGE}",
        )  # fmt: skip
    oldest_ms = _number(broker, POP_OLDEST)
    if oldest_ms >= OLD_MS:
        yield Finding(
            "pop", Level.WARNING, broker.subject,
            f"a message was popped {oldest_ms / 1000:.0f} s ago, and is not acknowledged",
            f"less than {OLD_MS / 1000:.0f} s",
            "look at the consumers that pop: no other member gets it before its invisible time is"
            f" over; {PAGE}",
        )  # fmt: skip
    if mixed := broker.figures.get(POP_MIXED):
        yield Finding(
            "pop", Level.WARNING, broker.subject,
            f"members of a group pull a topic that others pop: {shown(mixed.split(','))}",
            "one mode for all members: those that pull never see what is redelivered",
            f"give all members the same mode: cometmq admin group set-mode; {PAGE}",
        )  # fmt: skip


def _number(broker: Broker, key: str) -> int:
    text = broker.figures.get(key, "")
    return int(text) if text.isdigit() else 0
