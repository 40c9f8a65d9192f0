"""The data sources of Spark: the formats, and the class of each one."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

FORMATS: dict[str, tuple[str, str]] = {
    "rocketmq": ("cometmq.spark.sources.topics", "TopicSource"),
    "rocketmq-log": ("cometmq.spark.sources.log.source", "LogSource"),
    "rocketmq-meta": ("cometmq.spark.sources.meta", "MetaSource"),
}
"""Module and class of each format."""


def source_class(name: str) -> type[DataSource]:
    """Return the class of one format.

    Raises:
        KeyError: there is no such format.
    """
    module, kind = FORMATS[name]
    found: type[DataSource] = getattr(import_module(module), kind)
    return found
