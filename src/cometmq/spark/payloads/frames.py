"""Decodes the bodies of a DataFrame: of an archive, or of a topic that was read without options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from cometmq.spark.errors import OptionError
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.options.payloads import FORMATS, PayloadOptions
from cometmq.spark.payloads.plan import VALUE, VALUE_ERROR, PayloadPlan
from cometmq.spark.payloads.types import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def decode_payloads(
    frame: DataFrame, options: Mapping[str, str], *, column: str = "body"
) -> DataFrame:
    """Return a DataFrame with the columns ``value`` and ``value_error`` behind its own.

    Args:
        frame: has the bodies; may be a stream.
        options: the options ``payload.…`` of the format ``rocketmq``.
        column: the bodies, BINARY or STRING.

    Raises:
        OptionError: an option is unknown or missing, or a schema cannot be read.
        SourceError: the registry does not respond.

    Example:
        ``decode_payloads(orders, {"payload.format": "json", "payload.schema": "id BIGINT"})``
    """
    parsed = parse_options(PayloadOptions, options)
    parsed.check_payload()
    plan = PayloadPlan.of(parsed)
    if plan is None:
        raise OptionError(f"payload.format is required: one of {', '.join(FORMATS)}")
    value_field = cast(StructType, StructType.fromDDL(f"{VALUE} {plan.sql()}")).fields[0]
    kind = arrow_type(value_field.dataType.jsonValue())
    plan.columns(kind)
    error_field = StructField(VALUE_ERROR, StringType())
    schema = StructType([*frame.schema.fields, value_field, error_field])

    def decoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = plan.decoder(kind)
        for batch in batches:
            bodies = batch.column(column).cast(pa.binary())
            value, reason = decoder.decode(bodies)
            yield batch.append_column(VALUE, value).append_column(VALUE_ERROR, reason)

    return frame.mapInArrow(decoded, schema)  # type: ignore[arg-type, unused-ignore]  # PySpark 4.1
