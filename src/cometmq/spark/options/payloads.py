"""The options that decode bodies; every format that reads messages has them."""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.spark.errors import OptionError
from cometmq.spark.options.connection import check_secret
from cometmq.spark.options.parsing import option

JSON, MSGPACK, AVRO, PROTOBUF = FORMATS = ("json", "msgpack", "avro", "protobuf")


@dataclass(frozen=True)
class PayloadOptions:
    """How bodies are decoded to the columns ``value`` and ``value_error``."""

    payload_format: str | None = option(None, "payload.format", choices=FORMATS)
    """Decode bodies of this format. There are two more columns: ``value``, a struct, and
    ``value_error``, the reason why a body cannot be decoded."""
    payload_schema: str | None = option(None, "payload.schema")
    """The schema. For ``json`` and ``msgpack`` columns in SQL, ``id BIGINT, amount DOUBLE``; for
    ``avro`` the JSON of a record; for ``protobuf`` a FileDescriptorSet in Base64."""
    payload_schema_file: str | None = option(None, "payload.schemaFile")
    """A file of the driver with the schema, instead of `payload.schema`; for ``protobuf`` the file
    that ``protoc --include_imports --descriptor_set_out`` writes."""
    payload_message: str = option("", "payload.message")
    """Full name of the Protobuf message type; may be left out if the schema has only one."""
    payload_registry: str = option("", "payload.registry")
    """Address of a schema registry with Confluent's interface. Bodies then begin with a zero byte
    and the id of the schema that wrote them."""
    payload_subject: str = option("", "payload.subject")
    """The registry's subject whose newest schema decides the columns, if no schema is given. The
    default is ``TOPIC-value`` if one topic is read."""
    payload_registry_user: str = option("", "payload.registry.user")
    """User name for the registry."""
    payload_registry_password: str = option("", "payload.registry.password")
    """The user's password, by reference: ``env:NAME`` or ``file:PATH``."""

    def check_payload(self) -> None:
        """Refuse options of payloads that contradict each other.

        Raises:
            OptionError: they do; says which.
        """
        check_secret("payload.registry.password", self.payload_registry_password)
        given = [self.payload_schema, self.payload_schema_file, self.payload_registry]
        if self.payload_format is None:
            if any(given):
                raise OptionError(f"payload.format is required: one of {', '.join(FORMATS)}")
            return
        if self.payload_schema and self.payload_schema_file:
            raise OptionError("payload.schema and payload.schemaFile: only one is allowed")
        if self.payload_registry and self.payload_format in (JSON, MSGPACK):
            raise OptionError(
                f"payload.registry: bodies in {self.payload_format} are decoded by payload.schema"
            )
