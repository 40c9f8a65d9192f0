"""Logs that Spark reads, as batches and as streams; and stores that RocketMQ wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.spark.spark_topics import Stream, named
from support.wire.recorded import STORES, unpack_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDED = ("4.9.7-main", "5.3.3-main")


def recorded_store(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """A store that RocketMQ wrote, and what is in it."""
    return unpack_store(name, folder), json.loads((STORES / f"{name}.json").read_text())


def log(spark: SparkSession, path: Path | str | list[str], **options: Any) -> DataFrame:
    """The log at a path or a URL."""
    return (
        spark.read.format("rocketmq-log")
        .options(**named(options))
        .load(str(path) if isinstance(path, Path) else path)
    )


class LogStream(Stream):
    """A streaming query from a log to Parquet that can be run again and again."""

    def source(self, **options: Any) -> DataFrame:
        source = self.spark.readStream.format("rocketmq-log").options(**self.options)
        return source.options(**named(options)).load()
