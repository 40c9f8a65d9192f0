"""Converts message bodies to Arrow columns, one row at a time and never half a row.

A format is a `Format`: it parses one body, and says how a field is read from what it parsed. The
rest is the same for all formats: a body that cannot be parsed, or whose values do not fit the Arrow
type, becomes a null value and a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from cometmq.spark.errors import SourceError

Getter = Callable[[Any], Any]

REASON_CHARS = 500
"""Limit on the length of a reason: messages of parsers may quote the body."""


class PayloadError(SourceError):
    """A body does not fit the schema; the text is the reason in ``value_error``."""


class Format(Protocol):
    """Parses the bodies of one format."""

    def parse(self, body: bytes) -> Any:
        """Return what a body holds.

        Raises:
            PayloadError: the body is damaged or does not fit the schema.
        """

    def getter(self, kind: pa.StructType, index: int) -> Getter:
        """Return a function that reads a struct's field from what was parsed."""


class PayloadDecoder:
    """Decodes bodies into a struct column and a column of reasons.

    Args:
        format: parses one body.
        kind: the Arrow type of the decoded body.

    Example: ``PayloadDecoder(TypedJson(kind), kind).decode(batch.column("body"))``
    """

    def __init__(self, format: Format, kind: pa.StructType) -> None:
        self.kind = kind
        self._format = format

    def decode(self, bodies: pa.Array) -> tuple[pa.StructArray, pa.Array]:
        """Decode a column of bodies.

        Returns:
            As many values as bodies, and as many reasons; in each row one of the two is null.

        Raises:
            SourceError: what the format needs, such as a registry, does not respond. This is not
                a fault of the row, so the task fails and is repeated.
        """
        parse = self._format.parse
        values: list[Any] = []
        reasons: list[str | None] = []
        add = values.append
        for row, body in enumerate(bodies.to_pylist()):
            try:
                add(parse(body) if body else _refuse_nothing(body))
            except PayloadError as problem:
                add(None)
                _note(reasons, row, str(problem))
        column = self._column(values, reasons)
        reasons.extend([None] * (len(values) - len(reasons)))
        return column, pa.array(reasons, pa.string())

    def _column(self, values: list[Any], reasons: list[str | None]) -> pa.StructArray:
        """Convert all rows at once; if that fails, find the rows whose values do not fit."""
        try:
            return self._array(values)
        except _NO_FIT:
            self._refuse_misfits(values, 0, len(values), reasons)
            return self._array(values)

    def _refuse_misfits(
        self, values: list[Any], low: int, high: int, reasons: list[str | None]
    ) -> None:
        """Replace the rows that do not fit by null: halve the range until one row is left."""
        try:
            self._array(values[low:high])
        except _NO_FIT as problem:
            if high - low == 1:
                values[low] = None
                _note(reasons, low, f"value does not fit its type: {problem}")
                return
            middle = (low + high) // 2
            self._refuse_misfits(values, low, middle, reasons)
            self._refuse_misfits(values, middle, high, reasons)

    def _array(self, values: Sequence[Any]) -> pa.StructArray:
        return _array(values, self.kind, self._format)


_NO_FIT = (pa.ArrowException, ArithmeticError, TypeError, ValueError)


def _refuse_nothing(body: bytes | None) -> Any:
    raise PayloadError("there is no body" if body is None else "the body is empty")


def _note(reasons: list[str | None], row: int, reason: str) -> None:
    reasons.extend([None] * (row + 1 - len(reasons)))
    reasons[row] = reason[:REASON_CHARS]


def _array(values: Sequence[Any], kind: pa.DataType, format: Format) -> pa.Array:
    """Return values as an Arrow array, nested types through their children."""
    if pa.types.is_struct(kind):
        return _structs(values, kind, format)
    if pa.types.is_list(kind):
        ends, parts = _flattened(values)
        return pa.ListArray.from_arrays(ends, _array(parts, kind.value_type, format), type=kind)
    if pa.types.is_map(kind):
        ends, pairs = _flattened([None if each is None else each.items() for each in values])
        names = _array([name for name, _ in pairs], kind.key_type, format)
        items = _array([item for _, item in pairs], kind.item_type, format)
        return pa.MapArray.from_arrays(ends, names, items, type=kind)
    return pa.array(values, kind)


def _structs(values: Sequence[Any], kind: pa.StructType, format: Format) -> pa.StructArray:
    present = [each for each in values if each is not None]
    children = []
    for index in range(kind.num_fields):
        get = format.getter(kind, index)
        if len(present) == len(values):
            found = list(map(get, values))
        else:
            found = [None if each is None else get(each) for each in values]
        children.append(_array(found, kind.field(index).type, format))
    mask = None
    if len(present) < len(values):
        mask = pa.array([each is None for each in values], pa.bool_())
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def _flattened(values: Sequence[Any]) -> tuple[pa.Array, list[Any]]:
    """Return where each list begins, null for no list, and the elements of all lists."""
    ends: list[int | None] = []
    parts: list[Any] = []
    for each in values:
        ends.append(None if each is None else len(parts))
        if each is not None:
            parts.extend(each)
    ends.append(len(parts))
    return pa.array(ends, pa.int32()), parts
