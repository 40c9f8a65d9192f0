# cython: annotation_typing=False
"""The property string of a message, and fast look-ups in it.

    string := { name 0x01 value 0x02 }          UTF-8; the last 0x02 may be missing

Nothing is escaped. An entry without name or without value counts as not there, only the first 0x01
of an entry separates, and of equal names the last one wins. Writing always ends with 0x02.

Source: MessageDecoder.messageProperties2String and string2messageProperties, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cometmq.protocol import octets
from cometmq.protocol.hashing import extend_hash
from cometmq.protocol.octets import Memory

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.string import memchr, memcmp  # type: ignore

PROPERTIES_BYTES_MAX = 32767
"""The most that the length field of a record can state."""


def encode_properties(properties: Mapping[str, str | None]) -> bytes:
    """Write properties in their order; properties that are None are left out."""
    return "".join(
        [f"{name}\x01{value}\x02" for name, value in properties.items() if value is not None]
    ).encode()


def decode_properties(data: bytes | str) -> dict[str, str]:
    """Read a property string; broken UTF-8 becomes replacement characters."""
    properties = {}
    text = data if isinstance(data, str) else str(data, "utf-8", "replace")
    for entry in text.split("\x02"):
        name, _, value = entry.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def joined_bytes(memory: Memory, at: int, end: int, more: bytes) -> int:
    """Return how long the property string from ``at`` to ``end`` is with another one behind it.

    It is one longer than the two together where a separator is missing between them.
    """
    gap = 1 if at < end and more and memory[end - 1] != _END else 0
    return end - at + gap + len(more)


def join_properties(text: bytes, more: bytes) -> bytes:
    """Return a property string with another one behind it."""
    gap = joined_bytes(text, 0, len(text), more) - len(text) - len(more)
    return text + b"\x02" * gap + more


def marker(name: bytes) -> bytes:
    """Return what :func:`value_of` looks for in order to find a property."""
    return b"\x02" + name + b"\x01"


_END = 2
TAGS_MARKER = b"\x02TAGS\x01"
KEYS_MARKER = b"\x02KEYS\x01"
UNIQ_KEY_MARKER = b"\x02UNIQ_KEY\x01"


def value_of(properties: bytes, name_marker: bytes) -> bytes | None:
    """Return the value of one property, or None, without reading the others.

    Args:
        properties: a property string.
        name_marker: what :func:`marker` returns for the name.
    """
    if cython.compiled:
        span = _find(properties, len(properties), name_marker, len(name_marker))
        return None if span < 0 else octets.copy_of(properties, span >> 31, span & 0x7FFFFFFF)
    entries = b"\x02%b\x02" % properties
    start, stop = _span_in(entries, name_marker)
    return entries[start:stop] if stop else None


def _span_in(entries: bytes, name_marker: bytes) -> tuple[int, int]:
    """Start and end of the value of a property, among entries between separators; 0, 0 if it has
    none."""
    at = entries.rfind(name_marker)
    while at >= 0:
        start = at + len(name_marker)
        stop = entries.find(b"\x02", start)
        if stop > start:
            return start, stop
        at = entries.rfind(name_marker, 0, start - 1)  # empty, it does not count: an earlier may
    return 0, 0


def _find(text: Any, length: int, name_marker: Any, marker_length: int) -> int:
    """Position of the value of a property, start << 31 | stop, or -1; only compiled."""
    if cython.compiled:
        found = -1
        start = 0
        while start < length:
            end = memchr(text + start, 2, length - start)
            stop = length if end == cython.NULL else cython.cast(cython.p_uchar, end) - text
            value = start + marker_length - 1
            if stop > value and memcmp(text + start, name_marker + 1, marker_length - 1) == 0:
                found = value << 31 | stop
            start = stop + 1
        return found
    raise NotImplementedError


def tags_code_of(properties: bytes) -> int:
    """Return the hash of a message's tag; 0 if it has none."""
    tags = value_of(properties, TAGS_MARKER)
    return 0 if tags is None else extend_hash(0, tags)


def spans_of(memory: Memory, at: int, end: int) -> tuple[int, int, int, int, int, int]:
    """Return where tags, keys and unique id are: start and stop of each, equal for what is missing.

    Args:
        memory: a buffer.
        at, end: where a property string is in it.
    """
    if cython.compiled:
        tags_at = tags_end = keys_at = keys_end = id_at = id_end = 0
        while at < end:
            stop = octets.end_of_run(memory, at, end, _END)
            first = memory[at]
            if first == 84 and stop - at > 5 and memcmp(memory + at, b"TAGS\x01", 5) == 0:
                tags_at, tags_end = at + 5, stop
            elif first == 75 and stop - at > 5 and memcmp(memory + at, b"KEYS\x01", 5) == 0:
                keys_at, keys_end = at + 5, stop
            elif first == 85 and stop - at > 9 and memcmp(memory + at, b"UNIQ_KEY\x01", 9) == 0:
                id_at, id_end = at + 9, stop
            at = stop + 1
        return tags_at, tags_end, keys_at, keys_end, id_at, id_end
    entries = b"\x02%b\x02" % memory[at:end]  # each one between two separators
    tags_at, tags_end = _span_in(entries, TAGS_MARKER)
    keys_at, keys_end = _span_in(entries, KEYS_MARKER)
    id_at, id_end = _span_in(entries, UNIQ_KEY_MARKER)
    at -= 1
    return at + tags_at, at + tags_end, at + keys_at, at + keys_end, at + id_at, at + id_end


def index_keys_of(properties: bytes) -> list[bytes]:
    """Return the keys under which a message is indexed: its unique id, then its own keys."""
    _, _, at, end, id_at, id_end = spans_of(properties, 0, len(properties))
    found = []
    if id_at < id_end:
        found.append(octets.copy_of(properties, id_at, id_end))
    while at < end:
        stop = octets.end_of_run(properties, at, end, 32)
        if at < stop:
            found.append(octets.copy_of(properties, at, stop))
        at = stop + 1
    return found
