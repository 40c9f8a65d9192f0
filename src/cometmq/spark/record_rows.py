# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""Where everything is in records that stand back to back: the compiled build's first walk.

Nothing is copied, but for what the record does not say as it is wanted: bodies that were
decompressed, texts with broken UTF-8, properties of which two have one name, names of hosts.
It runs compiled only. Source: ours; the format is that of `cometmq.protocol.record`.
"""

# Names and pointers of the `.pxd` file, which only the compiler knows.
# ruff: noqa: F821
# mypy: disable-error-code="name-defined, attr-defined, no-any-return"

from __future__ import annotations

from typing import Any

from cometmq.model.flags import SysFlag
from cometmq.protocol import checksum, lazy_record, octets, properties
from cometmq.protocol.compression import CompressionError, decompress_body
from cometmq.protocol.message_id import encode_offset_id
from cometmq.protocol.properties import decode_properties, encode_properties
from cometmq.protocol.record import (
    CRC_MASK,
    LOG_OFFSET_AT,
    MAGIC_V2,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
    host_text,
)
from cometmq.spark.plain_columns import (
    BATCH_BYTES_MAX,
    OF_PROPERTIES,
    Ending,
    crc_problem,
    explain,
    place_problem,
    row_bytes,
)

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import (  # type: ignore
        PyByteArray_AS_STRING,
        PyByteArray_Resize,
    )
    from cython.cimports.libc.string import memchr, memcmp, memcpy  # type: ignore

TOPIC, BODY, TAGS, KEYS, ID, BORN_HOST, STORE_HOST = range(7)
TEXTS = {
    "topic": TOPIC,
    "body": BODY,
    "tags": TAGS,
    "keys": KEYS,
    "msg_id": ID,
    "born_host": BORN_HOST,
    "store_host": STORE_HOST,
}
"""Texts of a row, by the names of their columns."""

# C numbers once compiled.
_TOPIC, _BODY, _TAGS, _KEYS, _ID, _BORN, _STORE, _KINDS = range(8)
_COMPRESSED, _BORN_V6, _STORE_V6 = SysFlag.COMPRESSED, SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6
_CRC_BITS, _V2, _BATCH_BYTES_MAX = CRC_MASK, MAGIC_V2, BATCH_BYTES_MAX
_QUEUE_OFFSET_AT, _LOG_OFFSET_AT, _SYS_FLAG_AT = QUEUE_OFFSET_AT, LOG_OFFSET_AT, SYS_FLAG_AT
_MAGIC_AT, _CRC_AT, _BORN_HOST_AT = 4, 8, 48
_COMPARED_MAX = 64
"""Names of properties are compared with each other up to this many."""


class RecordRows:
    """Where the parts of each taken record are.

    Args:
        wanted: names of columns; only what they need is looked for.
        decompress, crc, permissive: as `cometmq.spark.columns.RecordColumns` has them.
    """

    def __init__(
        self, wanted: frozenset[str], *, decompress: bool, crc: bool, permissive: bool
    ) -> None:
        if not cython.compiled:
            raise NotImplementedError("records are only walked over like this when compiled")
        self.problem: str | None = None
        self._decompress = decompress
        self._crc = crc
        self._permissive = permissive
        for name, kind in TEXTS.items():
            self._wants[kind] = name in wanted
        self._wants_properties = not OF_PROPERTIES.isdisjoint(wanted)
        self._wants_map = "properties" in wanted
        self._wants_offset_id = "offset_msg_id" in wanted
        self._row_bytes = row_bytes(wanted)
        self._row_space = bytearray()
        self._entry_space = bytearray()

    def walk(
        self,
        source: Any,
        data: Any,
        position: int,
        stop: int,
        max_rows: int,
        max_bytes: int,
        topics: Any,
        first_offset: int,
        end_offset: int,
        log_base: int,
    ) -> tuple[int, int, Ending]:
        """Walk over records as `RecordColumns.take` says; ``source`` is what ``data`` views."""
        self.problem = None
        self._kept: list[bytes] = []
        self._hosts: dict[bytes, bytes] = {}
        max_bytes = min(max_bytes, _BATCH_BYTES_MAX)
        wanted = None if topics is None else tuple(topics)
        limit = data.shape[0]
        stop = min(stop, limit)
        rows = used = 0
        self.entry_count = 0
        ending = Ending.END
        while position < stop:
            memory = cython.address(data[position])
            size = lazy_record.whole_size(memory, 0, limit - position)
            if size == 0:
                ending, self.problem = explain(source, position)
                break
            log_offset = i64_at(memory + _LOG_OFFSET_AT)
            if log_base >= 0 and log_offset != log_base + position:
                ending, self.problem = Ending.BAD, place_problem(position, log_offset, log_base)
                break
            queue_offset = i64_at(memory + _QUEUE_OFFSET_AT)
            if not (0 <= end_offset <= queue_offset or queue_offset < first_offset >= 0):
                row = self._row(rows)
                _measure(row, memory, size)
                if wanted is None or _has_topic(row, wanted):
                    if rows == max_rows:
                        ending = Ending.FULL
                        break
                    if not self._open(row, rows):
                        ending = Ending.BAD
                        break
                    cost = self._cost(row)
                    if rows and used + cost > max_bytes:
                        ending = Ending.FULL
                        break
                    used += cost
                    self.entry_count += row.entries
                    rows += 1
            position += size
        return rows, position, ending

    def _row(self, number: int) -> Any:
        """Return the place of a row, and make some if there is none."""
        if (number + 1) * cython.sizeof(Row) > len(self._row_space):
            _enlarge(self._row_space, 64 * cython.sizeof(Row))
            self.rows = cython.cast(
                cython.pointer(Row),
                PyByteArray_AS_STRING(self._row_space),
            )
        return cython.address(self.rows[number])

    def _open(self, row: Any, number: int) -> bool:
        """Find what is wanted of a record; False, with the problem noted, if it is damaged."""
        row.valid = 1
        row.entries = 0
        if self._crc and not self._check_crc(row):
            return False
        is_compressed = row.sys_flag & _COMPRESSED
        if self._decompress and row.valid and is_compressed and not self._inflate(row):
            return False
        if self._wants[_TOPIC] and not _is_ascii(row.texts[_TOPIC], row.text_bytes[_TOPIC]):
            self._replace_text(row, _TOPIC)
        if self._wants_properties:
            self._find_properties(row)
        if self._wants[_BORN]:
            self._find_host(row, number, _BORN)
        if self._wants[_STORE]:
            self._find_host(row, number, _STORE)
        return True

    def _check_crc(self, row: Any) -> bool:
        body_end = row.head + row.text_bytes[_BODY]
        met = checksum.crc_of(row.record, row.head, body_end) & _CRC_BITS
        stored = i32_at(row.record + _CRC_AT)
        if met == stored:
            return True
        row.valid = 0
        if not self._permissive:
            self.problem = crc_problem(met, stored)
        return self._permissive

    def _inflate(self, row: Any) -> bool:
        if self._wants[_BODY]:
            try:
                body = decompress_body(_copy(row.texts[_BODY], row.text_bytes[_BODY]), row.sys_flag)
            except CompressionError as error:
                row.valid = 0
                if not self._permissive:
                    self.problem = str(error)
                return self._permissive
            self._keep(row, _BODY, body)
        row.sys_flag &= ~_COMPRESSED
        return True

    def _keep(self, row: Any, kind: int, text: bytes) -> None:
        """Let a text of a row be one that is not in the data."""
        self._kept.append(text)
        row.texts[kind] = cython.cast(cython.p_uchar, text)
        row.text_bytes[kind] = len(text)

    def _replace_text(self, row: Any, kind: int) -> None:
        met = _copy(row.texts[kind], row.text_bytes[kind])
        self._keep(row, kind, str(met, "utf-8", "replace").encode())

    def _find_properties(self, row: Any) -> None:
        if not _is_ascii(row.properties, row.properties_bytes):
            met = _copy(row.properties, row.properties_bytes)
            self._rewrite_properties(row, str(met, "utf-8", "replace").encode())
        if self._wants_map and not self._list_properties(row, False):
            met = _copy(row.properties, row.properties_bytes)
            self._rewrite_properties(row, encode_properties(decode_properties(met)))
            self._list_properties(row, True)
        if self._wants_map:
            self._find_in_list(row)
        else:
            _find_in_text(row)
        if row.text_bytes[_ID] < 0 and self._wants[_ID]:
            store_host = _copy(row.record + row.store_at + 8, store_host_bytes(row))
            offset_id = encode_offset_id(store_host, i64_at(row.record + _LOG_OFFSET_AT))
            self._keep(row, _ID, offset_id.encode())

    def _rewrite_properties(self, row: Any, text: bytes) -> None:
        self._kept.append(text)
        row.properties = cython.cast(cython.p_uchar, text)
        row.properties_bytes = len(text)

    def _list_properties(self, row: Any, unique: bool) -> bool:
        """Note every property of a row; False if they are too many to see that none is twice."""
        needed = self.entry_count + row.properties_bytes // 3 + 1
        if needed * cython.sizeof(Entry) > len(self._entry_space):
            _enlarge(self._entry_space, needed * cython.sizeof(Entry))
        self.entries = cython.cast(
            cython.pointer(Entry),
            PyByteArray_AS_STRING(self._entry_space),
        )
        first = cython.address(self.entries[self.entry_count])
        row.entries = _list_entries(first, row.properties, row.properties_bytes)
        return unique or _are_unique(first, row.entries)

    def _find_in_list(self, row: Any) -> None:
        """Find the properties that are columns of their own among those that were noted."""
        row.text_bytes[_TAGS] = row.text_bytes[_KEYS] = row.text_bytes[_ID] = -1
        for number in range(row.entries):
            entry = cython.address(self.entries[self.entry_count + number])
            kind = _KINDS
            if entry.name_bytes == 4:
                if not memcmp(entry.name, b"TAGS", 4):
                    kind = _TAGS
                elif not memcmp(entry.name, b"KEYS", 4):
                    kind = _KEYS
            elif entry.name_bytes == 8 and not memcmp(entry.name, b"UNIQ_KEY", 8):
                kind = _ID
            if kind < _KINDS:
                row.texts[kind] = entry.value
                row.text_bytes[kind] = entry.value_bytes

    def _find_host(self, row: Any, number: int, kind: int) -> None:
        """Name a host of a row; mostly it is the one of the row before."""
        length = _host_bytes(row, kind)
        host = row.record + _host_at(row, kind)
        if number:
            before = cython.address(self.rows[number - 1])
            if _host_bytes(before, kind) == length and not memcmp(
                before.record + _host_at(before, kind), host, length
            ):
                row.texts[kind] = before.texts[kind]
                row.text_bytes[kind] = before.text_bytes[kind]
                return
        key = _copy(host, length)
        text = self._hosts.get(key)
        if text is None:
            text = self._hosts[key] = host_text(key).encode()
        row.texts[kind] = cython.cast(cython.p_uchar, text)
        row.text_bytes[kind] = len(text)

    def _cost(self, row: Any) -> int:
        """Return how many bytes a row adds to the columns."""
        cost = self._row_bytes
        for kind in range(_KINDS):
            if self._wants[kind] and row.text_bytes[kind] > 0:
                cost += row.text_bytes[kind]
        if self._wants_offset_id:
            cost += 2 * (store_host_bytes(row) + 8)
        for number in range(row.entries):
            entry = cython.address(self.entries[self.entry_count + number])
            cost += entry.name_bytes + entry.value_bytes
        return cost

    def forget(self) -> None:
        """Let go of texts that were made up; rows are not to be looked at again."""
        self._kept = []
        self._hosts = {}


def _measure(row: Any, record: Any, size: int) -> None:
    """Note where the parts of a record are that is known to be whole."""
    flag = i32_at(record + _SYS_FLAG_AT)
    row.record = record
    row.size = size
    row.sys_flag = flag
    row.store_at = _BORN_HOST_AT + (20 if flag & _BORN_V6 else 8)
    row.head = lazy_record.head_bytes(flag)
    row.texts[_BODY] = record + row.head
    row.text_bytes[_BODY] = i32_at(record + row.head - 4)
    at = row.head + row.text_bytes[_BODY]
    if i32_at(record + _MAGIC_AT) == _V2:
        row.text_bytes[_TOPIC] = octets.i16_in(record, at)
        at += 2
    else:
        row.text_bytes[_TOPIC] = record[at]
        at += 1
    row.texts[_TOPIC] = record + at
    at += row.text_bytes[_TOPIC]
    row.properties = record + at + 2
    row.properties_bytes = octets.i16_in(record, at)


def _find_in_text(row: Any) -> None:
    """Find the properties that are columns of their own."""
    text = row.properties
    tags, tags_end, keys, keys_end, id_at, id_end = properties.spans_of(
        text, 0, row.properties_bytes
    )
    _put_span(row, _TAGS, tags, tags_end)
    _put_span(row, _KEYS, keys, keys_end)
    _put_span(row, _ID, id_at, id_end)


def _put_span(row: Any, kind: int, start: int, end: int) -> None:
    row.texts[kind] = row.properties + start
    row.text_bytes[kind] = end - start if start < end else -1


def store_host_bytes(row: Any) -> int:
    """Return how long the address of the broker is in a record."""
    return _host_bytes(row, _STORE)


def _host_bytes(row: Any, kind: int) -> int:
    return 20 if row.sys_flag & (_STORE_V6 if kind == _STORE else _BORN_V6) else 8


def _host_at(row: Any, kind: int) -> int:
    return row.store_at + 8 if kind == _STORE else _BORN_HOST_AT


def _has_topic(row: Any, topics: tuple[bytes, ...]) -> bool:
    length = row.text_bytes[_TOPIC]
    if not _is_ascii(row.texts[_TOPIC], length):
        return str(_copy(row.texts[_TOPIC], length), "utf-8", "replace").encode() in topics
    for number in range(len(topics)):
        topic = topics[number]
        if len(topic) == length:
            name = cython.cast(cython.p_uchar, topic)
            if not memcmp(name, row.texts[_TOPIC], length):
                return True
    return False


def _copy(memory: Any, length: int) -> bytes:
    return cython.cast(cython.p_char, memory)[:length]


def _is_ascii(memory: Any, length: int) -> bool:
    at = 0
    seen = cython.cast(cython.ulonglong, 0)
    word = cython.cast(cython.ulonglong, 0)
    while at + 8 <= length:
        memcpy(cython.address(word), memory + at, 8)
        seen |= word
        at += 8
    tail = 0
    while at < length:
        tail |= memory[at]
        at += 1
    return not seen & 0x8080808080808080 and not tail & 0x80


def _list_entries(entry: Any, memory: Any, length: int) -> int:
    """Note the properties of a property string, from ``entry`` on; return how many there are."""
    count = 0
    stop = memory + length
    while memory < stop:
        found = memchr(memory, 2, stop - memory)
        end = stop if found == cython.NULL else cython.cast(cython.p_uchar, found)
        found = memchr(memory, 1, end - memory)
        middle = memory if found == cython.NULL else cython.cast(cython.p_uchar, found)
        if memory < middle and middle + 1 < end:
            entry[count].name = memory
            entry[count].name_bytes = middle - memory
            entry[count].value = middle + 1
            entry[count].value_bytes = end - middle - 1
            count += 1
        memory = end + 1
    return count


def _are_unique(entry: Any, count: int) -> bool:
    """Whether no name is there twice; False too if there are too many to compare."""
    if count > _COMPARED_MAX:
        return False
    for later in range(1, count):
        for earlier in range(later):
            if entry[later].name_bytes == entry[earlier].name_bytes and not memcmp(
                entry[later].name, entry[earlier].name, entry[later].name_bytes
            ):
                return False
    return True


def _enlarge(space: bytearray, needed: int) -> None:
    PyByteArray_Resize(space, max(needed, 2 * len(space)))
