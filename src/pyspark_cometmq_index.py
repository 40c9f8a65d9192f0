"""Lets Spark find the format ``rocketmq-index`` by itself; see `cometmq.spark.registration`."""

from cometmq.spark.sources.index import IndexSource as DefaultSource

__all__ = ["DefaultSource"]
