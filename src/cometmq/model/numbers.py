"""Numbers as text."""

from __future__ import annotations

from typing import Final

_DIGITS_MAX: Final = 19


def number_of(text: bytes | None) -> int | None:
    """Return a decimal number as Java reads it; None for another text."""
    if not text or len(text) > _DIGITS_MAX + 1:
        return None
    digits = text[1:] if text[:1] in (b"-", b"+") else text
    return int(text) if digits.isdigit() else None
