"""Decodes message bodies by a schema: JSON, MessagePack, Avro and Protobuf.

The formats ``rocketmq`` and ``rocketmq-log`` decode while they read, with the options
``payload.format`` and ``payload.schema``; `decode_payloads` does the same for a table that has
bodies. Both add two columns:

    value        the decoded body, a struct; null if the body cannot be decoded
    value_error  why it cannot be decoded; null if it can

A row is never dropped and never half decoded: a body that does not fit the schema keeps its row,
with the reason, so that a query can write it to a quarantine table.

    decoder      bodies to Arrow columns, whatever the format
    typed_json   JSON and MessagePack, through msgspec
    avro         Avro, through fastavro
    protobuf     Protocol Buffers, through protobuf
    registry     schemas by id from a registry with Confluent's interface
    frames       `decode_payloads`, the only module that needs PySpark
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.spark.payloads.decoder import PayloadDecoder, PayloadError
from cometmq.spark.payloads.registry import SchemaRegistry

if TYPE_CHECKING:
    from cometmq.spark.payloads.frames import decode_payloads

__all__ = ["PayloadDecoder", "PayloadError", "SchemaRegistry", "decode_payloads"]


def __getattr__(name: str) -> object:
    """Import `decode_payloads` when it is used: workers decode without PySpark's SQL classes."""
    if name == "decode_payloads":
        from cometmq.spark.payloads.frames import decode_payloads

        return decode_payloads
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
