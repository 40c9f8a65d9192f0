"""Lets Spark find ``rocketmq-log`` by itself; see `cometmq.spark`."""

from contextlib import suppress

with suppress(ImportError):  # a module that cannot be imported would hide everybody's sources
    from cometmq.spark.sources import LazySource

    class DefaultSource(LazySource):
        """The format ``rocketmq-log``."""

        FORMAT = "rocketmq-log"
