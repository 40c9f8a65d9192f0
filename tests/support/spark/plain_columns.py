"""Records to columns by way of Python objects, one record after the other.

It says what `cometmq.spark.columns` has to make of records: the very same bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, chain, repeat
from typing import Any

from cometmq.model.flags import SysFlag
from cometmq.protocol.compression import CompressionError, decompress_body
from cometmq.protocol.message_id import encode_offset_id
from cometmq.protocol.properties import decode_properties
from cometmq.protocol.record import (
    RecordError,
    RecordParts,
    body_crc,
    host_text,
    split_record,
)
from cometmq.spark.endings import Ending, crc_problem, ending_at, place_problem

BATCH_BYTES_MAX = 1 << 30
"""No batch holds more than this and one row, lest the offsets of a text overflow."""
TIME_MS_MAX = (2**63 - 1) // 1000
"""Times further away, which only damage brings about, count as this one."""

Buffers = tuple[bytearray | None, ...]

_COMPRESSED = int(SysFlag.COMPRESSED)


class PlainColumns:
    """Takes records out of bytes and keeps the wanted columns of them.

    The arguments are those of `cometmq.spark.columns.RecordColumns`.
    """

    def __init__(
        self,
        wanted: Iterable[str],
        *,
        decompress: bool = True,
        crc: bool = False,
        permissive: bool = False,
        max_rows: int,
        max_bytes: int,
    ) -> None:
        self.wanted = frozenset(wanted)
        self.buffers: dict[str, Buffers] = {}
        self.problem: str | None = None
        self._decompress = decompress
        self._crc = crc
        self._permissive = permissive
        self._max_rows = max_rows
        self._max_bytes = min(max_bytes, BATCH_BYTES_MAX)

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
        """Decode what fits into one batch, as `cometmq.spark.columns.RecordColumns.take` does."""
        self.problem = None
        self.buffers = {}  # whoever needs the last ones has them
        stop = min(stop, len(data))
        max_rows, max_bytes = self._max_rows, self._max_bytes
        plain = _Rows(self.wanted)
        ending = Ending.END
        chooses = topics is not None or first_offset >= 0 or end_offset >= 0
        while position < stop:
            try:
                parts = split_record(data, position)
                if log_base >= 0 and parts.log_offset != log_base + position:
                    raise RecordError(place_problem(position, parts.log_offset, log_base))
                if chooses and not _is_chosen(parts, topics, first_offset, end_offset):
                    position += parts.size_bytes
                    continue
                if plain.rows == max_rows:
                    ending = Ending.FULL
                    break
                is_valid = True
                if self._crc or parts.sys_flag & _COMPRESSED:
                    parts, is_valid = self._opened(parts)
                if not plain.add(parts, is_valid, max_bytes):
                    ending = Ending.FULL
                    break
            except RecordError as error:
                ending, self.problem = ending_at(data, position, error)
                break
            position += parts.size_bytes
        self.buffers = plain.buffers()
        return plain.rows, position, ending

    def _opened(self, parts: RecordParts) -> tuple[RecordParts, bool]:
        """Return the record with its body as it is wanted, and whether it is valid."""
        if self._crc and body_crc(parts.body) != parts.body_crc:
            if not self._permissive:
                raise RecordError(crc_problem(body_crc(parts.body), parts.body_crc))
            return parts, False
        if not self._decompress or not parts.sys_flag & _COMPRESSED:
            return parts, True
        try:
            body = parts.body
            if "body" in self.wanted:
                body = decompress_body(body, parts.sys_flag)
        except CompressionError as error:
            if not self._permissive:
                raise RecordError(str(error)) from None
            return parts, False
        return parts._replace(body=body, sys_flag=parts.sys_flag & ~_COMPRESSED), True


def _is_chosen(
    parts: RecordParts, topics: frozenset[bytes] | None, first_offset: int, end_offset: int
) -> bool:
    if 0 <= end_offset <= parts.queue_offset or parts.queue_offset < first_offset >= 0:
        return False
    return topics is None or parts.topic.encode() in topics


NUMBERS: dict[str, tuple[str, str]] = {
    "queue_id": ("i", "queue_id"),
    "queue_offset": ("q", "queue_offset"),
    "reconsume_times": ("i", "reconsume_times"),
    "sys_flag": ("i", "sys_flag"),
    "flag": ("i", "flag"),
    "body_crc": ("i", "body_crc"),
    "phy_offset": ("q", "log_offset"),
    "store_size": ("i", "size_bytes"),
    "prepared_offset": ("q", "prepared_offset"),
}
"""Columns that are a number of the record: their type, and what the record calls them."""
TIMES = {"born_timestamp": "born_time_ms", "store_timestamp": "store_time_ms"}
OF_PROPERTIES = frozenset({"msg_id", "tags", "keys", "properties"})


class _Rows:
    """The rows of a batch as Python objects, which become buffers in the end."""

    def __init__(self, wanted: frozenset[str]) -> None:
        self.rows = 0
        self._wanted = wanted
        self._wants_body = "body" in wanted
        self._wants_map = "properties" in wanted
        self._reads_properties = not OF_PROPERTIES.isdisjoint(wanted)
        self._names = [name for name in _TEXTS if name in wanted]
        self._makers = [_TEXTS[name] for name in self._names]
        self._texts: list[tuple[str | None, ...]] = []
        self._parts: list[RecordParts] = []
        self._valid: list[bool] = []
        self._maps: list[dict[str, str]] = []
        self._bytes = 0
        self._fixed_bytes = row_bytes(wanted)

    def add(self, parts: RecordParts, is_valid: bool, max_bytes: int) -> bool:
        """Add a row, unless there are some and it makes them too large."""
        properties = decode_properties(parts.properties) if self._reads_properties else {}
        texts = tuple([make(parts, properties) for make in self._makers])
        is_ascii = parts.properties.isascii() and parts.topic.isascii()
        measure = len if is_ascii else _utf8_bytes
        size = self._fixed_bytes + sum(map(measure, filter(None, texts)))
        if self._wants_body:
            size += len(parts.body)
        if self._wants_map:
            size += sum(map(measure, properties)) + sum(map(measure, properties.values()))
        if self.rows and self._bytes + size > max_bytes:
            return False
        self._parts.append(parts)
        self._valid.append(is_valid)
        self._texts.append(texts)
        if self._wants_map:
            self._maps.append(properties)
        self._bytes += size
        self.rows += 1
        return True

    def buffers(self) -> dict[str, Buffers]:
        """Return the buffers of every wanted column."""
        wanted = self._wanted
        found: dict[str, Buffers] = {}
        numbers = zip(*self._parts, strict=True) if self._parts else repeat(())
        fields = dict(zip(RecordParts._fields, numbers, strict=False))
        for name, (kind, field) in NUMBERS.items():
            if name in wanted:
                found[name] = (None, _packed(kind, fields[field]))
        for name, field in TIMES.items():
            if name in wanted:
                found[name] = (None, _packed("q", _micros(fields[field])))
        columns = zip(*self._texts, strict=True) if self._texts else repeat(())
        for name, texts in zip(self._names, columns, strict=False):
            found[name] = _text_buffers(texts, nullable=name in NULLABLE)
        if "body" in wanted:
            bodies = fields["body"]
            found["body"] = (None, _offsets(map(len, bodies)), bytearray().join(bodies))
        if "record_valid" in wanted:
            found["record_valid"] = (None, _bits(self._valid))
        if "properties" in wanted:
            found["properties"] = _map_buffers(self._maps)
        return found


@lru_cache(maxsize=1024)
def _host_text(host: bytes) -> str:
    return host_text(host)


def _offset_id(parts: RecordParts) -> str:
    return encode_offset_id(parts.store_host, parts.log_offset)


NULLABLE = frozenset({"tags", "keys"})
_TEXTS: dict[str, Callable[[RecordParts, dict[str, str]], str | None]] = {
    "topic": lambda parts, properties: parts.topic,
    "msg_id": lambda parts, properties: properties.get("UNIQ_KEY") or _offset_id(parts),
    "offset_msg_id": lambda parts, properties: _offset_id(parts),
    "tags": lambda parts, properties: properties.get("TAGS"),
    "keys": lambda parts, properties: properties.get("KEYS"),
    "born_host": lambda parts, properties: _host_text(parts.born_host),
    "store_host": lambda parts, properties: _host_text(parts.store_host),
}


def row_bytes(wanted: frozenset[str]) -> int:
    """Return what a row takes besides the bytes of its texts."""
    wide = wanted & (TIMES.keys() | {name for name, (kind, _) in NUMBERS.items() if kind == "q"})
    return (
        4 * len(wanted & (NUMBERS.keys() | _TEXTS.keys() | {"body", "properties"}))
        + 4 * len(wide & NUMBERS.keys())
        + 8 * len(wide & TIMES.keys())
    )


def _utf8_bytes(text: str) -> int:
    return len(text.encode())


def _micros(times_ms: Sequence[int]) -> list[int]:
    if max(map(abs, times_ms), default=0) <= TIME_MS_MAX:
        return [time_ms * 1000 for time_ms in times_ms]
    return [min(max(time_ms, -TIME_MS_MAX), TIME_MS_MAX) * 1000 for time_ms in times_ms]


def _packed(kind: str, numbers: Iterable[int]) -> bytearray:
    return bytearray(array(kind, numbers))


def _bits(values: Sequence[bool]) -> bytearray:
    """Pack truth values into bits, the lowest bit of a byte first."""
    digits = "".join("1" if value else "0" for value in reversed(values))
    return bytearray(int(digits or "0", 2).to_bytes((len(values) + 7) // 8, "little"))


def _text_buffers(values: Sequence[str | None], *, nullable: bool) -> Buffers:
    """Return the buffers of a text column."""
    validity = _bits([value is not None for value in values]) if nullable else None
    texts = [value or "" for value in values]
    joined = "".join(texts)
    measure = len if joined.isascii() else _utf8_bytes
    return validity, _offsets(map(measure, texts)), bytearray(joined.encode())


def _offsets(lengths: Iterable[int]) -> bytearray:
    return _packed("i", accumulate(lengths, initial=0))


def _map_buffers(maps: Sequence[dict[str, str]]) -> Buffers:
    names = _text_buffers(list(chain.from_iterable(maps)), nullable=False)
    values = _text_buffers(list(chain.from_iterable(map(dict.values, maps))), nullable=False)
    return None, _offsets(map(len, maps)), *names[1:], *values[1:]
