"""Resolves the options of payloads on the driver, and decodes in workers what they ask for."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from cometmq.spark.errors import OptionError
from cometmq.spark.options.connection import looked_up
from cometmq.spark.options.payloads import AVRO, JSON, MSGPACK, PROTOBUF, PayloadOptions
from cometmq.spark.payloads import types
from cometmq.spark.payloads.decoder import PayloadDecoder
from cometmq.spark.payloads.registry import SchemaRegistry
from cometmq.spark.payloads.typed_json import TypedJson
from cometmq.spark.schema import CORE, Column, arrow_schema

VALUE, VALUE_ERROR = "value", "value_error"
SCHEMA_BYTES_MAX = 4 << 20
_BODY = next(column for column in CORE if column.name == "body")
_ERROR = Column(VALUE_ERROR, pa.string(), True, "STRING", "why `value` is null; null if it is not")
_VALUE = Column(VALUE, pa.struct([]), True, "STRUCT<…>", "the decoded body; null if it is not")
DOCUMENTED = (_VALUE, _ERROR)
"""Both columns, as the reference shows them."""


@dataclass(frozen=True)
class PayloadPlan:
    """What decodes the bodies of a query; every worker gets it.

    Args:
        options: of the query.
        schema: what the columns of ``value`` are made of: columns in SQL, Avro's JSON, or a
            serialized schema of Protobuf in Base64.
        registered: whether the schema of Protobuf is the registry's.
    """

    options: PayloadOptions
    schema: str
    registered: bool = False

    @classmethod
    def of(cls, options: PayloadOptions, topics: Sequence[str] = ()) -> PayloadPlan | None:
        """Return the plan of a query; None if bodies are not decoded.

        Args:
            options: of the query.
            topics: that are read; a single one names the registry's subject.

        Raises:
            OptionError: there is no schema, or it cannot be read.
            SourceError: the registry does not respond.
        """
        if options.payload_format is None:
            return None
        if (given := _given(options)) is not None:
            return cls(options, given)
        subject = options.payload_subject
        if not subject and len(topics) == 1:
            subject = f"{topics[0]}-value"
        if not options.payload_registry or not subject:
            raise OptionError(
                f"payload.format={options.payload_format} needs payload.schema,"
                " payload.schemaFile, or payload.registry and payload.subject"
            )
        found = _registry(options).latest(subject)
        if found.kind.lower() != options.payload_format:
            raise OptionError(
                f"payload.format={options.payload_format}: subject {subject} has a schema of the"
                f" kind {found.kind}"
            )
        return cls(options, found.text, registered=True)

    def sql(self) -> str:
        """Return Spark's SQL form of the type of ``value``.

        Raises:
            OptionError: the schema is damaged, or has a type that no column has.
        """
        if self.options.payload_format in (JSON, MSGPACK):
            return f"STRUCT<{self.schema}>"
        return types.sql_type(self._kind())

    def columns(self, kind: pa.DataType) -> tuple[Column, Column]:
        """Return both columns.

        Args:
            kind: the type that the query declares for ``value``: all fields, or some.

        Raises:
            OptionError: the schema has other types, or the type is no struct.
        """
        if not pa.types.is_struct(kind):
            raise OptionError(f"met the type {kind} of column {VALUE}, expected a struct")
        if self.options.payload_format in (AVRO, PROTOBUF):
            _check_fields(kind, self._kind())
        return _VALUE._replace(type=kind, ddl=types.sql_type(kind)), _ERROR

    def decoder(self, kind: pa.StructType) -> PayloadDecoder:
        """Return the decoder of a type."""
        options = self.options
        if options.payload_format in (JSON, MSGPACK):
            return PayloadDecoder(TypedJson(kind, options.payload_format), kind)
        registry = _registry(options) if options.payload_registry else None
        if options.payload_format == AVRO:
            from cometmq.spark.payloads.avro import Avro

            return PayloadDecoder(Avro(self.schema, registry), kind)
        from cometmq.spark.payloads.protobuf import Protobuf, descriptor_of

        message = descriptor_of(_decoded(self.schema), options.payload_message, self.registered)
        return PayloadDecoder(Protobuf(message, registered=registry is not None), kind)

    def _kind(self) -> pa.StructType:
        if self.options.payload_format == AVRO:
            from cometmq.spark.payloads import avro

            return avro.arrow_type(self.schema)
        from cometmq.spark.payloads import protobuf

        return protobuf.arrow_type(
            protobuf.descriptor_of(
                _decoded(self.schema), self.options.payload_message, self.registered
            )
        )


class PayloadRows:
    """Adds the decoded columns to batches, in the place where the query wants them.

    Args:
        columns: of the query.
        plan: decodes ``value``; None if the query has no such column.

    Raises:
        OptionError: the query has ``value_error`` without ``value``, whose type decides about it.
    """

    def __init__(self, columns: Sequence[Column], plan: PayloadPlan | None) -> None:
        self._columns = tuple(columns)
        kinds = {column.name: column.type for column in columns}
        self._decoder = None
        self.needed: tuple[Column, ...] = self._columns
        """The columns that batches have to have."""
        if plan is not None and kinds.keys() & {VALUE, VALUE_ERROR}:
            if VALUE not in kinds:
                raise OptionError(f"the column {VALUE_ERROR} needs the column {VALUE}")
            self._decoder = plan.decoder(kinds[VALUE])
            kept = tuple(each for each in columns if each.name not in (VALUE, VALUE_ERROR))
            self.needed = kept if _BODY.name in kinds else (*kept, _BODY)

    def complete(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the columns of the query alone, in their order."""
        if self._decoder is None:
            if batch.num_columns == len(self._columns):
                return batch
            return batch.select(range(len(self._columns)))
        made = dict(zip((VALUE, VALUE_ERROR), self._decoder.decode(batch["body"]), strict=True))
        arrays = [
            made[each.name] if each.name in made else batch[each.name] for each in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(self._columns))


def _given(options: PayloadOptions) -> str | None:
    if (path := options.payload_schema_file) is None:
        return options.payload_schema
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(SCHEMA_BYTES_MAX + 1)
        if len(data) > SCHEMA_BYTES_MAX:
            raise OptionError(f"payload.schemaFile={path}: more than {SCHEMA_BYTES_MAX} bytes")
        if options.payload_format == PROTOBUF:
            return base64.b64encode(data).decode()
        return data.decode().strip()
    except OSError as problem:
        raise OptionError(f"payload.schemaFile={path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise OptionError(f"payload.schemaFile={path}: expected text in UTF-8") from None


def _registry(options: PayloadOptions) -> SchemaRegistry:
    password = looked_up("payload.registry.password", options.payload_registry_password)
    return SchemaRegistry(options.payload_registry, options.payload_registry_user, password)


def _check_fields(asked: pa.StructType, known: pa.StructType) -> None:
    kinds = {each.name: types.sql_type_nullable(each.type) for each in known}
    for each in asked:
        if types.sql_type_nullable(each.type) != kinds.get(each.name):
            expected = kinds.get(each.name) or f"one of the fields {', '.join(kinds)}"
            raise OptionError(
                f"met value.{each.name} {types.sql_type(each.type)}, expected {expected}"
            )


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as problem:
        raise OptionError(f"payload.schema: expected Base64: {problem}") from None
