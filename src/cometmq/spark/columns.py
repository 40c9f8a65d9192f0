# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""Records to columns: the buffers of Arrow arrays, straight from the bytes of a log or an answer.

    buffers of numbers := nothing values
    buffers of text    := validity|nothing offsets:i32[rows + 1] bytes
    buffers of a map   := nothing offsets:i32[rows + 1] text-of-names text-of-values

Times are microseconds. Broken UTF-8 becomes replacement characters, an empty property counts as
not there, of equal names the last one wins: as in `cometmq.protocol`. Compiled, a first walk over
the records notes where everything is, then buffers of exactly the right sizes are filled;
interpreted, `cometmq.spark.plain_columns` does the work.

Source: ours; the formats are those of `cometmq.protocol.record` and of Arrow's columnar layout.
"""

# Names and pointers of the `.pxd` file, which only the compiler knows.
# ruff: noqa: F821
# mypy: disable-error-code="name-defined, no-any-return"

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cometmq.protocol.record import LOG_OFFSET_AT, QUEUE_OFFSET_AT
from cometmq.spark import record_rows
from cometmq.spark.plain_columns import TIME_MS_MAX, Buffers, Ending, PlainColumns
from cometmq.spark.record_rows import KEYS, TAGS, TEXTS, RecordRows

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import (  # type: ignore
        PyByteArray_AS_STRING,
        PyByteArray_FromStringAndSize,
    )
    from cython.cimports.libc.string import memcpy, memset  # type: ignore

__all__ = ["Buffers", "Ending", "RecordColumns"]

_RECORD, _STORE_TIME, _BODY = range(3)
_I32S = {
    "queue_id": (_RECORD, 12),
    "flag": (_RECORD, 16),
    "body_crc": (_RECORD, 8),
    "store_size": (_RECORD, 0),
    "reconsume_times": (_BODY, -16),
}
"""Where the number of a column is: so far behind the record's start, its store time, its body."""
_I64S = {
    "queue_offset": (_RECORD, QUEUE_OFFSET_AT),
    "phy_offset": (_RECORD, LOG_OFFSET_AT),
    "prepared_offset": (_BODY, -12),
}
_TIMES = {"born_timestamp": (_RECORD, 40), "store_timestamp": (_STORE_TIME, 0)}
_HEX = bytes(range(256)).hex().upper().encode()

# C numbers once compiled.
_AT_STORE_TIME, _AT_BODY = _STORE_TIME, _BODY
_LOG_OFFSET_AT, _TIME_MS_MAX = LOG_OFFSET_AT, TIME_MS_MAX
_TAGS, _KEYS = TAGS, KEYS


