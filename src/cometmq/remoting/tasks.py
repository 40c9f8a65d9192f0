"""Supervised background tasks: each has a name and an owner, and its failure is logged.

A task can end with `asyncio.CancelledError` although `Task.cancel` was not called: application code
raised it, or awaited a task that was cancelled. Here that is a failure like any other error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

log = logging.getLogger(__name__)

A = TypeVar("A")
T = TypeVar("T")

AT_ONCE = 16
"""Calls that `side_by_side` runs at a time."""


def is_call_failure(error: BaseException) -> bool:
    """Return whether an error is a failure of the call, and not the cancellation of this task.

    A function that awaits a task that was cancelled raises `asyncio.CancelledError`, too.
    """
    if isinstance(error, Exception):
        return True
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and (task is None or not task.cancelling())


def raise_unless_failure(error: BaseException) -> None:
    """Raise an error again that is no failure of a call: the cancellation of this task."""
    if not is_call_failure(error):
        raise error


def outlives(error: BaseException, *, stopping: bool) -> bool:
    """Return whether a task that only its owner cancels, when stopping, goes on after an error.

    It does after a failure of the call, and after code that it called has cancelled the task; not
    if the event loop ends, as `asyncio.run` ends it, which then waits for all tasks.
    """
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and not stopping:
        if _loop_is_ending(task):
            return False
        while task.cancelling():
            task.uncancel()
    return is_call_failure(error)


def _loop_is_ending(task: asyncio.Task[Any]) -> bool:
    """Return whether most of the other tasks are being cancelled: `asyncio.run` cancels all."""
    others = asyncio.all_tasks() - {task}
    return 2 * sum(other.cancelling() > 0 for other in others) >= len(others)


def failure_of(task: asyncio.Task[Any]) -> BaseException | None:
    """Return the error that ended a task; None if the task returned or `Task.cancel` ended it."""
    try:
        return task.exception()
    except asyncio.CancelledError as error:
        return None if task.cancelling() else error


def begin_task(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Run a coroutine in a task that begins when the caller yields to the event loop.

    An eager task factory would begin it at once, before its owner could note the task.
    """
    loop = asyncio.get_running_loop()
    eager: Any = getattr(asyncio, "eager_task_factory", None)  # since Python 3.12
    if eager and getattr(loop.get_task_factory(), "__code__", None) is eager.__code__:
        return asyncio.Task(work, loop=loop, name=name)
    return loop.create_task(work, name=name)


async def shielded(work: asyncio.Future[T]) -> T:
    """Await work that goes on if the caller is cancelled, and whose failure no other code awaits.

    Without this, asyncio logs a later failure as one that was never retrieved.
    """
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        work.add_done_callback(_take_failure)
        raise


def _take_failure(work: asyncio.Future[Any]) -> None:
    if not work.cancelled():
        work.exception()


class Supervisor:
    """Owns tasks: keeps them alive, logs how they fail, and ends them together."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        # In the order of their start: a set of tasks has another order in each process.
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, task: object) -> bool:
        return task in self._tasks

    def spawn(
        self, work: Coroutine[Any, Any, Any], name: str, *, awaited: bool = False
    ) -> asyncio.Task[Any]:
        """Run ``work`` in the background under ``owner.name``.

        ``awaited`` says that the caller awaits the task and sees its failure; else it is logged.
        """
        task = begin_task(work, f"{self._owner}.{name}")
        self._tasks[task] = None
        task.add_done_callback(self._forget if awaited else self._ended)
        return task

    def every(
        self,
        interval_s: float,
        act: Callable[[], Awaitable[None] | None],
        name: str,
        *,
        first_s: float | None = None,
    ) -> asyncio.Task[Any]:
        """Call ``act`` every ``interval_s`` seconds; a failure is logged, the next run follows.

        Args:
            interval_s: seconds from the end of one run to the start of the next.
            act: a plain or a coroutine function.
            name: of the task.
            first_s: seconds until the first run, by default one interval.
        """
        delay_s = interval_s if first_s is None else first_s
        return self.spawn(self._repeat(interval_s, delay_s, act, name), name)

    async def _repeat(
        self,
        interval_s: float,
        delay_s: float,
        act: Callable[[], Awaitable[None] | None],
        name: str,
    ) -> None:
        while True:
            await asyncio.sleep(delay_s)
            delay_s = interval_s
            try:
                result = act()
                if result is not None:
                    await result
            except BaseException as error:
                raise_unless_failure(error)
                log.exception(
                    "periodic task failed, retrying at its next run task=%s.%s", self._owner, name
                )

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._forget(task)
        failure = failure_of(task)
        if failure is not None:
            log.error("task failed task=%s", task.get_name(), exc_info=failure)

    async def drain(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for the tasks to end by themselves."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout)

    async def cancel(self, timeout: float = 5.0) -> None:
        """Cancel every task, the oldest first, and wait ``timeout`` seconds for their clean-up."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)
        for task in tasks:
            if not task.done():
                log.error("task did not end task=%s", task.get_name())


async def side_by_side(
    items: Iterable[A], call: Callable[[A], Awaitable[T]], *, at_once: int = AT_ONCE
) -> list[T]:
    """Return what ``call`` gives for each item, in the order of the items; some run at a time.

    Raises:
        BaseException: what the first call that failed has raised; the others are cancelled.
    """
    numbered = list(enumerate(items))
    results: dict[int, T] = {}
    waiting = iter(numbered)

    async def work() -> None:
        for number, item in waiting:
            results[number] = await call(item)

    workers = [asyncio.ensure_future(work()) for _ in range(min(at_once, len(numbered)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for each in workers:  # the workers that go on after another one has failed
            each.cancel()
    return [results[number] for number, _ in numbered]
