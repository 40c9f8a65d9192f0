"""The loop that fetches one queue: for push, pull and pop.

    may it fetch? ─ no ─► wait for room, a resume, a lock ─► check again, each second at least
          │ yes
          ▼
        fetch ─► act on the response ─► pause, if there was nothing and it came at once

`SupervisedLoop` adds the rest: an error of either is logged once and retried after a back-off, and
a step that hangs is cancelled and started again. So fetching never ends without a log line.

A response that comes for a loop that was stopped or replaced is ignored. Acting on one must leave
the queue as it was if it raises, or release the queue: the next fetch has the same offset.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Generic, TypeVar

from cometmq.client._supervision import STEP_S_MAX, SupervisedLoop

R = TypeVar("R")

LOOK_S = 1.0
"""How often a loop that may not fetch asks again whether it may."""
QUICK_S = 0.01
"""A response without anything new that takes less than this was not held by the broker."""
STEPS_OF_TIMEOUT = 2
"""A step may take this many times the timeout of its request, if that is more than 120 s."""


def step_s_max(timeout_s: float) -> float:
    """Return how long a step may take whose request has this timeout."""
    return max(STEP_S_MAX, STEPS_OF_TIMEOUT * timeout_s)


class FetchLoop(SupervisedLoop, Generic[R]):
    """Fetches one queue again and again; ``R`` is a response."""

    _look_s = LOOK_S
    _quick = 0
    """Responses in a row that came at once and brought nothing new."""
    _next_s = 0.0
    """When the next fetch is due."""

    @abstractmethod
    def _is_blocked(self) -> bool:
        """Return whether nothing is to be fetched now."""

    @abstractmethod
    async def _fetch(self) -> R | None:
        """Fetch; None if there is nothing to act on."""

    @abstractmethod
    async def _act(self, response: R, took_s: float) -> bool:
        """Act on a response.

        Args:
            response: what `_fetch` has returned.
            took_s: seconds that the fetch took.

        Returns:
            Whether it brought anything new.
        """

    def _rest_s(self, response: R) -> float:
        """Return the seconds to the next fetch after a response that brought something new."""
        return 0.0

    def _wait_s(self) -> float:
        if self._is_blocked():
            return self._look_s
        return self._next_s and self._next_s - asyncio.get_running_loop().time()

    async def _step(self) -> None:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        response = await self._fetch()
        if response is None or not self._is_current():
            return
        took_s = clock() - began_s
        if await self._act(response, took_s):
            self._quick, rest_s = 0, self._rest_s(response)
        elif took_s > QUICK_S:
            self._quick, rest_s = 0, 0.0
        else:
            rest_s = min(QUICK_S * 2 ** min(self._quick, 10), LOOK_S)
            self._quick += 1
        self._next_s = clock() + rest_s if rest_s else 0.0
