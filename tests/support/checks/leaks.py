"""Finds what a test left behind in its own process: tasks of its loop, and sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from pathlib import Path

SETTLE_S = 60.0
POLL_S = 0.02


def open_sockets() -> set[str]:
    """The sockets of this process."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            if target.startswith("socket:"):
                found.add(target)
    return found


def other_tasks() -> set[asyncio.Task[object]]:
    """The tasks of this loop besides the one that asks."""
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[return-value]


async def left_behind(tasks: set[asyncio.Task[object]], sockets: set[str]) -> list[str]:
    """Describe the tasks and sockets that are there now and were not before.

    What is about to end has a minute for it; the answer comes as soon as nothing is left.
    """
    deadline = asyncio.get_running_loop().time() + SETTLE_S
    while True:
        more_tasks = {task for task in other_tasks() - tasks if not task.done()}
        more_sockets = open_sockets() - sockets
        late = asyncio.get_running_loop().time() > deadline
        if late or not (more_tasks or more_sockets):
            return [
                *(f"task {task.get_name()}: {task.get_coro()}" for task in more_tasks),
                *(f"socket {name}" for name in sorted(more_sockets)),
            ]
        gc.collect()
        await asyncio.sleep(POLL_S)