class RecordColumns:
    """Takes records out of bytes and keeps the wanted columns of them.

    Args:
        wanted: names of columns, as `cometmq.spark.schema` has them; others are passed over.
        decompress: give bodies as their senders had them, and clear that bit of ``sys_flag``.
        crc: also check the checksum of every body that is taken.
        permissive: take records with a wrong checksum or a body that cannot be decompressed, with
            ``record_valid`` false, instead of ending there.
    """

    def __init__(
        self,
        wanted: Iterable[str],
        *,
        decompress: bool = True,
        crc: bool = False,
        permissive: bool = False,
    ) -> None:
        self.wanted: frozenset[str] = frozenset(wanted)
        self.buffers: dict[str, Buffers] = {}
        self.problem: str | None = None
        self._plain: PlainColumns | None = None
        self._found: Any = None
        if cython.compiled:
            self._found = RecordRows(
                self.wanted, decompress=decompress, crc=crc, permissive=permissive
            )
        else:
            self._plain = PlainColumns(
                self.wanted, decompress=decompress, crc=crc, permissive=permissive
            )

    def take(
        self,
        data: Any,
        position: int,
        stop: int,
        max_rows: int,
        max_bytes: int,
        topics: frozenset[bytes] | None = None,
        first_offset: int = -1,
        end_offset: int = -1,
        log_base: int = -1,
    ) -> tuple[int, int, Ending]:
        """Decode what fits into one batch; its columns are then in ``buffers``.

        Args:
            data: any buffer; a record may reach behind ``stop``, but not behind the data.
            position: where the first record begins.
            stop: records that begin here or later are not taken.
            max_rows: rows to take at most; at least 1.
            max_bytes: bytes of the columns at most; one row is taken even if it has more.
            topics: only take these, as UTF-8.
            first_offset: only take records with this queue offset or a higher one; below 0 for all.
            end_offset: only take records with a lower queue offset; below 0 for all.
            log_base: the log offset of the data's first byte, if every record is to be where it
                says it is; below 0 otherwise.

        Returns:
            How many rows there are, where to go on, and why it ended: at BAD, ``problem`` says
            what is wrong there.
        """
        if position < 0 or max_rows < 1:
            raise ValueError(f"met position {position} and {max_rows} rows, expected 0 and 1 or up")
        self.buffers = {}  # whoever needs the last ones has them
        if cython.compiled:
            found = self._found
            taken = found.walk(
                data, data, position, stop, max_rows, max_bytes, topics, first_offset, end_offset,
                log_base,
            )  # fmt: skip
            self.problem, self.buffers = found.problem, self._filled(taken[0])
            found.forget()
            return taken
        plain = self._plain
        assert plain is not None
        taken = plain.take(
            data, position, stop, max_rows, max_bytes, topics, first_offset, end_offset, log_base
        )
        self.buffers, self.problem = plain.buffers, plain.problem
        return taken

    # From here on, everything runs compiled only.

    def _filled(self, rows: int) -> dict[str, Buffers]:
        """Return the buffers of the first so many rows."""
        found: dict[str, Buffers] = {}
        for name in self.wanted:
            if name in _I32S:
                found[name] = (None, self._i32s(rows, _I32S[name]))
            elif name in _I64S:
                found[name] = (None, self._i64s(rows, _I64S[name]))
            elif name in _TIMES:
                found[name] = (None, self._times(rows, _TIMES[name]))
            elif name in TEXTS:
                found[name] = self._texts(rows, TEXTS[name])
        if "sys_flag" in self.wanted:
            found["sys_flag"] = (None, self._sys_flags(rows))
        if "record_valid" in self.wanted:
            found["record_valid"] = (None, self._valid_bits(rows))
        if "offset_msg_id" in self.wanted:
            found["offset_msg_id"] = self._offset_ids(rows)
        if "properties" in self.wanted:
            found["properties"] = self._maps(rows)
        return found

    def _i32s(self, rows: int, place: tuple[int, int]) -> bytearray:
        base, delta = place
        made = PyByteArray_FromStringAndSize(cython.NULL, rows * 4)
        out = cython.cast(cython.p_int, PyByteArray_AS_STRING(made))
        for number in range(rows):
            out[number] = i32_at(_place(cython.address(self._found.rows[number]), base) + delta)
        return made

    def _i64s(self, rows: int, place: tuple[int, int]) -> bytearray:
        base, delta = place
        made = PyByteArray_FromStringAndSize(cython.NULL, rows * 8)
        out = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(made))
        for number in range(rows):
            out[number] = i64_at(_place(cython.address(self._found.rows[number]), base) + delta)
        return made

    def _times(self, rows: int, place: tuple[int, int]) -> bytearray:
        made = self._i64s(rows, place)
        out = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(made))
        for number in range(rows):
            out[number] = min(max(out[number], -_TIME_MS_MAX), _TIME_MS_MAX) * 1000
        return made

    def _sys_flags(self, rows: int) -> bytearray:
        made = PyByteArray_FromStringAndSize(cython.NULL, rows * 4)
        out = cython.cast(cython.p_int, PyByteArray_AS_STRING(made))
        for number in range(rows):
            out[number] = self._found.rows[number].sys_flag
        return made

    def _valid_bits(self, rows: int) -> bytearray:
        made = _no_bits(rows)
        out = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(made))
        for number in range(rows):
            out[number >> 3] |= self._found.rows[number].valid << (number & 7)
        return made

    def _texts(self, rows: int, kind: int) -> Buffers:
        offsets = PyByteArray_FromStringAndSize(cython.NULL, (rows + 1) * 4)
        ends = cython.cast(cython.p_int, PyByteArray_AS_STRING(offsets))
        ends[0] = 0
        for number in range(rows):
            ends[number + 1] = ends[number] + max(self._found.rows[number].text_bytes[kind], 0)
        text = PyByteArray_FromStringAndSize(cython.NULL, ends[rows])
        out = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(text))
        for number in range(rows):
            length = ends[number + 1] - ends[number]
            memcpy(out + ends[number], self._found.rows[number].texts[kind], length)
        validity = self._text_bits(rows, kind) if kind in (_TAGS, _KEYS) else None
        return validity, offsets, text

    def _text_bits(self, rows: int, kind: int) -> bytearray:
        made = _no_bits(rows)
        out = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(made))
        for number in range(rows):
            if self._found.rows[number].text_bytes[kind] >= 0:
                out[number >> 3] |= 1 << (number & 7)
        return made

    def _offset_ids(self, rows: int) -> Buffers:
        offsets = PyByteArray_FromStringAndSize(cython.NULL, (rows + 1) * 4)
        ends = cython.cast(cython.p_int, PyByteArray_AS_STRING(offsets))
        ends[0] = 0
        for number in range(rows):
            host_bytes = record_rows.store_host_bytes(cython.address(self._found.rows[number]))
            ends[number + 1] = ends[number] + 2 * (host_bytes + 8)
        text = PyByteArray_FromStringAndSize(cython.NULL, ends[rows])
        out = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(text))
        for number in range(rows):
            row = cython.address(self._found.rows[number])
            host_bytes = record_rows.store_host_bytes(row)
            host = row.record + row.store_at + 8
            _put_hex(out + ends[number], host, host_bytes)
            _put_hex(out + ends[number] + 2 * host_bytes, row.record + _LOG_OFFSET_AT, 8)
        return None, offsets, text

    def _maps(self, rows: int) -> Buffers:
        offsets = PyByteArray_FromStringAndSize(cython.NULL, (rows + 1) * 4)
        ends = cython.cast(cython.p_int, PyByteArray_AS_STRING(offsets))
        ends[0] = 0
        for number in range(rows):
            ends[number + 1] = ends[number] + self._found.rows[number].entries
        return None, offsets, *self._entry_texts(False), *self._entry_texts(True)

    def _entry_texts(self, values: bool) -> tuple[bytearray, bytearray]:
        count = self._found.entry_count
        offsets = PyByteArray_FromStringAndSize(cython.NULL, (count + 1) * 4)
        ends = cython.cast(cython.p_int, PyByteArray_AS_STRING(offsets))
        ends[0] = 0
        for number in range(count):
            entry = cython.address(self._found.entries[number])
            ends[number + 1] = ends[number] + (entry.value_bytes if values else entry.name_bytes)
        text = PyByteArray_FromStringAndSize(cython.NULL, ends[count])
        out = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(text))
        for number in range(count):
            entry = cython.address(self._found.entries[number])
            source = entry.value if values else entry.name
            memcpy(out + ends[number], source, ends[number + 1] - ends[number])
        return offsets, text


def _place(row: Any, base: int) -> Any:
    """Return the address of one of the places from which numbers are found."""
    if base == _AT_STORE_TIME:
        return row.record + row.store_at
    return row.record + row.head if base == _AT_BODY else row.record


def _no_bits(rows: int) -> bytearray:
    made = PyByteArray_FromStringAndSize(cython.NULL, (rows + 7) >> 3)
    memset(PyByteArray_AS_STRING(made), 0, (rows + 7) >> 3)
    return made


def _put_hex(out: Any, memory: Any, length: int) -> None:
    digits = cython.cast(cython.p_uchar, _HEX)
    for at in range(length):
        out[2 * at] = digits[2 * memory[at]]
        out[2 * at + 1] = digits[2 * memory[at] + 1]
