"""Cancels a coroutine at each of its waits, one run for each wait.

A wait can be cancelled in two ways that go wrong differently: while it lasts, and in the moment
after what it waited for has come, when the result is there but was not taken yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import coroutine
from typing import Any

RUN_S = 30.0


class Moment(Enum):
    """When within a wait the cancelling comes."""

    WAITING = "while it waits"
    COME = "as what it waits for has come"


@dataclass
class _Run:
    """One run, to be cancelled at the wait of a number."""

    at: int
    moment: Moment
    cancelled: bool = False

    def __str__(self) -> str:
        return f"cancelled at wait {self.at}, {self.moment.value}"


Make = Callable[[], Coroutine[Any, Any, Any]]
Check = Callable[[], Awaitable[object]]


async def cancel_at_every_await(
    make: Make,
    check: Check,
    *,
    prepare: Check | None = None,
    max_awaits: int = 100,
    moments: tuple[Moment, ...] = tuple(Moment),
) -> int:
    """Run a coroutine again and again, cancelled at its first wait, its second, and so on.

    Args:
        make: makes the coroutine anew.
        check: shows that everything is usable; runs after every run.
        prepare: runs before every run, and is not cancelled.
        max_awaits: how many waits it may have at most.
        moments: when within a wait to cancel.

    Returns:
        How many waits were cancelled in all.

    Raises:
        AssertionError: a run took the cancelling for something else, hung, or never got through.
    """
    done = 0
    for moment in moments:
        for at in range(max_awaits):
            run = _Run(at, moment)
            if prepare is not None:
                await prepare()
            await _cancelled(make(), run)
            try:
                await check()
            except Exception as error:
                error.add_note(f"after it was {run}")
                raise
            if not run.cancelled:
                break
            done += 1
        else:
            raise AssertionError(f"still waiting after {max_awaits} waits")
    return done


async def _cancelled(wanted: Coroutine[Any, Any, Any], run: _Run) -> None:
    task = asyncio.ensure_future(at_wait(wanted, run.at, partial(_cancel, run)))
    finished, _ = await asyncio.wait({task}, timeout=RUN_S)
    if not finished:
        task.cancel()
        await asyncio.wait({task}, timeout=1.0)
        raise AssertionError(f"hung when {run}")
    if task.cancelled():
        assert run.cancelled, "ended as cancelled, though nobody cancelled it"
        return
    error = task.exception()
    if error is not None:
        raise AssertionError(f"ended with {error!r} when {run}") from error
    assert not run.cancelled, f"went on when {run}"


@coroutine
def at_wait(
    wanted: Coroutine[Any, Any, Any], number: int, act: Callable[[Any], None]
) -> Generator[Any, Any, Any]:
    """Await a coroutine, and call ``act`` at its wait of a number, with what it waits for."""
    go_on: Callable[[], Any] = partial(wanted.send, None)
    resume, waits = go_on, 0
    while True:
        try:
            awaited = resume()
        except StopIteration as end:
            return end.value
        if waits == number:
            act(awaited)
        waits += 1
        try:
            yield awaited
        except BaseException as error:  # handed to the coroutine, as the task would
            resume = partial(wanted.throw, error)
        else:
            resume = go_on


def _cancel(run: _Run, awaited: Any) -> None:
    task = asyncio.current_task()
    assert task is not None
    run.cancelled = True
    if run.moment is Moment.COME and asyncio.isfuture(awaited):
        # Called before the task's own callback: it cancels, and then the task is woken.
        awaited.add_done_callback(lambda _: task.cancel())
    else:
        task.cancel()
