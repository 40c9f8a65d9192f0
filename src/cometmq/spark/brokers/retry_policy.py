"""The retry policy of requests to servers: how often, and for how long.

A server that restarts refuses connections for some seconds, and a query that has run for days must
not end for that. A request that a server refuses for good is not repeated.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from cometmq.model.errors import RemotingError, ResponseError
from cometmq.protocol.codes import ResponseCode
from cometmq.spark.errors import SourceError, UnreachableError

log = logging.getLogger(__name__)

T = TypeVar("T")

PAUSE_S_MAX: Final = 5.0
PASSING: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.GO_AWAY,
    }
)
"""Refusals that a server may take back by itself."""


class AwayError(RemotingError):
    """A broker, or any, is not registered with the name server now."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Repeats requests after a pause that doubles each time."""

    retries: int | None
    """None for no limit."""
    interval_s: float
    limit_s: float = math.inf
    """The time for all attempts."""

    async def run(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``attempt``, which is called again while no server responds.

        Args:
            what: the request, for the text of errors: ``offsets of topic orders``.
            attempt: sends the request once.

        Raises:
            UnreachableError: no attempt got a response.
            SourceError: a server refused for good.
        """
        now = asyncio.get_running_loop().time
        end_s, pause_s, tried = now() + self.limit_s, self.interval_s, 0
        while True:
            try:
                return await self._attempt(attempt, end_s - now())
            except (RemotingError, ResponseError) as error:
                if not is_passing(error):
                    raise SourceError(f"{what}: refused: {error}") from None
                last = error
            tried += 1
            if self.retries is not None and tried > self.retries:
                break
            log.info("retrying in %.1f s: %s error=%s", pause_s, what, last)
            await asyncio.sleep(max(min(pause_s, end_s - now()), 0))
            if now() >= end_s:
                break
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
        tries = f"{tried} tries" if tried > 1 else "the only attempt"
        raise UnreachableError(f"{what}: no response after {tries}, last error: {last}") from None

    async def _attempt(self, attempt: Callable[[], Awaitable[T]], left_s: float) -> T:
        """Run one attempt in a task of its own.

        On Python 3.11 a task group that fails leaves its task marked as cancelled: a timeout around
        it that runs out later takes itself for a cancellation from outside.

        Raises:
            AwayError: the time ran out.
        """
        task = asyncio.ensure_future(attempt())
        try:
            await asyncio.wait([task], timeout=None if math.isinf(left_s) else max(left_s, 0))
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            raise AwayError(f"no response within {self.limit_s:g} s")
        return task.result()


def is_passing(error: Exception) -> bool:
    """Whether the same question may be answered a little later."""
    if isinstance(error, ResponseError):
        return error.code in PASSING
    return isinstance(error, RemotingError)
