"""``cometmq pipeline``: archives a log or topics with Spark.

Pipelines need the extra ``spark``; without it the command prints what to install.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from cometmq.model.errors import ConfigError

NEEDED = ("pyspark", "pyarrow", "deltalake")
_PROGRAM = "the program examples/spark/%s.py, see docs/howto/%s.md"
REMOVED = {
    "audit": "the functions of cometmq.spark.checks, see docs/howto/compare-two-clusters.md",
    "dead-letters": _PROGRAM % ("13_dead_letters", "analyze-dead-letters"),
    "rebuild": "the broker, which rebuilds queues and index from the log when it starts without"
    " them, see docs/howto/verify-a-store.md",
    "replay": _PROGRAM % ("12_replay", "replay-an-archive"),
    "trace": _PROGRAM % ("14_latency_from_traces", "measure-latency-from-traces"),
    "usage": _PROGRAM % ("11_usage", "report-usage"),
    "verify": "`cometmq store verify` for queues and index, and compare_log_with_archive of"
    " cometmq.spark.checks for archives, see docs/howto/verify-a-store.md",
}
"""The pipelines of earlier versions, and what to use instead: some of it needs no Spark."""


def run(arguments: Sequence[str]) -> int:
    """Run the pipeline that the arguments name; return its exit code.

    Raises:
        ConfigError: Spark is not installed, or the pipeline was removed.
    """
    name = arguments[0] if arguments else ""
    if name in REMOVED:
        raise ConfigError(f"no pipeline {name!r}: it was removed, use {REMOVED[name]}")
    check_installed()
    from cometmq.spark.archive.command import main

    return main(arguments)


def script() -> Path:
    """Return the file to hand to ``spark-submit``."""
    import cometmq

    return Path(cometmq.__file__).parent / "spark" / "archive" / "__main__.py"


def check_installed() -> None:
    """Do nothing if pipelines can run here.

    Raises:
        ConfigError: says what to install.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"pipelines need {', '.join(missing)}: install CometMQ with the extra 'spark'"
        )
