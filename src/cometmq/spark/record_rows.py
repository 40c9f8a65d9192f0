# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True
"""Finds the fields of consecutive records: the first pass of the decoder.

Nothing is copied, but for what the record does not say as it is wanted: bodies that were
decompressed, texts with broken UTF-8, properties of which two have one name, names of hosts. Such
texts are put together in ``extra``, and the place of one there is ``-1 - place``.

The format is that of `cometmq.protocol.record`.
"""

from __future__ import annotations

from array import array
from typing import Any

from cometmq.model.flags import SysFlag
from cometmq.protocol import checksum, lazy_record, octets, properties
from cometmq.protocol.compression import CompressionError, decompress_body
from cometmq.protocol.message_id import encode_offset_id
from cometmq.protocol.properties import decode_properties, encode_properties
from cometmq.protocol.record import (
    BODY_CRC_AT,
    BORN_HOST_AT,
    CRC_MASK,
    LOG_OFFSET_AT,
    MAGIC_AT,
    MAGIC_V2,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
    body_at,
    host_text,
    store_time_at,
)
from cometmq.protocol.wrapped_batch import WRAPPED
from cometmq.spark.endings import Ending, crc_problem, explain, place_problem

TOPIC, BODY, TAGS, KEYS, ID, BORN_HOST, STORE_HOST = range(7)
KINDS = 7
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
BATCH_BYTES_MAX = 1 << 30
"""No batch holds more than this and one row, lest the offsets of a text overflow."""

# C numbers once compiled.
_TOPIC, _BODY, _TAGS, _KEYS, _ID, _BORN, _STORE, _KINDS = range(8)
_COMPRESSED, _BORN_V6 = int(SysFlag.COMPRESSED), int(SysFlag.BORN_HOST_V6)
_STORE_V6 = int(SysFlag.STORE_HOST_V6)
_WRAPPED = WRAPPED
_CRC_BITS, _V2 = CRC_MASK, MAGIC_V2
_QUEUE_OFFSET_AT, _LOG_OFFSET_AT, _SYS_FLAG_AT = QUEUE_OFFSET_AT, LOG_OFFSET_AT, SYS_FLAG_AT
_MAGIC_AT, _CRC_AT, _BORN_HOST_AT = MAGIC_AT, BODY_CRC_AT, BORN_HOST_AT
_COMPARED_MAX = 64
"""Names of properties are compared with each other up to this many."""
_ROWS_MIN, _ENTRIES_MIN = 64, 1024
_OF_PROPERTIES = frozenset({"msg_id", "tags", "keys", "properties"})


