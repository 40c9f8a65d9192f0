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
        pause_s, tried = self.interval_s, 0
        last: Exception | None = None
        try:
            async with asyncio.timeout(None if math.isinf(self.limit_s) else self.limit_s):
                while True:
                    try:
                        return await attempt()
                    except (RemotingError, ResponseError) as error:
                        if not is_passing(error):
                            raise SourceError(f"{what}: refused: {error}") from None
                        last = error
                    tried += 1
                    if self.retries is not None and tried > self.retries:
                        break
                    log.info("retrying in %.1f s: %s error=%s", pause_s, what, last)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, PAUSE_S_MAX)
        except TimeoutError:
            last = last or AwayError(f"no response within {self.limit_s:g} s")
        tries = f"{tried} tries" if tried > 1 else "the only attempt"
        raise UnreachableError(f"{what}: no response after {tries}, last error: {last}") from None


def is_passing(error: Exception) -> bool:
    """Whether the same question may be answered a little later."""
    if isinstance(error, ResponseError):
        return error.code in PASSING
    return isinstance(error, RemotingError)
