"""A number of permits that can be changed while they are in use.

Source: ours.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType


class Permits:
    """Lets so many tasks in at a time, in the order they came.

    Args:
        count: how many.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def resize(self, count: int) -> None:
        """Let this many in from now on; those that are in stay."""
        self._count = count
        self._let_in()

    def close(self) -> None:
        """Let everybody in who waits: they are to see that there is nothing to do."""
        self._closed = True
        self._let_in()

    async def __aenter__(self) -> None:
        if self._taken < self._count and not self._waiting:
            self._taken += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        self._taken -= 1
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and (self._closed or self._taken < self._count):
            turn = self._waiting.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)
