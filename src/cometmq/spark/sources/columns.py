"""The columns of a query on messages: the columns of the format, and those decoded from bodies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cometmq.spark.errors import OptionError
from cometmq.spark.payloads.plan import VALUE, VALUE_ERROR, PayloadPlan
from cometmq.spark.payloads.types import arrow_type
from cometmq.spark.schema import Column, ddl, declared

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def all_columns(columns: Iterable[Column], plan: PayloadPlan | None) -> str:
    """Return the columns of a format in Spark's words, with the decoded ones behind them."""
    own = ddl(columns)
    return own if plan is None else f"{own}, {VALUE} {plan.sql()}, {VALUE_ERROR} STRING"


def query_columns(
    schema: StructType, known: tuple[Column, ...], plan: PayloadPlan | None
) -> tuple[Column, ...]:
    """Return the columns of a query's schema, in its order.

    Args:
        schema: of the query: all columns, or those that the user named.
        known: the columns of the format.
        plan: what decodes bodies.

    Raises:
        OptionError: a name is none of the columns, is there twice, or has another type.
    """
    kinds = {each.name: each.dataType for each in schema.fields}
    if plan is not None and VALUE in kinds:
        known = (*known, *plan.columns(arrow_type(kinds[VALUE].jsonValue())))
        # The type was checked field by field; Spark may write it in another way than `sql_type`.
        simple = kinds[VALUE].simpleString()
        known = tuple(each._replace(ddl=simple) if each.name == VALUE else each for each in known)
    elif plan is not None and VALUE_ERROR in kinds:
        raise OptionError(f"the column {VALUE_ERROR} needs the column {VALUE}")
    fields = [(each.name, each.dataType.simpleString(), each.nullable) for each in schema.fields]
    return declared(known, fields)
