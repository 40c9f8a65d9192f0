"""Converts columns to Arrow record batches of a requested schema, bounded by rows and by bytes."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Any, NamedTuple

import pyarrow as pa

from cometmq.model.errors import CometError
from cometmq.protocol.batch import MESSAGES_MAX
from cometmq.protocol.record import RecordError, body_crc, split_record
from cometmq.protocol.wrapped_batch import unwrapped_records
from cometmq.spark.columns import Ending, RecordColumns
from cometmq.spark.endings import crc_problem
from cometmq.spark.errors import BadRecordError
from cometmq.spark.record_rows import BATCH_BYTES_MAX
from cometmq.spark.schema import Column, arrow_schema

ROWS_MAX = 10_000
BYTES_MAX = 16 << 20
_I32 = Struct(">i")

Buffers = tuple[Any, ...]


class Decoded(NamedTuple):
    """What one call of `RecordDecoder.batch` made."""

    batch: pa.RecordBatch
    """Perhaps without rows."""
    position: int
    """Where to go on; at the end, where that is which ended it."""
    ending: Ending
    problem: str | None
    """What is wrong, if the ending is BAD."""


class RecordDecoder:
    """Turns records that stand back to back into Arrow batches.

    Args:
        columns: the columns of the batches, in their order.
        broker_name: what stands in ``broker_name``; None for null.
        decompress: give bodies as their senders had them, and clear that bit of ``sys_flag``.
        crc: check the checksum of every body that is taken.
        permissive: take records with a wrong checksum or a body that cannot be decompressed, with
            ``record_valid`` false, instead of ending there.
        max_rows: rows of a batch at most; at least 1.
        max_bytes: bytes of a batch's columns at most; a single row may have more.

    A batch of RocketMQ that is one record becomes a row for each of its messages, in a record batch
    of their own without these limits.

    Example: ``RecordDecoder(CORE, broker_name="broker-a").batches(answer, 0, len(answer))``
    """

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        broker_name: str | None,
        decompress: bool = True,
        crc: bool = False,
        permissive: bool = False,
        max_rows: int = ROWS_MAX,
        max_bytes: int = BYTES_MAX,
    ) -> None:
        self.schema = arrow_schema(columns)
        self._columns = tuple(columns)
        self._broker_name = broker_name
        self._names = pa.nulls(0, pa.string())
        self._records = RecordColumns(
            [column.name for column in columns],
            decompress=decompress,
            crc=crc,
            permissive=permissive,
            max_rows=max_rows,
            max_bytes=max_bytes,
        )
        self._crc = crc
        self._of_batch = RecordColumns(
            [column.name for column in columns],
            decompress=False,
            max_rows=MESSAGES_MAX,
            max_bytes=BATCH_BYTES_MAX,
        )
        """Takes all messages of a batch that is one record: its body is bounded."""

    def batch(
        self,
        data: Any,
        position: int,
        stop: int,
        *,
        topics: frozenset[bytes] | None = None,
        first_offset: int = -1,
        end_offset: int = -1,
        log_base: int = -1,
    ) -> Decoded:
        """Decode one batch.

        Args:
            data: any buffer; a record may reach behind ``stop``, but not behind the data.
            position: where the first record begins.
            stop: records that begin here or later are not taken.
            topics: only take these, as UTF-8.
            first_offset: only take records with this queue offset or a higher one; below 0 for all.
            end_offset: only take records with a lower queue offset; below 0 for all.
            log_base: the log offset of the data's first byte, if every record is to be where it
                says it is; below 0 otherwise.
        """
        records = self._records
        rows, position, ending = records.take(
            data, position, stop, topics, first_offset, end_offset, log_base
        )
        if ending is Ending.WRAPPED:
            if rows == 0:
                return self._unwrapped(data, position, topics, first_offset, end_offset)
            ending = Ending.FULL
        return Decoded(self._batch(records, rows), position, ending, records.problem)

    def _unwrapped(
        self,
        data: Any,
        position: int,
        topics: frozenset[bytes] | None,
        first_offset: int,
        end_offset: int,
    ) -> Decoded:
        """Decode the messages of a batch that is one record; the batch has a row for each."""
        (size,) = _I32.unpack_from(data, position)
        records = self._of_batch
        try:
            each = self._checked(bytes(data[position : position + size]))
        except CometError as problem:
            none = self._batch(self._records, 0)  # which has taken no row, either
            return Decoded(none, position, Ending.BAD, str(problem))
        rows, _, ending = records.take(each, 0, len(each), topics, first_offset, end_offset)
        batch = self._batch(records, rows)
        if "store_size" in batch.schema.names:
            at = batch.schema.get_field_index("store_size")
            batch = batch.set_column(at, self.schema.field(at), pa.array([size] * rows, pa.int32()))
        if ending is Ending.BAD:
            return Decoded(batch, position, ending, records.problem)
        return Decoded(batch, position + size, Ending.FULL, None)

    def _checked(self, record: bytes) -> bytes:
        """Return the messages of a batch as records, if its checksum is right."""
        parts = split_record(record)
        if self._crc and (met := body_crc(parts.body)) != parts.body_crc:
            raise RecordError(crc_problem(met, parts.body_crc))
        return unwrapped_records(record)

    def _batch(self, records: RecordColumns, rows: int) -> pa.RecordBatch:
        """Return the rows that were taken last."""
        arrays = [self._array(column, rows, records.buffers) for column in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def batches(
        self, data: Any, position: int, stop: int, **taken: Any
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches up to the end, those without rows left out.

        It also ends, without an error, at a blank, at zeros and at a record that is cut short.

        Args:
            data, position, stop: as `batch` has them.
            taken: the arguments of `batch` that choose records.

        Raises:
            BadRecordError: what stands somewhere is no record; all rows before it were yielded.
        """
        ending = Ending.FULL
        while ending is Ending.FULL:
            batch, position, ending, problem = self.batch(data, position, stop, **taken)
            if batch.num_rows:
                yield batch
            if ending is Ending.BAD:
                raise BadRecordError(f"at byte {position}: {problem}")

    def _array(self, column: Column, rows: int, buffers: dict[str, Buffers]) -> pa.Array:
        if column.name == "broker_name":
            return self._broker_names(rows)
        make: Callable[..., pa.Array] = _map if column.name == "properties" else _plain
        return make(column.type, rows, buffers[column.name])

    def _broker_names(self, rows: int) -> pa.Array:
        """Return the same name so many times; `pyarrow.scalar` would load pandas for it."""
        if self._broker_name is None:
            return pa.nulls(rows, pa.string())
        if rows > len(self._names):
            name = self._broker_name.encode()
            ends = array("i", [len(name) * row for row in range(rows + 1)])
            self._names = _plain(pa.string(), rows, (None, ends.tobytes(), name * rows))
        return self._names.slice(0, rows)


def _plain(kind: pa.DataType, rows: int, buffers: Buffers) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [_buffer(part) for part in buffers])


def _map(kind: pa.MapType, rows: int, buffers: Buffers) -> pa.Array:
    _, offsets, *texts = buffers
    entries = len(texts[0]) // 4 - 1
    names = _plain(kind.key_type, entries, (None, *texts[:2]))
    values = _plain(kind.item_type, entries, (None, *texts[2:]))
    pairs = pa.StructArray.from_arrays([names, values], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, rows, [None, _buffer(offsets)], children=[pairs])


def _buffer(part: bytearray | None) -> pa.Buffer | None:
    return None if part is None else pa.py_buffer(part)
