"""Background tasks whose owner reports when one of them ends with an error."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from cometmq.remoting.tasks import Supervisor, failure_of


class SupervisedTasks(Supervisor):
    """Owns tasks, and remembers the first error that ended one of them."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.failure: BaseException | None = None
        """The first error that ended a task."""
        self._failed = asyncio.Event()

    def spawn(
        self, work: Coroutine[Any, Any, Any], name: str, *, awaited: bool = False
    ) -> asyncio.Task[Any]:
        """Run ``work`` in the background; see `Supervisor.spawn`."""
        task = super().spawn(work, name, awaited=awaited)
        if not awaited:
            task.add_done_callback(self._note_failure)
        return task

    async def wait_failed(self) -> None:
        """Wait until an error ends a task."""
        await self._failed.wait()

    def _note_failure(self, task: asyncio.Task[Any]) -> None:
        failure = failure_of(task)
        if failure is not None:
            self.failure = self.failure or failure
            self._failed.set()
