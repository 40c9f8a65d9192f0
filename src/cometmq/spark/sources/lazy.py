"""A format that loads its code when it is used.

Spark imports the modules ``pyspark_*`` of all packages to find a format, in every application of
the environment. An application that reads with other formats must not pay for these.
"""

from __future__ import annotations

from typing import ClassVar

from pyspark.sql.datasource import DataSource

from cometmq.spark.sources import source_class


class LazySource(DataSource):
    """The base of a ``DefaultSource``: knows the name of its format, and becomes its source."""

    FORMAT: ClassVar[str]

    def __new__(cls, options: dict[str, str]) -> DataSource:  # type: ignore[misc]  # noqa: D102
        return source_class(cls.FORMAT)(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.FORMAT
