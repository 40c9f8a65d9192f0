"""RocketMQ's messages in Spark: data sources for PySpark, and pipelines over them.

Install ``cometmq[spark]``; nothing else is needed, no jar. Sources are known to a session after
`register`, and without it in a session whose driver can import ``pyspark_cometmq``.
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
    from cometmq.spark.registration import register_all

    register_all(spark)
