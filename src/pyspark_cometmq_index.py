"""Lets Spark find ``rocketmq-index`` by itself; see `cometmq.spark.registration`."""

from contextlib import suppress

with suppress(ImportError):  # a module that cannot be imported would hide everybody's sources
    from cometmq.spark.sources.lazy import LazySource

    class DefaultSource(LazySource):
        """The format ``rocketmq-index``."""

        FORMAT = "rocketmq-index"