class RecordRows:
    """Where the parts of each taken record are.

    Args:
        wanted: names of columns; only what they need is looked for.
        row_bytes: how many bytes a row has in the columns, besides its texts.
        decompress, crc, permissive, max_rows, max_bytes: as
            `cometmq.spark.batches.RecordDecoder` has them.

    Places are counted from the start of the data. The texts of row n are numbers
    ``n * KINDS`` and following of ``starts`` and ``sizes``; a size is below 0 where there is none.
    """

    def __init__(
        self,
        wanted: frozenset[str],
        row_bytes: int,
        *,
        decompress: bool = True,
        crc: bool = False,
        permissive: bool = False,
        max_rows: int,
        max_bytes: int,
    ) -> None:
        self.problem: str | None = None
        self.extra = bytearray()
        self._decompress = decompress
        self._crc = crc
        self._permissive = permissive
        self._wants_body = "body" in wanted
        self._wants_topic = "topic" in wanted
        self._wants_id = "msg_id" in wanted
        self._wants_born = "born_host" in wanted
        self._wants_store = "store_host" in wanted
        self._wants_properties = not _OF_PROPERTIES.isdisjoint(wanted)
        self._wants_map = "properties" in wanted
        self._wants_offset_id = "offset_msg_id" in wanted
        counted = [kind for name, kind in TEXTS.items() if name in wanted]
        self._counted_kinds = len(counted)
        self._counted = array("i", [*counted, 0])
        self._row_bytes = row_bytes
        self._max_rows = max_rows
        self._max_bytes = min(max_bytes, BATCH_BYTES_MAX)
        self.records = self.stores = self.heads = self.starts = _zeros("q", 0)
        self.flags = self.host_sizes = self.faults = self.entries = self.sizes = _zeros("i", 0)
        self.name_starts = self.value_starts = _zeros("q", 0)
        self.name_sizes = self.value_sizes = _zeros("i", 0)
        self._room = self._entry_room = 0
        self._make_room()
        self._make_entry_room(_ENTRIES_MIN)
        self._hosts: dict[bytes, tuple[int, int]] = {}
        self._host_at = _zeros("q", KINDS)
        self._host_bytes = _zeros("i", KINDS)
        self._text_at = self._text_bytes = self.entry_count = 0

    # --- walking ------------------------------------------------------------------------------

    def walk(
        self,
        data: Any,
        position: int,
        stop: int,
        topics: frozenset[bytes] | None,
        first_offset: int,
        end_offset: int,
        log_base: int,
    ) -> tuple[int, int, Ending]:
        """Walk over records as `RecordColumns.take` says; what ``data`` is must stay as it is."""
        self.problem = None
        self.extra.clear()
        self._hosts.clear()
        self._host_bytes[_BORN] = self._host_bytes[_STORE] = 0
        memory = octets.memory_of(data)
        chosen = None if topics is None else tuple(topics)
        limit = len(data)
        stop = min(stop, limit)
        max_rows, max_bytes = self._max_rows, self._max_bytes
        rows = used = 0
        chooses = first_offset >= 0 or end_offset >= 0
        self.entry_count = 0
        ending = Ending.END
        while position < stop:
            size = lazy_record.whole_size(memory, position, limit)
            if size == 0:
                ending, self.problem = explain(data, position)
                break
            if log_base >= 0:
                log_offset = octets.i64_in(memory, position + _LOG_OFFSET_AT)
                if log_offset != log_base + position:
                    ending = Ending.BAD
                    self.problem = place_problem(position, log_offset, log_base)
                    break
            if octets.i32_in(memory, position + _SYS_FLAG_AT) & _WRAPPED == _WRAPPED:
                ending = Ending.WRAPPED
                break
            if not chooses or _is_chosen(memory, position, first_offset, end_offset):
                if rows == self._room:
                    self._make_room()
                self._measure(memory, rows, position)
                if chosen is None or self._has_topic(memory, rows, chosen):
                    if rows == max_rows:
                        ending = Ending.FULL
                        break
                    if not self._open(memory, rows):
                        ending = Ending.BAD
                        break
                    cost = self._cost(rows)
                    if rows and used + cost > max_bytes:
                        ending = Ending.FULL
                        break
                    used += cost
                    self.entry_count += self.entries[rows]
                    rows += 1
            position += size
        return rows, position, ending

    def _make_room(self) -> None:
        """Make room for more rows."""
        room = max(_ROWS_MIN, 4 * self._room)
        self.records = _longer(self.records, "q", room)
        self.stores = _longer(self.stores, "q", room)
        self.heads = _longer(self.heads, "q", room)
        self.flags = _longer(self.flags, "i", room)
        self.host_sizes = _longer(self.host_sizes, "i", room)
        self.faults = _longer(self.faults, "i", room)
        self.entries = _longer(self.entries, "i", room)
        self.starts = _longer(self.starts, "q", room * KINDS)
        self.sizes = _longer(self.sizes, "i", room * KINDS)
        self._room = room

    def _make_entry_room(self, needed: int) -> None:
        """Make room for so many properties."""
        room = max(needed, 2 * self._entry_room)
        self.name_starts = _longer(self.name_starts, "q", room)
        self.name_sizes = _longer(self.name_sizes, "i", room)
        self.value_starts = _longer(self.value_starts, "q", room)
        self.value_sizes = _longer(self.value_sizes, "i", room)
        self._entry_room = room

    # --- one record ---------------------------------------------------------------------------

    def _measure(self, memory: Any, row: int, record: int) -> None:
        """Note where the parts of a record are that is known to be whole."""
        flag = octets.i32_in(memory, record + _SYS_FLAG_AT)
        head = record + body_at(flag)
        body_bytes = octets.i32_in(memory, head - 4)
        at = head + body_bytes
        if octets.i32_in(memory, record + _MAGIC_AT) == _V2:
            topic_bytes = octets.i16_in(memory, at)
            at += 2
        else:
            topic_bytes = memory[at]
            at += 1
        self.records[row] = record
        self.heads[row] = head
        self.flags[row] = flag
        self.stores[row] = record + store_time_at(flag)
        self.host_sizes[row] = 20 if flag & _STORE_V6 else 8
        self.faults[row] = 0
        self.entries[row] = 0
        self.starts[row * _KINDS + _BODY] = head
        self.sizes[row * _KINDS + _BODY] = body_bytes
        self.starts[row * _KINDS + _TOPIC] = at
        self.sizes[row * _KINDS + _TOPIC] = topic_bytes
        self._text_at = at + topic_bytes + 2
        self._text_bytes = octets.i16_in(memory, self._text_at - 2)

    def _has_topic(self, memory: Any, row: int, topics: tuple[bytes, ...]) -> bool:
        at = self.starts[row * _KINDS + _TOPIC]
        size = self.sizes[row * _KINDS + _TOPIC]
        if not octets.is_ascii(memory, at, size):
            return _mended(octets.bytes_in(memory, at, size)) in topics
        for topic in topics:  # noqa: SIM110 (a generator here would cost every record)
            if octets.equals(memory, at, size, topic):
                return True
        return False

    def _open(self, memory: Any, row: int) -> bool:
        """Find what is wanted of a record; False, with the problem noted, if it is damaged."""
        if self._crc and not self._check_crc(memory, row):
            return False
        is_compressed = self.flags[row] & _COMPRESSED
        if self._decompress and is_compressed and self.faults[row] == 0:  # noqa: SIM102
            if not self._inflate(memory, row):
                return False
        if self._wants_topic:
            at = self.starts[row * _KINDS + _TOPIC]
            size = self.sizes[row * _KINDS + _TOPIC]
            if not octets.is_ascii(memory, at, size):
                self._keep(row, _TOPIC, _mended(octets.bytes_in(memory, at, size)))
        if self._wants_properties:
            self._find_properties(memory, row)
        if self._wants_born:
            size = 20 if self.flags[row] & _BORN_V6 else 8
            self._find_host(memory, row, _BORN, self.records[row] + _BORN_HOST_AT, size)
        if self._wants_store:
            self._find_host(memory, row, _STORE, self.stores[row] + 8, self.host_sizes[row])
        return True

    def _check_crc(self, memory: Any, row: int) -> bool:
        head = self.heads[row]
        body_bytes = self.sizes[row * _KINDS + _BODY]
        met = checksum.crc_of(memory, head, head + body_bytes) & _CRC_BITS
        stored = octets.i32_in(memory, self.records[row] + _CRC_AT)
        if met == stored:
            return True
        self.faults[row] = -1
        if not self._permissive:
            self.problem = crc_problem(met, stored)
        return self._permissive

    def _inflate(self, memory: Any, row: int) -> bool:
        if self._wants_body:
            stored = octets.bytes_in(memory, self.heads[row], self.sizes[row * _KINDS + _BODY])
            try:
                body = decompress_body(stored, self.flags[row])
            except CompressionError as error:
                self.faults[row] = -1
                if not self._permissive:
                    self.problem = str(error)
                return self._permissive
            self._keep(row, _BODY, body)
        self.flags[row] &= ~_COMPRESSED
        return True

    def _keep(self, row: int, kind: int, text: bytes) -> None:
        """Let a text of a row be one that is not in the data."""
        self.starts[row * _KINDS + kind] = -1 - len(self.extra)
        self.sizes[row * _KINDS + kind] = len(text)
        self.extra += text

    def _find_host(self, memory: Any, row: int, kind: int, at: int, size: int) -> None:
        """Name a host of a row; mostly it is the one of the row before."""
        number = row * _KINDS + kind
        if size == self._host_bytes[kind] and octets.are_same(
            memory, at, self._host_at[kind], size
        ):
            self.starts[number] = self.starts[number - _KINDS]
            self.sizes[number] = self.sizes[number - _KINDS]
        else:
            host = octets.bytes_in(memory, at, size)
            place = self._hosts.get(host)
            if place is None:
                self._keep(row, kind, host_text(host).encode())
                self._hosts[host] = (self.starts[number], self.sizes[number])
            else:
                self.starts[number], self.sizes[number] = place
        self._host_at[kind] = at
        self._host_bytes[kind] = size

    # --- properties ---------------------------------------------------------------------------

    def _find_properties(self, memory: Any, row: int) -> None:
        size = self._text_bytes
        source = octets.window(memory, self._text_at, size)
        base = self._text_at
        text = b""
        if not octets.is_ascii(source, 0, size):
            text = _mended(octets.bytes_in(source, 0, size))
            source, base, size = octets.memory_of(text), self._add(text), len(text)
        if self._wants_map:
            if not self._list(source, size, row, base):
                text = encode_properties(decode_properties(octets.bytes_in(source, 0, size)))
                source, base, size = octets.memory_of(text), self._add(text), len(text)
                self._list(source, size, row, base)
            self._find_in_list(source, row, base)
        else:
            self._find_in_text(source, size, row, base)
        if self._wants_id and self.sizes[row * _KINDS + _ID] < 0:
            host = octets.bytes_in(memory, self.stores[row] + 8, self.host_sizes[row])
            log_offset = octets.i64_in(memory, self.records[row] + _LOG_OFFSET_AT)
            self._keep(row, _ID, encode_offset_id(host, log_offset).encode())

    def _add(self, text: bytes) -> int:
        """Put a text of properties into those that were made up; return the base of its places."""
        place = len(self.extra)
        self.extra += text
        return -1 - place

    def _list(self, source: Any, size: int, row: int, base: int) -> bool:
        """Note every property of a row; False if there are too many to compare all names.

        A message of a batch has ``WAIT`` twice, once from the batch. As in a map, an equal name
        keeps its place and gets the later value.
        """
        first = count = self.entry_count
        if first + size // 3 + 1 > self._entry_room:
            self._make_entry_room(first + size // 3 + 1)
        at = 0
        while at < size:
            stop = octets.end_of_run(source, at, size, 2)
            middle = octets.end_of_run(source, at, stop, 1)
            if at < middle and middle + 1 < stop:
                self.name_starts[count] = _placed(at, base)
                self.name_sizes[count] = middle - at
                known = count
                if count - first < _COMPARED_MAX:
                    known = self._known_name(source, first, count, base)
                self.value_starts[known] = _placed(middle + 1, base)
                self.value_sizes[known] = stop - middle - 1
                if known == count:
                    count += 1
            at = stop + 1
        self.entries[row] = count - first
        return count - first <= _COMPARED_MAX

    def _known_name(self, source: Any, first: int, last: int, base: int) -> int:
        """Return the first entry with the name of the last one."""
        size = self.name_sizes[last]
        at = _found(self.name_starts[last], base)
        for entry in range(first, last):
            if self.name_sizes[entry] == size and octets.are_same(
                source, _found(self.name_starts[entry], base), at, size
            ):
                return entry
        return last

    def _find_in_list(self, source: Any, row: int, base: int) -> None:
        """Find the properties that are columns of their own among those that were noted."""
        number = row * _KINDS
        self.sizes[number + _TAGS] = self.sizes[number + _KEYS] = self.sizes[number + _ID] = -1
        for entry in range(self.entry_count, self.entry_count + self.entries[row]):
            size = self.name_sizes[entry]
            if size != 4 and size != 8:
                continue
            at = _found(self.name_starts[entry], base)
            kind = _KINDS
            if size == 4:
                if octets.equals(source, at, size, b"TAGS"):
                    kind = _TAGS
                elif octets.equals(source, at, size, b"KEYS"):
                    kind = _KEYS
            elif octets.equals(source, at, size, b"UNIQ_KEY"):
                kind = _ID
            if kind < _KINDS:
                self.starts[number + kind] = self.value_starts[entry]
                self.sizes[number + kind] = self.value_sizes[entry]

    def _find_in_text(self, source: Any, size: int, row: int, base: int) -> None:
        """Find the properties that are columns of their own."""
        tags, tags_end, keys, keys_end, id_at, id_end = properties.spans_of(source, 0, size)
        self._put_span(row * _KINDS + _TAGS, tags, tags_end, base)
        self._put_span(row * _KINDS + _KEYS, keys, keys_end, base)
        self._put_span(row * _KINDS + _ID, id_at, id_end, base)

    def _put_span(self, number: int, start: int, end: int, base: int) -> None:
        self.starts[number] = _placed(start, base)
        self.sizes[number] = end - start if start < end else -1

    def _cost(self, row: int) -> int:
        """Return how many bytes a row adds to the columns."""
        cost = self._row_bytes
        for number in range(self._counted_kinds):
            cost += max(self.sizes[row * _KINDS + self._counted[number]], 0)
        if self._wants_offset_id:
            cost += 2 * (self.host_sizes[row] + 8)
        for entry in range(self.entry_count, self.entry_count + self.entries[row]):
            cost += self.name_sizes[entry] + self.value_sizes[entry]
        return cost


def _is_chosen(memory: Any, record: int, first_offset: int, end_offset: int) -> bool:
    """Whether the queue offset of a record is in the range; a bound below 0 is none."""
    queue_offset = octets.i64_in(memory, record + _QUEUE_OFFSET_AT)
    if 0 <= end_offset <= queue_offset:
        return False
    return first_offset < 0 or queue_offset >= first_offset


def _placed(at: int, base: int) -> int:
    """Return the place of what is ``at`` in a text of properties."""
    return base + at if base >= 0 else base - at


def _found(place: int, base: int) -> int:
    """Return where in its text of properties something is that has this place."""
    return place - base if base >= 0 else base - place


def _mended(text: bytes) -> bytes:
    """Return a text with replacement characters for what is no UTF-8."""
    return str(text, "utf-8", "replace").encode()


def _zeros(kind: str, room: int) -> Any:
    return array(kind, bytes(room * (8 if kind == "q" else 4)))


def _longer(old: Any, kind: str, room: int) -> Any:
    """Return an array of so many numbers that begins as another one does."""
    made = _zeros(kind, room)
    made[: len(old)] = array(kind, bytes(old))
    return made
