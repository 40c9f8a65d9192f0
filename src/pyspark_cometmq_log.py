"""Lets Spark find the format ``rocketmq-log`` by itself; see `cometmq.spark.registration`."""

from cometmq.spark.sources.log import LogSource as DefaultSource

__all__ = ["DefaultSource"]
