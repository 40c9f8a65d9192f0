"""How front objects end: once, in a task of their own, whoever waits for it.

Source: ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Ending:
    """The end of an object: it happens once, and cancelling those who wait does not stop it.

    Args:
        name: of the task.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._task: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        """Whether the end has begun, or is over."""
        return self._task is not None

    @property
    def under_way(self) -> bool:
        """Whether the end has begun and is not over."""
        return self._task is not None and not self._task.done()

    async def come(self, end: Coroutine[Any, Any, None]) -> None:
        """End by ``end``, or wait for the end that has begun before."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(end, name=self._name)
        else:
            end.close()
        await asyncio.shield(self._task)
