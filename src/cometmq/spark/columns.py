# cython: annotation_typing=False, boundscheck=False, wraparound=False
"""Decodes records into columns: the buffers of Arrow arrays, straight from received bytes.

    buffers of numbers := nothing values
    buffers of text    := validity|nothing offsets:i32[rows + 1] bytes
    buffers of a map   := nothing offsets:i32[rows + 1] text-of-names text-of-values

Times are microseconds. Broken UTF-8 becomes replacement characters, an empty property counts as
not there, of equal names the last one wins: as in `cometmq.protocol`. A first walk over the
records (`record_rows`) notes where everything is, then one column after the other is gathered
(`gathering`).

The formats are those of `cometmq.protocol.record` and of Arrow's columnar layout.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cometmq.protocol import octets
from cometmq.protocol.record import LOG_OFFSET_AT, QUEUE_OFFSET_AT
from cometmq.spark import gathering
from cometmq.spark.endings import Ending
from cometmq.spark.record_rows import TEXTS, RecordRows

__all__ = ["Buffers", "Ending", "RecordColumns"]

Buffers = tuple[bytearray | None, ...]

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
_NULLABLE = frozenset({"tags", "keys"})
_KINDS = len(TEXTS)


class RecordColumns:
    """Takes records out of bytes and keeps the wanted columns of them.

    Args:
        wanted: names of columns, as `cometmq.spark.schema` has them; others are passed over.
        max_rows, how: as `cometmq.spark.batches.RecordDecoder` has them.
    """

    def __init__(self, wanted: Iterable[str], *, max_rows: int, **how: Any) -> None:
        if max_rows < 1:
            raise ValueError(f"met at most {max_rows} rows, expected 1 or up")
        self.wanted: frozenset[str] = frozenset(wanted)
        self.buffers: dict[str, Buffers] = {}
        self.problem: str | None = None
        self._rows = RecordRows(self.wanted, _row_bytes(self.wanted), max_rows=max_rows, **how)

    def take(
        self,
        data: Any,
        position: int,
        stop: int,
        topics: frozenset[bytes] | None = None,
        first_offset: int = -1,
        end_offset: int = -1,
        log_base: int = -1,
    ) -> tuple[int, int, Ending]:
        """Decode what fits into one batch; its columns are then in ``buffers``.

        The arguments are those of `cometmq.spark.batches.RecordDecoder.batch`.

        Returns:
            How many rows there are, where to go on, and why it ended: at BAD, ``problem`` says
            what is wrong there.
        """
        if position < 0:
            raise ValueError(f"met position {position}, expected 0 or up")
        self.buffers = {}  # whoever needs the last ones has them
        taken = self._rows.walk(data, position, stop, topics, first_offset, end_offset, log_base)
        self.problem = self._rows.problem
        self.buffers = self._gathered(octets.memory_of(data), taken[0])
        return taken

    def _gathered(self, memory: Any, count: int) -> dict[str, Buffers]:
        """Return the buffers of the first so many rows."""
        rows = self._rows
        found: dict[str, Buffers] = {}
        for name in self.wanted:
            if name in _I32S:
                base, delta = _I32S[name]
                places = rows.heads if base == _BODY else rows.records
                found[name] = (None, gathering.i32s(memory, places, count, delta))
            elif name in _I64S:
                base, delta = _I64S[name]
                places = rows.heads if base == _BODY else rows.records
                found[name] = (None, gathering.i64s(memory, places, count, delta))
            elif name in _TIMES:
                base, delta = _TIMES[name]
                places = rows.stores if base == _STORE_TIME else rows.records
                found[name] = (None, gathering.times(memory, places, count, delta))
            elif name in TEXTS:
                found[name] = self._text(memory, count, TEXTS[name], name in _NULLABLE)
        if "sys_flag" in self.wanted:
            found["sys_flag"] = (None, gathering.numbers(rows.flags, count))
        if "record_valid" in self.wanted:
            found["record_valid"] = (None, gathering.bits(rows.faults, count, 0, 1))
        if "offset_msg_id" in self.wanted:
            ids = gathering.offset_ids(memory, rows.stores, rows.records, rows.host_sizes, count)
            found["offset_msg_id"] = (None, *ids)
        if "properties" in self.wanted:
            found["properties"] = self._map(memory, count)
        return found

    def _text(self, memory: Any, count: int, kind: int, nullable: bool) -> Buffers:
        rows = self._rows
        validity = gathering.bits(rows.sizes, count, kind, _KINDS) if nullable else None
        ends = gathering.offsets(rows.sizes, count, kind, _KINDS)
        text = gathering.texts(memory, rows.extra, rows.starts, rows.sizes, count, kind, _KINDS)
        return validity, ends, text

    def _map(self, memory: Any, count: int) -> Buffers:
        rows, every = self._rows, self._rows.entry_count
        return (
            None,
            gathering.offsets(rows.entries, count, 0, 1),
            gathering.offsets(rows.name_sizes, every, 0, 1),
            gathering.texts(memory, rows.extra, rows.name_starts, rows.name_sizes, every, 0, 1),
            gathering.offsets(rows.value_sizes, every, 0, 1),
            gathering.texts(memory, rows.extra, rows.value_starts, rows.value_sizes, every, 0, 1),
        )


def _row_bytes(wanted: frozenset[str]) -> int:
    """Return what a row takes besides the bytes of its texts: numbers, and where texts end."""
    ends = {*TEXTS, "offset_msg_id", "properties"}
    return 4 * len(wanted & (_I32S.keys() | ends | {"sys_flag"})) + 8 * len(
        wanted & (_I64S.keys() | _TIMES.keys())
    )
