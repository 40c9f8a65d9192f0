"""The Arrow schema of a schema of Spark, with each of the functions that versions have."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructField, StructType, TimestampType

from cometmq.spark.compat import arrow

SCHEMA = StructType([StructField("at", TimestampType())])
WANTED = pa.schema([pa.field("at", pa.timestamp("us", tz="UTC"))])


def test_times_are_in_utc_with_the_installed_version() -> None:
    assert arrow.arrow_schema(SCHEMA) == WANTED


def test_the_function_of_4_1_is_called_without_a_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_4_1(schema: StructType, timestamp_utc: bool = True) -> Any:
        return WANTED if schema is SCHEMA and timestamp_utc else None

    monkeypatch.setattr(arrow, "to_arrow_schema", of_4_1)
    assert arrow.arrow_schema(SCHEMA) == WANTED
