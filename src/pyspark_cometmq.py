"""Lets Spark find the format ``rocketmq`` by itself; see `cometmq.spark.registration`."""

from cometmq.spark.sources.topics import TopicSource as DefaultSource

__all__ = ["DefaultSource"]
