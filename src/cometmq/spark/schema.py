"""The columns of the message formats: name, type, and the formats that have them.

    topic formats := core [properties]
    log format    := core [properties] born_host store_host [record_valid]

A user's own schema chooses some of them, in any order; that is how columns are pruned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from cometmq.spark.errors import OptionError

TIMESTAMP = pa.timestamp("us", tz="UTC")
TEXT_MAP = pa.map_(pa.string(), pa.string())


class Column(NamedTuple):
    """One column."""

    name: str
    type: pa.DataType
    nullable: bool
    ddl: str
    """Spark's name of the type."""
    doc: str


CORE: tuple[Column, ...] = (
    Column("topic", pa.string(), False, "STRING", "the topic"),
    Column("broker_name", pa.string(), True, "STRING", "the broker; null if unknown"),
    Column("queue_id", pa.int32(), False, "INT", "the queue within topic and broker"),
    Column("queue_offset", pa.int64(), False, "BIGINT", "the queue offset"),
    Column("msg_id", pa.string(), True, "STRING", "the sender's unique id, else `offset_msg_id`"),
    Column("offset_msg_id", pa.string(), True, "STRING", "the broker's id, with physical offset"),
    Column("tags", pa.string(), True, "STRING", "the tag; null if there is none"),
    Column("keys", pa.string(), True, "STRING", "the keys, separated by blanks; null if none"),
    Column("body", pa.binary(), True, "BINARY", "the body, decompressed by default"),
    Column("born_timestamp", TIMESTAMP, True, "TIMESTAMP", "when the sender created it"),
    Column("store_timestamp", TIMESTAMP, False, "TIMESTAMP", "when the broker stored it"),
    Column("reconsume_times", pa.int32(), True, "INT", "number of redeliveries"),
    Column("sys_flag", pa.int32(), True, "INT", "RocketMQ's flags; 1 is compressed"),
    Column("flag", pa.int32(), True, "INT", "a number of the application"),
    Column("body_crc", pa.int32(), True, "INT", "checksum of the stored body"),
    Column("phy_offset", pa.int64(), True, "BIGINT", "the physical offset of the record"),
    Column("store_size", pa.int32(), True, "INT", "size of the whole record in bytes"),
    Column("prepared_offset", pa.int64(), True, "BIGINT", "physical offset of its half message"),
)
"""What every message has."""

PROPERTIES = Column(
    "properties", TEXT_MAP, True, "MAP<STRING, STRING>", "all properties, including RocketMQ's own"
)

HOSTS: tuple[Column, ...] = (
    Column("born_host", pa.string(), True, "STRING", "address and port of the sender"),
    Column("store_host", pa.string(), True, "STRING", "address and port of the broker"),
)

RECORD_VALID = Column(
    "record_valid", pa.bool_(), True, "BOOLEAN", "whether lengths and checksum are valid"
)


def topic_columns(*, properties: bool) -> tuple[Column, ...]:
    """Return the columns of messages that come from brokers."""
    return (*CORE, PROPERTIES) if properties else CORE


def log_columns(*, properties: bool, validate: bool) -> tuple[Column, ...]:
    """Return the columns of messages that come from log files."""
    columns = (*topic_columns(properties=properties), *HOSTS)
    return (*columns, RECORD_VALID) if validate else columns


def ddl(columns: Iterable[Column]) -> str:
    """Return the columns in Spark's words: ``topic STRING NOT NULL, ...``."""
    return ", ".join(
        f"{column.name} {column.ddl}{'' if column.nullable else ' NOT NULL'}" for column in columns
    )


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches with these columns."""
    return pa.schema(
        pa.field(column.name, column.type, nullable=column.nullable) for column in columns
    )


def chosen(columns: Sequence[Column], names: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns that a user's schema names, in its order.

    Raises:
        OptionError: a name is none of the columns, or is there twice.
    """
    known = {column.name: column for column in columns}
    for name in names:
        if name not in known:
            raise OptionError(f"met the column {name!r}, expected some of {', '.join(known)}")
    if len(set(names)) < len(names):
        raise OptionError(f"met a column twice in {', '.join(names)}")
    return tuple(known[name] for name in names)


def declared(
    columns: Sequence[Column], fields: Iterable[tuple[str, str, bool]]
) -> tuple[Column, ...]:
    """Return the columns of a user's schema, nullable where the user said so.

    Spark wants batches to be exactly as declared, so this is what readers ask for.

    Args:
        columns: those that there are.
        fields: of each field its name, its type as Spark writes it shortest (``bigint``,
            ``map<string,string>``), and whether it may be null.

    Raises:
        OptionError: a name is none of the columns, is there twice, or has another type.
    """
    wanted = list(fields)
    found = chosen(columns, [name for name, _, _ in wanted])
    for column, (_, kind, _) in zip(found, wanted, strict=True):
        expected = column.ddl.lower().replace(" ", "")
        if kind != expected:
            raise OptionError(f"met the type {kind} of column {column.name}, expected {expected}")
    return tuple(
        column._replace(nullable=nullable)
        for column, (_, _, nullable) in zip(found, wanted, strict=True)
    )
