"""Which formats there are, and how a Spark session learns of them.

Each format is one data source class. A session knows them after `register_all`; besides, Spark
finds the class ``DefaultSource`` of every top-level module named ``pyspark_*`` by itself, and
there is one such module per format. Spark allows one class per module.

Source: ours.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from cometmq.spark.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

PUSH_FILTERS = "spark.sql.python.filterPushdown.enabled"
PYSPARK_OLDEST = (4, 2)

FORMATS: dict[str, tuple[str, str]] = {
    "rocketmq": ("cometmq.spark.sources.topics", "TopicSource"),
    "rocketmq-log": ("cometmq.spark.sources.log", "LogSource"),
    "rocketmq-consumequeue": ("cometmq.spark.sources.consume_queue", "ConsumeQueueSource"),
    "rocketmq-index": ("cometmq.spark.sources.index", "IndexSource"),
    "rocketmq-meta": ("cometmq.spark.sources.meta", "MetaSource"),
}
"""Module and class of each format."""


def register_all(spark: SparkSession, *, push_filters: bool = False) -> None:
    """Register every format; see `cometmq.spark.register`.

    Raises:
        SourceError: this PySpark is older than Python sources with stream limits.
    """
    check_version(spark.version)
    for name in FORMATS:
        if not _is_known(spark, name):
            spark.dataSource.register(source_class(name))
    if push_filters:
        spark.conf.set(PUSH_FILTERS, "true")


def _is_known(spark: SparkSession, name: str) -> bool:
    """Whether the session has the format already, because Spark has found its module.

    If it is registered all the same, Spark logs a warning, again at the start of each stream.
    """
    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        return bool(manager.dataSourceExists(name))
    except Exception:  # a session of Spark Connect has no JVM; the method is not part of the API
        return False


def check_version(version: str) -> None:
    """Refuse a PySpark that is too old for our sources, with the way out.

    Raises:
        SourceError: it is too old.
    """
    found = tuple(int(part) for part in version.split(".")[:2])
    if found < PYSPARK_OLDEST:
        oldest = ".".join(map(str, PYSPARK_OLDEST))
        raise SourceError(f"PySpark {version} is too old: cometmq's formats need {oldest} or newer")


def source_class(name: str) -> type[DataSource]:
    """Give the class of one format.

    Raises:
        KeyError: there is no such format.
    """
    module, kind = FORMATS[name]
    found: type[DataSource] = getattr(importlib.import_module(module), kind)
    return found
