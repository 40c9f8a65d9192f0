# cython: annotation_typing=False
"""The property string of a message, and quick answers about it.

    string := { name 0x01 value 0x02 }          UTF-8; the last 0x02 may be missing

Nothing is escaped. An entry without name or without value counts as not there, only the first 0x01
of an entry separates, and of equal names the last one wins. Writing always ends with 0x02.

Source: MessageDecoder.messageProperties2String and string2messageProperties, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cometmq.protocol.hashing import extend_hash
from cometmq.protocol.octets import copy_of

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.string import memchr, memcmp  # type: ignore

PROPERTIES_BYTES_MAX = 32767
"""What a record has room for."""


def encode_properties(properties: Mapping[str, str | None]) -> bytes:
    """Write properties in their order; those that are None are left out."""
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


def join_properties(properties: bytes, more: bytes) -> bytes:
    """Put one property string behind another, where its entries win."""
    if not properties or not more or properties[-1] == _END:
        return properties + more
    return properties + b"\x02" + more


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
        return None if span < 0 else copy_of(properties, span >> 31, span & 0x7FFFFFFF)
    end = len(properties)
    while True:
        at = properties.rfind(name_marker, 0, end)
        if at < 0 and not properties.startswith(name_marker[1:]):
            return None
        start = at + len(name_marker)  # the very first entry has no 0x02 before it: at is -1
        stop = properties.find(b"\x02", start)
        if stop < 0:
            stop = len(properties)
        if stop > start:
            return properties[start:stop]
        if at < 0:
            return None
        end = at + 1  # empty, so it does not count: an earlier one may


def _find(text: Any, length: int, name_marker: Any, marker_length: int) -> int:
    """Where the value of a property is, start << 31 | stop, or -1; only compiled."""
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


def index_keys_of(properties: bytes) -> list[bytes]:
    """Return the keys under which a message is indexed: its unique id, then its own keys."""
    found = []
    unique_id = value_of(properties, UNIQ_KEY_MARKER)
    if unique_id is not None:
        found.append(unique_id)
    keys = value_of(properties, KEYS_MARKER)
    if keys is not None:
        if keys.find(b" ") < 0:
            found.append(keys)
        else:
            found += [key for key in keys.split(b" ") if key]
    return found
