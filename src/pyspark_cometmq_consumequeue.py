"""Lets Spark find ``rocketmq-consumequeue`` by itself; see `cometmq.spark.registration`."""

from cometmq.spark.sources.consume_queue import ConsumeQueueSource as DefaultSource

__all__ = ["DefaultSource"]
