"""Pages of the tables that slaves copy: a whole table may be larger than a frame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, TypeVar

import msgspec

from cometmq.model.errors import ResponseError
from cometmq.protocol.bodies.base import InvalidBodyError
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.frame import FRAME_BYTES_MAX

T = TypeVar("T")

PAGE_ENTRIES_MAX: Final = 5_000
PAGE_BYTES: Final = 4 * 1024 * 1024
"""The size of a page, about."""
HEADER_BYTES: Final = 64 * 1024
"""Bytes left for the header of a response."""


def page_of(
    entries: Iterable[tuple[str, T]],
    first: int,
    most: int | None,
    other_bytes: Callable[[str], int] = lambda name: 0,
) -> dict[str, T]:
    """Return some entries of a table: at least one, if there is one.

    Args:
        entries: all entries with their names.
        first: how many of them the requester has.
        most: the number that it requests; None for as many as fit.
        other_bytes: returns the size of what else a page has for a name.
    """
    count = PAGE_ENTRIES_MAX if most is None else max(1, min(most, PAGE_ENTRIES_MAX))
    page: dict[str, T] = {}
    left = PAGE_BYTES
    for name, value in islice(entries, max(first, 0), max(first, 0) + count):
        left -= len(name) + len(msgspec.json.encode(value)) + other_bytes(name)
        if page and left < 0:
            break
        page[name] = value
    return page


def first_of_page(first: int | None, version_text: str | None, version: DataVersion) -> int | None:
    """Return where a page begins: at the start if the table has changed; None for all entries.

    Args:
        first: how many entries the requester has; None if it requests no page.
        version_text: the version that they have, as JSON; empty for none.
        version: the version of the table.
    """
    if first is None:
        return None
    return first if is_version(version_text, version) else 0


def is_version(text: str | None, version: DataVersion) -> bool:
    """Return whether a text from a request is a version as JSON."""
    try:
        return bool(text) and DataVersion.decode((text or "").encode()) == version
    except InvalidBodyError:
        return False


def fits(pieces: Sequence[bytes]) -> bool:
    """Return whether a table is small enough for a frame."""
    return sum(map(len, pieces)) <= FRAME_BYTES_MAX - HEADER_BYTES


def check_whole(pieces: Sequence[bytes], what: str) -> None:
    """Refuse a whole table that is larger than a frame.

    Raises:
        ResponseError: it is.
    """
    if not fits(pieces):
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR,
            f"the table of {what} has {sum(map(len, pieces))} bytes, a response has at most"
            f" {FRAME_BYTES_MAX - HEADER_BYTES}: expected a request for a page of it",
        )
