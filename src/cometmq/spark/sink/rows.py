"""The columns that can be written, and the rows of a record batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.model.errors import InvalidNameError
from cometmq.model.topic import SEND_FORBIDDEN_TOPICS, check_topic_name
from cometmq.spark.errors import OptionError, RowError
from cometmq.spark.sink.unique_ids import Origin

BINARY = pa.binary()
Numbers: TypeAlias = npt.NDArray[Any]
Test: TypeAlias = Callable[[pa.DataType], bool]

_TEXT: tuple[Test, ...] = (pa.types.is_string, pa.types.is_large_string)
_BYTES: tuple[Test, ...] = (pa.types.is_binary, pa.types.is_large_binary, *_TEXT)
_NUMBER: tuple[Test, ...] = (pa.types.is_int32, pa.types.is_int16, pa.types.is_int8)


def _passes(kind: pa.DataType, tests: Iterable[Test]) -> bool:
    return any(test(kind) for test in tests)


def _is_texts(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) and _passes(kind.value_type, _TEXT)


def _is_text_map(kind: pa.DataType) -> bool:
    return (
        pa.types.is_map(kind) and _passes(kind.key_type, _TEXT) and _passes(kind.item_type, _TEXT)
    )


def _is_instant(kind: pa.DataType) -> bool:
    """Return whether the type is a time with a zone."""
    return pa.types.is_timestamp(kind) and kind.tz is not None


COLUMNS: dict[str, tuple[str, tuple[Test, ...], str]] = {
    "body": ("BINARY or STRING", _BYTES, "the body; not null, not empty"),
    "topic": ("STRING", _TEXT, "needed unless the option `topic` is set"),
    "tags": ("STRING", _TEXT, "the tag of the message"),
    "keys": (
        "STRING or ARRAY<STRING>", (*_TEXT, _is_texts),
        "keys of the message; a text is used unchanged",
    ),
    "properties": (
        "MAP<STRING, STRING>", (_is_text_map,), "further properties; null values are omitted",
    ),
    "sharding_key": ("STRING", _TEXT, "rows with the same key keep their order in one queue"),
    "queue_id": ("INT", _NUMBER, "the target queue"),
    "broker_name": ("STRING", _TEXT, "the target broker; needed if several have the topic"),
    "delay_level": ("INT", _NUMBER, "a delay level of the broker; 0 for none"),
    "deliver_timestamp": ("TIMESTAMP", (_is_instant,), "time of delivery; needs a broker's timer"),
    "flag": ("INT", _NUMBER, "a number of the application"),
    "msg_id": ("STRING", _TEXT, "the unique id; null creates one"),
}  # fmt: skip
"""The columns that can be written: the type in words, the tests of the Arrow type, the meaning."""


def check_columns(schema: pa.Schema, topic: str) -> None:
    """Refuse columns that cannot be written, before the first row is read.

    Args:
        schema: the columns of the DataFrame.
        topic: the option ``topic``; empty if it is not set.

    Raises:
        OptionError: a column is unknown, missing or of another type, or the topic has no valid
            name.
    """
    for field in schema:
        if field.name not in COLUMNS:
            known = ", ".join(COLUMNS)
            raise OptionError(f"column {field.name} cannot be written: some of {known} can")
        words, tests, _ = COLUMNS[field.name]
        if not _passes(field.type, tests):
            raise OptionError(f"column {field.name} is {field.type}: {words} is expected")
    if len(set(schema.names)) < len(schema.names):
        raise OptionError(f"a column name is used twice: {', '.join(schema.names)}")
    if "body" not in schema.names:
        raise OptionError(f"there is no column body among {', '.join(schema.names)}")
    if topic and (problem := topic_problem(topic)):
        raise OptionError(f"option topic is {topic!r}: {problem}")
    if not topic and "topic" not in schema.names:
        raise OptionError("expected the option topic or a column topic, found neither")
    if "broker_name" in schema.names and "queue_id" not in schema.names:
        raise OptionError("a column broker_name without a column queue_id: both name a queue")


def topic_problem(name: str) -> str:
    """Return why clients cannot write to a topic of this name; empty if they can."""
    if name in SEND_FORBIDDEN_TOPICS:
        return "it is a system topic: clients cannot write to it"
    try:
        check_topic_name(name)
    except InvalidNameError as error:
        return str(error)
    return ""


class Rows:
    """The rows of one record batch.

    Args:
        batch: the columns, checked by `check_columns`.
        origin: the origin of the rows.
        first: the number of the first row in its partition.
    """

    def __init__(self, batch: pa.RecordBatch, origin: Origin, first: int) -> None:
        self._batch = batch
        self._names = set(batch.schema.names)
        self.origin = origin
        self.first = first

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def column(self, name: str) -> pa.Array | None:
        """Return a column; None if it is missing or all its values are null."""
        if name not in self._names:
            return None
        found = self._batch.column(name)
        return None if found.null_count == len(found) and name != "body" else found

    def octets(self, name: str) -> pa.Array | None:
        """Return a column of texts or bytes as bytes."""
        found = self.column(name)
        return None if found is None else found.cast(BINARY)

    def text(self, name: str) -> pa.Array | None:
        """Return a column of texts as bytes; refuse texts with a separator of properties."""
        found = self.octets(name)
        if found is not None:
            self.refuse(separated(found), f"{name} holds one of the characters 0x01 and 0x02")
        return found

    def refuse(self, wrong: Numbers, why: str) -> None:
        """Refuse the first wrong row.

        Args:
            wrong: whether each row is wrong.
            why: the reason.

        Raises:
            RowError: a row is wrong; the text names the row and the reason.
        """
        if wrong.any():
            raise RowError(f"{self.position(int(wrong.argmax()))}: {why}")

    def position(self, number: int) -> str:
        """Return the name of a row for error messages."""
        return self.origin.position(self.first + number)


def true(values: pa.Array) -> Numbers:
    """Return which values are true; null counts as false."""
    return np.asarray(pc.fill_null(values, False).to_numpy(zero_copy_only=False), dtype=bool)


def lengths(values: pa.Array) -> Numbers:
    """Return the size of each value in bytes; null has 0."""
    return np.asarray(pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False))


def separated(values: pa.Array) -> Numbers:
    """Return which values hold a separator of properties."""
    if not any(byte in _data(values) for byte in (b"\x01", b"\x02")):
        return np.zeros(len(values), bool)
    return np.logical_or(
        true(pc.match_substring(values, b"\x01")), true(pc.match_substring(values, b"\x02"))
    )


def blank(values: pa.Array) -> Numbers:
    """Return which values are empty or only blanks; null is not."""
    return true(pc.equal(pc.binary_length(pc.utf8_trim_whitespace(values.cast(pa.string()))), 0))


def _data(values: pa.Array) -> bytes:
    """Return the buffer of the values; it may hold more than these values."""
    buffer = values.buffers()[2]
    return b"" if buffer is None else buffer.to_pybytes()
