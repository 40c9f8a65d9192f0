"""Nouns with their counts, for texts that people read."""

from __future__ import annotations


def noun_of(number: int, noun: str) -> str:
    """Return the form of a noun after a number: ``delivery`` after 1, otherwise ``deliveries``."""
    if number == 1:
        return noun
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 message``, ``2 messages``."""
    return f"{number} {noun_of(number, noun)}"
