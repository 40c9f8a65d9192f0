"""Background tasks whose owner wants to know when one of them fails for good.

Source: ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from cometmq.client.errors import ClientClosedError
from cometmq.remoting.tasks import Supervisor


class SupervisedTasks(Supervisor):
    """Owns tasks, and remembers the first error that ended one of them."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self._failure: BaseException | None = None
        self._waiting: set[asyncio.Future[None]] = set()

    def spawn(
        self, work: Coroutine[Any, Any, Any], name: str, *, awaited: bool = False
    ) -> asyncio.Task[Any]:
        """Run ``work`` in the background; see `Supervisor.spawn`."""
        task = super().spawn(work, name, awaited=awaited)
        if not awaited:
            task.add_done_callback(self._look)
        return task

    async def until_failed(self) -> None:
        """Wait until a task fails, and raise its error; never return."""
        if self._failure is not None:
            raise self._failure
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(failed)
        try:
            await failed
        finally:
            self._waiting.discard(failed)

    def end(self, why: str) -> None:
        """Let everybody who waits know that there is nothing to wait for any more."""
        self._fail(ClientClosedError(why))

    def _look(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._fail(task.exception())

    def _fail(self, error: BaseException | None) -> None:
        self._failure = self._failure or error
        for waiting in self._waiting:
            if not waiting.done() and self._failure is not None:
                waiting.set_exception(self._failure)
