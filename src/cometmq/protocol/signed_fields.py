# cython: annotation_typing=False, boundscheck=False, wraparound=False
"""The header fields of a request in the receive buffer, for the check of its signature.

A `HeaderScanner` passes each field on; then `SignedFields.content` is what `signed_content` makes
of the same request, or `is_usable` is false and the general reader must take it.
"""

from __future__ import annotations

from typing import Any, Final

from cometmq.protocol import header_scanner, octets
from cometmq.protocol.octets import Memory

try:
    import cython  # type: ignore[import-untyped]
except ImportError:  # interpreted, without Cython at hand
    from cometmq.system.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize  # type: ignore
    from cython.cimports.libc.string import memcmp, memcpy  # type: ignore

FIELDS_MAX: Final = 64
_FIELDS_MAX = FIELDS_MAX
_NAME_BYTES = 9
_ACCESS_KEY, _SIGNATURE = b"AccessKey", b"Signature"
_ESCAPED = header_scanner.ESCAPED


class RequestCheck:
    """Decides whether a request that a fast path has read is allowed.

    Attributes:
        key: the access key of the request that was checked last; empty for none.
    """

    def __init__(self) -> None:
        self.key = b""

    def allows(
        self,
        wire: Any,
        fields: SignedFields,
        data: bytearray,
        unescaped: bytearray,
        body_at: int,
        body_end: int,
        topic: str,
        group: str | None,
    ) -> bool:
        """Return whether the request is sure to be allowed.

        Args:
            wire: its connection.
            fields: the fields of its header.
            data: contains the header and the body.
            unescaped: contains values whose escapes were resolved.
            body_at, body_end: where the body is.
            topic: the topic that it uses.
            group: the group that it consumes as; None for none.
        """
        raise NotImplementedError

    def release(self) -> None:
        """Forget the connection that was read last: accounts may change before the next read."""


class SignedFields:
    """The positions of the fields of one header, in the order of their names."""

    def __init__(self) -> None:
        self.is_usable = False
        """Whether no field is there twice, and there are not too many."""
        self._count = 0
        self._key_at = self._key_end = 0
        self._signature_at = self._signature_end = 0
        if not cython.compiled:
            self._names: Any = [0] * _FIELDS_MAX
            self._name_ends: Any = [0] * _FIELDS_MAX
            self._values: Any = [0] * _FIELDS_MAX
            self._value_ends: Any = [0] * _FIELDS_MAX
            self._escaped: Any = [0] * _FIELDS_MAX
            self._order: Any = [0] * _FIELDS_MAX

    def begin(self) -> None:
        """Forget the fields of the last header."""
        self._count = 0
        self.is_usable = True
        self._key_at = self._key_end = 0
        self._signature_at = self._signature_end = 0

    def note(self, memory: Memory, name: int, name_end: int, at: int, end: int, kind: int) -> bool:
        """Take one field; the arguments are as for `HeaderScanner.note`.

        Returns:
            Whether the field is about the account, and so says nothing else of the request.
        """
        is_of_account = False
        size = name_end - name
        if size == _NAME_BYTES:
            if octets.equals(memory, name, size, _SIGNATURE):
                if self._signature_end:
                    self.is_usable = False
                self._signature_at, self._signature_end = at, end
                return True
            if octets.equals(memory, name, size, _ACCESS_KEY):
                self._key_at, self._key_end = at, end
                is_of_account = True
        count = self._count
        if count == _FIELDS_MAX:
            self.is_usable = False
            return is_of_account
        place = count
        while place > 0:  # most headers are sorted already
            other = self._order[place - 1]
            compared = _compare(memory, name, size, self._names[other], self._name_ends[other])
            if compared > 0:
                break
            if compared == 0:
                self.is_usable = False
            self._order[place] = other
            place -= 1
        self._order[place] = count
        self._names[count], self._name_ends[count] = name, name_end
        self._values[count], self._value_ends[count] = at, end
        self._escaped[count] = kind == _ESCAPED
        self._count = count + 1
        return is_of_account

    def has_access_key(self, data: bytearray, key: bytes) -> bool:
        """Return whether the access key is this one; empty for none."""
        return octets.equals(octets.start_of(data), self._key_at, self._key_end - self._key_at, key)

    def access_key(self, data: bytearray) -> bytes:
        """Return the access key; empty if there is none."""
        return octets.bytes_in(octets.start_of(data), self._key_at, self._key_end - self._key_at)

    def signature(self, data: bytearray) -> bytes:
        """Return the signature; empty if there is none."""
        return octets.bytes_in(
            octets.start_of(data), self._signature_at, self._signature_end - self._signature_at
        )

    def content(self, data: bytearray, unescaped: bytearray, body_at: int, body_end: int) -> bytes:
        """Return what the signature is made of.

        Args:
            data: contains the header and the body.
            unescaped: contains the value whose escapes were resolved, if there is one.
            body_at, body_end: where the body is.
        """
        size = body_end - body_at
        for at in range(self._count):
            size += self._value_ends[at] - self._values[at]
        if cython.compiled:
            content = PyBytes_FromStringAndSize(cython.NULL, size)
            space = cython.cast(cython.p_uchar, content)
        else:
            space = bytearray(size)
        memory = octets.start_of(data)
        other = octets.start_of(unescaped) if unescaped else memory
        filled = 0
        for place in range(self._count):
            at = self._order[place]
            value, value_bytes = self._values[at], self._value_ends[at] - self._values[at]
            source = other if self._escaped[at] else memory
            if cython.compiled:
                memcpy(space + filled, source + value, value_bytes)
            else:
                space[filled : filled + value_bytes] = source[value : value + value_bytes]
            filled += value_bytes
        if cython.compiled:
            memcpy(space + filled, memory + body_at, body_end - body_at)
            return content  # type: ignore[no-any-return]
        space[filled:size] = memory[body_at:body_end]
        return bytes(space)


def _compare(memory: Memory, name: int, size: int, other: int, other_end: int) -> int:
    """Return below, above or equal to 0 as a name is before, behind or equal to another one."""
    other_size = other_end - other
    least = min(size, other_size)
    if least and memory[name] != memory[other]:  # as in most names
        return memory[name] - memory[other]  # type: ignore[no-any-return]
    if cython.compiled:
        compared = memcmp(memory + name, memory + other, least)
        return compared if compared != 0 else size - other_size
    one, two = memory[name : name + size], memory[other:other_end]
    return int(one > two) - int(one < two)
