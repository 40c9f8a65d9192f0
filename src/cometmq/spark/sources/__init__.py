"""The data sources of Spark: the formats, and the class of each one."""

from __future__ import annotations

from importlib import import_module
from typing import ClassVar

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


class LazySource(DataSource):
    """The base of a ``DefaultSource``: knows the name of its format, and becomes its source.

    Spark imports the modules ``pyspark_*`` of all packages to find a format, in every application
    of the environment. An application that reads other formats must not load the code of ours.
    """

    FORMAT: ClassVar[str]

    def __new__(cls, options: dict[str, str]) -> DataSource:  # type: ignore[misc]  # noqa: D102
        return source_class(cls.FORMAT)(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.FORMAT
