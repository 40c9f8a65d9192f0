"""The columns of a query on messages: the columns of the format, and those decoded from bodies."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource

from cometmq.spark.compat import exempt_loaded_modules
from cometmq.spark.errors import OptionError
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.payloads.plan import VALUE, VALUE_ERROR, PayloadPlan
from cometmq.spark.payloads.types import arrow_type
from cometmq.spark.schema import Column, ddl, declared

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class MessageSource(DataSource):
    """The base of the formats whose rows are messages."""

    OPTIONS: ClassVar[type]
    """The options of reading."""
    _plan: PayloadPlan | None = None

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        exempt_loaded_modules()

    @abstractmethod
    def known_columns(self, options: Any, *, properties: bool) -> tuple[Column, ...]:
        """Return the columns of the format."""

    def schema(self) -> str:
        """Return all columns, the decoded ones last."""
        options: Any = parse_options(self.OPTIONS, self.options)
        own = ddl(self.known_columns(options, properties=options.include_properties))
        plan = self._payload_plan(options)
        return own if plan is None else f"{own}, {VALUE} {plan.sql()}, {VALUE_ERROR} STRING"

    def query(self, schema: StructType) -> tuple[Any, tuple[Column, ...], PayloadPlan | None]:
        """Return the options, the columns and the decoder of bodies of a query.

        A query that names the column ``properties`` gets it, whatever ``includeProperties`` is.
        """
        options: Any = parse_options(self.OPTIONS, self.options)
        plan = self._payload_plan(options)
        return options, _asked(schema, self.known_columns(options, properties=True), plan), plan

    def _payload_plan(self, options: Any) -> PayloadPlan | None:
        """Return the plan; Spark copies this object for each query, so they share a schema."""
        if self._plan is None:
            self._plan = PayloadPlan.of(options, sorted(options.topics()))
        return self._plan


def _asked(
    schema: StructType, known: tuple[Column, ...], plan: PayloadPlan | None
) -> tuple[Column, ...]:
    """Return the columns of a query's schema, in its order.

    Args:
        schema: all columns, or the ones that the user named.
        known: the columns of the format.
        plan: the decoder of bodies.

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
