"""Lets Spark find the format ``rocketmq-meta`` by itself; see `cometmq.spark.registration`."""

from cometmq.spark.sources.meta import MetaSource as DefaultSource

__all__ = ["DefaultSource"]
