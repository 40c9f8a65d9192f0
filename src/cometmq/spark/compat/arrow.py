"""The Arrow schema of a schema of Spark, whose function has other parameters in each version."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema, with times in UTC, which PySpark 4.1 takes without being asked."""
    named: dict[str, Any] = {"timezone": "UTC"}
    if "timezone" not in signature(to_arrow_schema).parameters:
        named = {}
    return to_arrow_schema(schema, **named)
