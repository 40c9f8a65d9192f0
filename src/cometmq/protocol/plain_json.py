# cython: annotation_typing=False, boundscheck=False, wraparound=False
"""Texts and whole numbers of JSON headers, read where they lie; only what needs no second look.

A text is plain when it is of printable ASCII and has no escapes, a number when it has no more than
18 digits. The general parser reads all else.

Source: ours.
"""

from __future__ import annotations

DIGITS_MAX = 18
_DIGITS_MAX = DIGITS_MAX


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
