"""Checks rows and encodes them as items of message batches, a column at a time.

    item := size:i32 0:i32 0:i32 flag:i32 body:bytes32 properties:bytes16

Arrow joins the columns, so the interpreter runs no step per row. A row that cannot become a message
is refused before any row of its record batch is sent.

Source: MessageDecoder.encodeMessage, RocketMQ 5.3, for the item.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.model import property_names as names
from cometmq.protocol.batch import ITEM_BYTES_MIN
from cometmq.protocol.properties import PROPERTIES_BYTES_MAX
from cometmq.spark.sink.rows import BINARY, Numbers, Rows, blank, lengths, separated, true
from cometmq.spark.sink.unique_ids import Origin, RowIds

_UNIQUE_KEY = b"WAIT\x01true\x02UNIQ_KEY\x01"
_RESERVED = pa.array(sorted(names.RESERVED), pa.string()).cast(BINARY)


class EncodedRows(NamedTuple):
    """The encoded rows of one record batch."""

    items: pa.Array
    """Each row as an item of a message batch."""
    delayed: Numbers
    """Whether each row is a delayed message, which brokers refuse in a batch."""
    ids: pa.Array
    """The unique id of each row, as bytes."""


class RowEncoder:
    """Encodes the rows of one partition, batch by batch.

    Args:
        origin: the origin of the rows.
        body_bytes_max: size limit of a body.
        drop_reserved: whether properties with RocketMQ's own names are omitted, not refused.
    """

    def __init__(self, origin: Origin, *, body_bytes_max: int, drop_reserved: bool = False) -> None:
        self._row_ids = RowIds(origin)
        self._body_bytes_max = body_bytes_max
        self._drop_reserved = drop_reserved

    def encode(self, rows: Rows) -> EncodedRows:
        """Encode rows.

        Raises:
            RowError: a row cannot become a message; the text names the row and the reason.
        """
        body = self._bodies(rows)
        delayed = _delayed(rows)
        properties = self._properties(rows)
        ids = self._ids(rows, body, properties)
        properties = _joined(properties, _scalar(_UNIQUE_KEY), ids, _scalar(b"\x02"))
        sizes = lengths(properties)
        rows.refuse(
            sizes > PROPERTIES_BYTES_MAX, f"properties of more than {PROPERTIES_BYTES_MAX} bytes"
        )
        head = _heads(rows, lengths(body), sizes)
        return EncodedRows(_joined(head, body, _fixed(sizes, ">i2"), properties), delayed, ids)

    def _bodies(self, rows: Rows) -> pa.Array:
        body = rows.octets("body")
        assert body is not None, "check_columns requires the column"
        rows.refuse(true(pc.is_null(body)), "body is null")
        sizes = lengths(body)
        rows.refuse(sizes == 0, "body is empty: brokers refuse such messages")
        limit = self._body_bytes_max
        rows.refuse(sizes > limit, f"body is too large: at most {limit} bytes are expected")
        return body

    def _properties(self, rows: Rows) -> pa.Array:
        """Encode all properties except the unique id."""
        parts = [pa.array([b""] * len(rows), BINARY)]
        if (own := self._own(rows)) is not None:
            parts.append(own)
        for name, values in (
            (names.TAGS, rows.text("tags")),
            (names.KEYS, _keys(rows)),
            (names.SHARDING_KEY, rows.text("sharding_key")),
            (names.DELAY, _delay_levels(rows)),
            (names.TIMER_DELIVER_MS, _deliver_times(rows)),
        ):
            if values is not None:
                parts.append(_property(name, values))
        return _joined(*parts)

    def _ids(self, rows: Rows, body: pa.Array, properties: pa.Array) -> pa.Array:
        """Return the unique ids: the values of ``msg_id``, and generated ids where it is null."""
        given = rows.text("msg_id")
        if given is not None:
            rows.refuse(blank(given), "msg_id is blank")
            if not given.null_count:
                return given
        generated = self._row_ids.of(_contents(rows, body, properties, given))
        return generated if given is None else pc.coalesce(given, generated)

    def _own(self, rows: Rows) -> pa.Array | None:
        """Encode the column ``properties``; a null row has no properties."""
        column = rows.column("properties")
        if column is None:
            return None
        entries = _Entries(column)
        self._check_own(rows, entries)
        if self._drop_reserved:
            entries.omit(entries.reserved)
        return entries.joined()

    def _check_own(self, rows: Rows, entries: _Entries) -> None:
        for wrong, why in (
            (separated(entries.names), "the name of a property holds the character 0x01 or 0x02"),
            (separated(entries.values), "a property holds the character 0x01 or 0x02"),
            (blank(entries.names), "the name of a property is blank"),
            (blank(entries.values), "a property is blank"),
        ):
            rows.refuse(entries.rows_with(wrong, len(rows)), why)
        if not self._drop_reserved and entries.reserved.any():
            name = entries.names[int(entries.reserved.argmax())].as_py().decode()
            with_reserved = entries.rows_with(entries.reserved, len(rows))
            rows.refuse(with_reserved, f"the property {name} has a name of RocketMQ's own")


class _Entries:
    """The entries of a column of maps."""

    def __init__(self, column: pa.MapArray) -> None:
        column = pa.concat_arrays([column])  # so that it begins at its first entry
        self._offsets = np.asarray(column.offsets)
        first, end = int(self._offsets[0]), int(self._offsets[-1])
        self.names = column.keys.slice(first, end - first).cast(BINARY)
        self.values = column.items.slice(first, end - first).cast(BINARY)
        self._offsets = self._offsets - first
        self.reserved = true(pc.is_in(self.names, value_set=_RESERVED))
        self._omitted = np.zeros(len(self.names), bool)

    def rows_with(self, chosen: Numbers, count: int) -> Numbers:
        """Return which of ``count`` rows have a chosen entry."""
        found = np.zeros(count, bool)
        if chosen.any():
            indexes = np.flatnonzero(chosen)
            found[np.searchsorted(self._offsets, indexes, side="right") - 1] = True
        return found

    def omit(self, chosen: Numbers) -> None:
        """Leave the chosen entries out of `joined`."""
        self._omitted = chosen

    def joined(self) -> pa.Array:
        """Return the entries of each row as one property string."""
        texts = _joined(self.names, _scalar(b"\x01"), self.values, _scalar(b"\x02"))
        if self._omitted.any():
            texts = pc.if_else(pa.array(self._omitted), _scalar(b""), texts)
        texts = pc.fill_null(texts, _scalar(b""))  # null values
        lists = pa.ListArray.from_arrays(pa.array(self._offsets, pa.int32()), texts)
        return pc.binary_join(lists, _scalar(b""))


def _keys(rows: Rows) -> pa.Array | None:
    column = rows.column("keys")
    if column is None or not pa.types.is_list(column.type):
        return rows.text("keys")
    flat = pc.list_flatten(column)
    owners = np.asarray(pc.list_parent_indices(column))
    wrong = np.zeros(len(rows), bool)
    wrong[owners[true(pc.is_null(flat)) | blank(flat)]] = True
    rows.refuse(wrong, "a key is null or blank")
    joined = pc.binary_join(column.cast(pa.list_(BINARY)), _scalar(b" "))
    rows.refuse(separated(joined), "keys holds one of the characters 0x01 and 0x02")
    return joined


def _delayed(rows: Rows) -> Numbers:
    """Return which rows are delayed; refuse rows with two delays."""
    levels, times = rows.column("delay_level"), rows.column("deliver_timestamp")
    found = np.zeros(len(rows), bool)
    if levels is not None:
        rows.refuse(true(pc.less(levels, 0)), "delay_level is below 0")
        found |= true(pc.greater(levels, 0))
    if times is not None:
        due = true(pc.is_valid(times))
        rows.refuse(found & due, "only one of delay_level and deliver_timestamp is allowed")
        found |= due
    return found


def _delay_levels(rows: Rows) -> pa.Array | None:
    levels = rows.column("delay_level")
    if levels is None:
        return None
    positive = pc.if_else(pc.greater(levels, 0), levels, pa.scalar(None, levels.type))
    return positive.cast(pa.string()).cast(BINARY)


def _deliver_times(rows: Rows) -> pa.Array | None:
    times = rows.column("deliver_timestamp")
    if times is None:
        return None
    in_ms = times.cast(pa.timestamp("ms", tz=times.type.tz), safe=False).cast(pa.int64())
    rows.refuse(true(pc.less_equal(in_ms, 0)), "deliver_timestamp must be after 1970")
    return in_ms.cast(pa.string()).cast(BINARY)


def _heads(rows: Rows, bodies: Numbers, properties: Numbers) -> pa.Array:
    head = np.zeros((len(rows), 5), ">i4")
    head[:, 0] = bodies + properties + ITEM_BYTES_MIN
    if (flags := rows.column("flag")) is not None:
        head[:, 3] = np.asarray(pc.fill_null(flags, 0))
    head[:, 4] = bodies
    return _fixed(head, ">i4")


def _contents(rows: Rows, body: pa.Array, properties: pa.Array, given: pa.Array | None) -> pa.Array:
    """Return the content of each row; two rows are equal if and only if their bytes are equal."""
    parts = [_heads(rows, lengths(body), lengths(properties)), body, properties]
    queue = rows.column("queue_id")
    for values in (
        rows.octets("topic"),
        None if queue is None else queue.cast(pa.string()).cast(BINARY),
        rows.octets("broker_name"),
        given,
    ):
        if values is not None:
            parts.append(pc.fill_null(values.cast(BINARY), _scalar(b"")))
        parts.append(_scalar(b"\0"))
    return _joined(*parts)


def _fixed(values: Numbers, kind: str) -> pa.Array:
    """Return each row of numbers as bytes."""
    data = np.ascontiguousarray(values.astype(kind))
    width = data[:1].nbytes if len(data) else data.itemsize
    buffers = [None, pa.py_buffer(data)]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(data), buffers).cast(BINARY)


def _property(name: str, values: pa.Array) -> pa.Array:
    """Return the entries of one property; empty where the value is null or empty."""
    whole = _joined(_scalar(name.encode() + b"\x01"), values, _scalar(b"\x02"))
    return pc.if_else(pa.array(lengths(values) > 0), whole, _scalar(b""))


def _joined(*parts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _scalar(b""))


def _scalar(value: bytes) -> pa.Scalar:
    return pa.scalar(value, BINARY)
