"""RocketMQ's messages in Spark: data sources for PySpark, metrics of streams, and checks.

``pip install '.[spark]'``; nothing else is needed, no jar. A session knows the formats after
`register`. Spark also finds the class ``DefaultSource`` of every top-level module named
``pyspark_*`` by itself; each format has one such module, because Spark allows one class per module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make the formats ``rocketmq``, ``rocketmq-log`` and their kin known to a session.

    It changes nothing else: no setting of the session, and no other session.

    Args:
        spark: the session; registering twice does no harm.

    Raises:
        SourceError: this PySpark is too old.

    Example: ``register(spark); spark.read.format("rocketmq").option("subscribe", "orders")``
    """
    from cometmq.spark.compat import check_version
    from cometmq.spark.sources import FORMATS, source_class

    check_version(spark.version)
    for name in FORMATS:
        if not _is_known(spark, name):
            spark.dataSource.register(source_class(name))


def _is_known(spark: SparkSession, name: str) -> bool:
    """Whether the session has the format already, because Spark has found its module.

    If it is registered all the same, Spark logs a warning, again at the start of each stream.
    """
    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        return bool(manager.dataSourceExists(name))
    except Exception:  # a session of Spark Connect has no JVM; the method is not part of the API
        return False
