# cython: annotation_typing=False, boundscheck=False, wraparound=False
"""Parts of JSON headers, read where they lie; only what needs no second look.

    header := {"code":n,"extFields":{...} rest
    rest   := ,"flag":0,"language":"...","opaque":n,"serializeTypeCurrentRPC":"JSON","version":n}

A text is plain when it is of printable ASCII and has no escapes, a number when it has no more than
18 digits. The general parser reads all else.

Source: ours.
"""

from __future__ import annotations

from cometmq.protocol.octets import matches

DIGITS_MAX = 18
_DIGITS_MAX = DIGITS_MAX
NOT_PLAIN = -(2**62)
"""Stands for an opaque number where there is none."""
_NOT_PLAIN, _INT32_MAX = NOT_PLAIN, 2**31 - 1
_AFTER_FIELDS = b',"flag":0,"language":"'
_AFTER_LANGUAGE = b',"opaque":'
_AFTER_OPAQUE = b',"serializeTypeCurrentRPC":"JSON","version":'


def end_of_text(data: bytearray, at: int, end: int) -> int:
    """Where the quote behind a text without escapes is; 0 if there is none."""
    memory = data
    while at < end:
        unit = memory[at]
        if unit == 34:
            return at
        if unit == 92 or unit < 32 or unit > 126:
            return 0
        at += 1
    return 0


def end_of_number(data: bytearray, at: int, end: int) -> int:
    """The position behind a whole number; 0 if there is none, or one of too many digits."""
    memory = data
    if at < end and memory[at] == 45:
        at += 1
    start = at
    while at < end and 48 <= memory[at] <= 57:
        at += 1
    return at if 0 < at - start <= _DIGITS_MAX else 0


def number(data: bytearray, at: int, end: int) -> int:
    """The whole number that lies from ``at`` to ``end``."""
    memory = data
    is_negative = memory[at] == 45
    if is_negative:
        at += 1
    value = 0
    while at < end:
        value = value * 10 + (memory[at] - 48)
        at += 1
    return -value if is_negative else value


def opaque_in(data: bytearray, at: int, end: int) -> int:
    """The opaque number in the rest of a header from ``at`` to ``end``; NOT_PLAIN if it is odd."""
    if not matches(data, at, end, _AFTER_FIELDS):
        return _NOT_PLAIN
    at = end_of_text(data, at + 22, end)
    if at == 0 or not matches(data, at + 1, end, _AFTER_LANGUAGE):
        return _NOT_PLAIN
    start = at + 11
    at = end_of_number(data, start, end)
    if at == 0 or not matches(data, at, end, _AFTER_OPAQUE):
        return _NOT_PLAIN
    opaque = number(data, start, at)
    at = end_of_number(data, at + 44, end)
    if at == 0 or at + 1 != end or data[at] != 125:
        return _NOT_PLAIN
    return opaque if -_INT32_MAX <= opaque <= _INT32_MAX else _NOT_PLAIN
