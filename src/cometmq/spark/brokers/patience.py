"""The retry policy of requests to servers: how often, and for how long.

A server that restarts refuses connections for some seconds, and a query that has run for days must
not end for that. What a server refuses for good is not asked again.
"""

from __future__ import annotations

import asyncio
import logging
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
class Patience:
    """Asks again after a pause that doubles each time."""

    retries: int
    interval_s: float

    async def ask(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Give what ``attempt`` gives, trying again while nobody answers.

        Args:
            what: the question, for the text of errors: ``offsets of topic orders``.
            attempt: asks once.

        Raises:
            UnreachableError: every try brought no answer.
            SourceError: a server refused for good.
        """
        pause_s = self.interval_s
        for tried in range(self.retries + 1):
            try:
                return await attempt()
            except (RemotingError, ResponseError) as error:
                if not is_passing(error):
                    raise SourceError(f"{what}: refused: {error}") from None
                last = error
            if tried < self.retries:
                log.info("retrying in %.1f s: %s error=%s", pause_s, what, last)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
        tries = f"{self.retries + 1} tries" if self.retries else "the only attempt"
        raise UnreachableError(f"{what}: no response after {tries}, last error: {last}") from None


def is_passing(error: Exception) -> bool:
    """Whether the same question may be answered a little later."""
    if isinstance(error, ResponseError):
        return error.code in PASSING
    return isinstance(error, RemotingError)
