"""What becomes of a message that a handler got.

FastStream swallows the exceptions of handlers, and those of acknowledgements. So the consumer does
not go by what a handler's call returns, but by what was said here; a message of which nothing was
said is redelivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from faststream.message.message import AckStatus

Delay = float | timedelta | None


class Settlement:
    """The verdict over one delivery: a message, or the messages of a batch.

    Args:
        carry_out: called once with the verdict, if brokers are to know it at once.
        extend: puts off the redelivery; None if the consumer cannot.
    """

    __slots__ = ("_carry_out", "_has_ended", "_settled", "delay", "error", "extend", "verdict")

    def __init__(
        self,
        carry_out: Callable[[Settlement], Awaitable[None]] | None = None,
        extend: Callable[[float | timedelta], Awaitable[None]] | None = None,
    ) -> None:
        self.verdict: AckStatus | None = None
        self.delay: Delay = None
        """Until the redelivery of a message that is not acknowledged."""
        self.error: BaseException | None = None
        """Why it is not acknowledged."""
        self.extend = extend
        self._carry_out = carry_out
        self._has_ended = False
        self._settled: asyncio.Event | None = None

    async def settle(
        self, verdict: AckStatus, delay: Delay = None, error: BaseException | None = None
    ) -> None:
        """Say what becomes of it; only the first call counts."""
        if self.verdict is not None:
            return
        self.verdict, self.delay = verdict, delay
        self.error = error or self.error
        if self._settled is not None:
            self._settled.set()
        if verdict is AckStatus.ACKED or self._has_ended:
            await self._carry()

    async def end(self) -> None:
        """Note that the handler has ended: its error is known, and goes with the verdict."""
        self._has_ended = True
        if self.verdict is not None:
            await self._carry()

    async def _carry(self) -> None:
        carry_out, self._carry_out = self._carry_out, None
        if carry_out is not None:
            await carry_out(self)

    async def wait(self) -> None:
        """Wait until it is settled."""
        if self.verdict is None:
            self._settled = self._settled or asyncio.Event()
            await self._settled.wait()
