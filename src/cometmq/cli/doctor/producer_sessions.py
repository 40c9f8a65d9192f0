"""Checks of producer sessions, with which repeated tasks of Spark store each row once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cometmq.broker.stats.runtime_info import (
    PRODUCER_SESSIONS,
    PRODUCER_SESSIONS_LIMIT,
    SESSIONS_OF_TOPIC,
    SESSIONS_OF_TOPIC_LIMIT,
    TOPIC_OF_SESSIONS,
)
from cometmq.cli.doctor.cluster import Broker, Cluster
from cometmq.cli.doctor.findings import Finding, Level, fine, shown
from cometmq.model.nouns import counted

WARNED_RATIO = 0.8
WRITES = "see docs/howto/write-topics-with-spark.md"
ROOM = (
    "write from fewer partitions, or set a larger producerSessionsMax or a shorter"
    " producerSessionExpiryMs; see docs/howto/runbook.md"
)


def offered(cluster: Cluster) -> Iterator[Finding]:
    """Compare which brokers have producer sessions."""
    lacking = [broker.subject for broker in cluster.brokers if not _has_sessions(broker)]
    if not cluster.brokers:
        return
    if not lacking:
        yield fine("producer-sessions", "the cluster", "every broker has producer sessions")
    elif len(lacking) == len(cluster.brokers):
        met = "no broker has producer sessions: Spark writes at least once"
        yield fine("producer-sessions", "the cluster", met)
    else:
        yield Finding(
            "producer-sessions", Level.WARNING, "the cluster",
            f"{counted(len(lacking), 'broker')} without producer sessions: {shown(lacking)}",
            "all brokers of a topic with them: otherwise Spark writes to it at least once, and with"
            " delivery=exactly-once not at all",
            f"upgrade these brokers; {WRITES}",
        )  # fmt: skip


def room(cluster: Cluster) -> Iterator[Finding]:
    """Compare how many producer sessions brokers have with their limits."""
    for broker in filter(_has_sessions, cluster.brokers):
        keys = [("", PRODUCER_SESSIONS, PRODUCER_SESSIONS_LIMIT)]
        if topic := broker.figures.get(TOPIC_OF_SESSIONS):
            keys.append((f" of topic {topic}", SESSIONS_OF_TOPIC, SESSIONS_OF_TOPIC_LIMIT))
        yield _judge(broker, keys)


def _judge(broker: Broker, keys: Sequence[tuple[str, str, str]]) -> Finding:
    counts = [(_number(broker, key), _number(broker, limit), of) for of, key, limit in keys]
    count, limit, of = max(counts, key=lambda each: each[0] / max(each[1], 1))
    met = f"{counted(count, 'producer session')}{of} of at most {limit}"
    if count >= limit:
        expected = "room: a new task of Spark gets no session, and writes at least once or fails"
        return Finding("producer-sessions", Level.PROBLEM, broker.subject, met, expected, ROOM)
    if count >= WARNED_RATIO * limit:
        expected = f"less than {WARNED_RATIO:.0%}"
        return Finding("producer-sessions", Level.WARNING, broker.subject, met, expected, ROOM)
    return fine("producer-sessions", broker.subject, met)


def _has_sessions(broker: Broker) -> bool:
    return PRODUCER_SESSIONS in broker.figures


def _number(broker: Broker, key: str) -> int:
    text = broker.figures.get(key, "")
    return int(text) if text.isdigit() else 0
