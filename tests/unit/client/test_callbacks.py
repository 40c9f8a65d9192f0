"""Handlers of every shape are called where they belong."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from cometmq.client import _callbacks as calling
from cometmq.client._callbacks import Caller

LABEL: contextvars.ContextVar[str] = contextvars.ContextVar("label", default="")


class Handlers:
    async def __call__(self, value: int) -> str:
        return threading.current_thread().name

    async def method(self, value: int) -> str:
        return threading.current_thread().name

    def plain(self, value: int) -> str:
        return threading.current_thread().name


async def coroutine(value: int, *, extra: int = 0) -> str:
    return threading.current_thread().name


def returns_coroutine(value: int) -> Any:
    return coroutine(value)


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    made = Caller(2, "handlers")
    yield made
    made.close()


@pytest.mark.parametrize(
    "function",
    [coroutine, Handlers(), Handlers().method, functools.partial(coroutine, extra=1)],
)
async def test_async_functions_run_in_the_loop(
    caller: Caller, function: Callable[..., Any]
) -> None:
    assert await caller.call(function, 1) == threading.current_thread().name


async def test_plain_functions_run_in_the_pool(caller: Caller) -> None:
    assert (await caller.call(Handlers().plain, 1)).startswith("handlers")


async def test_a_coroutine_that_a_plain_function_made_is_awaited(caller: Caller) -> None:
    assert await caller.call(returns_coroutine, 1) == threading.current_thread().name


async def test_plain_functions_see_context_variables_and_their_errors_come_back(
    caller: Caller,
) -> None:
    def fail() -> None:
        raise LookupError(LABEL.get())

    LABEL.set("here")
    with pytest.raises(LookupError, match="here"):
        await caller.call(fail)


async def test_a_plain_function_that_raises_stop_iteration_ends_with_an_error(
    caller: Caller,
) -> None:
    def stop() -> None:
        next(iter(()))

    async with asyncio.timeout(30):
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            await caller.call(stop)


async def test_more_threads_let_more_calls_run_while_old_ones_go_on() -> None:
    caller = Caller(1, "few")
    held, meeting = threading.Event(), threading.Barrier(2, timeout=60)
    first = asyncio.create_task(caller.call(held.wait, 60))
    await asyncio.sleep(0)
    caller.resize(2)
    await asyncio.gather(caller.call(meeting.wait), caller.call(meeting.wait))
    held.set()
    assert await first is True
    caller.close()


async def test_a_listener_that_never_ends_is_waited_for_no_longer_than_said(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calling, "LISTENER_S_MAX", 0.02)
    held, cancelled = threading.Event(), []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    for listener in (forever, held.wait):
        with pytest.raises(TimeoutError):
            await caller.notify(listener)
    assert cancelled == [True]
    held.set()
    monkeypatch.undo()
    await caller.notify(lambda: None)
