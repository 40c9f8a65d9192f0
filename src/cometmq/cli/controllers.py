"""Requests to one of several controllers, of which some may be down."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from cometmq.model.errors import CometError

Found = TypeVar("Found")


async def from_any(call: Callable[[str], Awaitable[Found]], addresses: Sequence[str]) -> Found:
    """Return what the first controller that responds says.

    Args:
        call: sends the request to an address.
        addresses: those of the controllers, at least one.

    Raises:
        CometError: none responds; the failure of the last one.
    """
    *others, last = addresses
    for address in others:
        try:
            return await call(address)
        except CometError:
            continue
    return await call(last)
