"""Long work in slices, so that a request never keeps the event loop busy for long.

A handler whose work depends on what a client asks for, or on the size of a table, is a coroutine:
it pauses whenever its slice is over, and other requests are handled. Each iteration of the event
loop runs one slice, however many requests wait for theirs. Such a handler is served as `exclusive`,
so that a connection has one of them at a time and its responses keep their order.

A large JSON body is decoded in a thread, because no parser can pause; one thread serves all.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from time import monotonic
from typing import Any, Final, TypeVar

from cometmq.protocol.bodies.base import Body, decode_strictly

T = TypeVar("T")
B = TypeVar("B", bound=Body)

SLICE_S: Final = 0.002
"""The time that one slice keeps the event loop busy."""
STRICT_BYTES_MAX: Final = 64 * 1024
"""Bodies up to this size that are plain JSON are decoded at once: that takes less than 1 ms."""
LENIENT_BYTES_MAX: Final = 2 * 1024
"""Bodies up to this size are decoded at once, plain JSON or not."""

CLEARED_AT_ONCE: Final = 100
"""Entries of a table that are freed between two looks at the clock."""
PIECE_BYTES: Final = 256 * 1024
"""The approximate size of the pieces of a body that is encoded in slices."""


class _SliceLocks(threading.local):
    """The lock of each thread's event loop that only one slice at a time holds."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.lock = asyncio.Lock()

    def of(self, loop: asyncio.AbstractEventLoop) -> asyncio.Lock:
        if self.loop is not loop:
            self.loop, self.lock = loop, asyncio.Lock()
        return self.lock


_locks = _SliceLocks()
_decoding = ThreadPoolExecutor(1, thread_name_prefix="decode")


class Slices:
    """Divides one piece of work into slices; the first one begins when this is made."""

    def __init__(self) -> None:
        self._end_s = monotonic() + SLICE_S

    async def pause(self) -> None:
        """Let other requests run if the slice is over."""
        if monotonic() < self._end_s:
            return
        async with _locks.of(asyncio.get_running_loop()):
            await asyncio.sleep(0)
        self._end_s = monotonic() + SLICE_S

    async def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Yield the items with pauses in between; the iterable must not change meanwhile."""
        for item in items:
            if monotonic() >= self._end_s:
                await self.pause()
            yield item

    async def clear(self, table: dict[Any, Any] | list[Any]) -> None:
        """Empty a table or list in slices, because freeing many entries at once takes long."""
        take = table.popitem if isinstance(table, dict) else table.pop
        while table:
            for _ in range(min(len(table), CLEARED_AT_ONCE)):
                take()
            await self.pause()


def batched(items: Iterable[T], count: int = 500) -> Iterator[list[T]]:
    """Yield the items in lists of up to ``count``."""
    left = iter(items)
    while batch := list(islice(left, count)):
        yield batch


async def encode(body: Body, slices: Slices | None = None) -> list[bytes]:
    """Encode a body in slices; return the parts of the response's body."""
    return await join(body.parts(), slices)


async def join(written: Iterable[bytes], slices: Slices | None = None) -> list[bytes]:
    """Join the parts of a body in slices; return the parts of the response's body."""
    slices = slices or Slices()
    pieces: list[bytes] = []
    parts: list[bytes] = []
    size_bytes = 0
    async for part in slices.each(written):
        parts.append(part)
        size_bytes += len(part)
        if size_bytes > PIECE_BYTES:
            pieces.append(b"".join(parts))
            parts.clear()
            size_bytes = 0
    return [*pieces, b"".join(parts)]


async def decode(kind: type[B], data: bytes) -> B:
    """Decode a body; off the event loop if that may take long.

    Raises:
        InvalidBodyError: as `Body.decode` does.
    """
    found = decode_at_once(kind, data)
    return await off_loop(lambda: kind.decode(data)) if found is None else found


def decode_at_once(kind: type[B], data: bytes) -> B | None:
    """Decode a body; None if that may take too long for the event loop.

    Raises:
        InvalidBodyError: as `Body.decode` does.
    """
    if len(data) <= LENIENT_BYTES_MAX:
        return kind.decode(data)
    return decode_strictly(kind, data) if len(data) <= STRICT_BYTES_MAX else None


async def off_loop(work: Callable[[], T]) -> T:
    """Run work that cannot pause, in the decoding thread."""
    return await asyncio.get_running_loop().run_in_executor(_decoding, work)
