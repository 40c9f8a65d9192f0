"""``cometmq pipeline``: names what to use instead of the pipelines of earlier versions."""

from __future__ import annotations

from collections.abc import Sequence

from cometmq.model.errors import ConfigError

_PROGRAM = "the program examples/spark/%s.py, see docs/howto/%s.md"
REMOVED = {
    "archive": _PROGRAM % ("archive_log", "archive-a-log"),
    "archive-topics": _PROGRAM % ("19_topic_to_delta_without_a_jar", "archive-a-log"),
    "audit": _PROGRAM % ("15_audit_a_replica", "compare-two-clusters"),
    "dead-letters": _PROGRAM % ("13_dead_letters", "analyze-dead-letters"),
    "rebuild": "the broker, which rebuilds queues and index from the log when it starts without"
    " them, see docs/howto/verify-a-store.md",
    "replay": _PROGRAM % ("12_replay", "replay-an-archive"),
    "trace": _PROGRAM % ("14_latency_from_traces", "measure-latency-from-traces"),
    "usage": _PROGRAM % ("11_usage", "report-usage"),
    "verify": "`cometmq store verify` for queues and index, see docs/howto/verify-a-store.md, and"
    " cometmq.spark.checks.compare for archives, see docs/howto/archive-a-log.md",
}
"""The pipelines of earlier versions, and what to use instead: some of it needs no Spark."""


def run(arguments: Sequence[str]) -> None:
    """Refuse the pipeline that the arguments name.

    Raises:
        ConfigError: always; says what to use instead.
    """
    name = arguments[0] if arguments else ""
    if name not in REMOVED:
        raise ConfigError(f"pipelines were removed: met {name!r}, expected {', '.join(REMOVED)}")
    raise ConfigError(f"no pipeline {name!r}: it was removed, use {REMOVED[name]}")
