"""What the formats need of PySpark, and what only newer versions have."""

from __future__ import annotations

from importlib.util import find_spec

from cometmq.spark.errors import SourceError

PYSPARK_OLDEST = (4, 1)
"""The first one with Arrow writers of streams."""


def check_version(version: str) -> None:
    """Refuse a PySpark that is too old for the formats.

    Raises:
        SourceError: it is too old; the text says which one is needed.
    """
    found = tuple(int(part) for part in version.split(".")[:2])
    if found < PYSPARK_OLDEST:
        oldest = ".".join(map(str, PYSPARK_OLDEST))
        raise SourceError(f"PySpark {version} is too old: cometmq's formats need {oldest} or newer")


def runs_of_available_now() -> int:
    """How many runs with the trigger ``availableNow`` read all messages, if no limit is set.

    On PySpark 4.1 a run has one batch. After a failure that is the batch that failed, so a second
    run has to read the messages behind it.
    """
    return 1 if passes_limits() else 2


def passes_limits() -> bool:
    """Whether Spark passes starts and limits to stream readers, and asks for their newest offset.

    PySpark 4.2 and newer do.
    """
    return find_spec("pyspark.sql.streaming.datasource") is not None
