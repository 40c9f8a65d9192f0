"""Readers of a pull consumer: the tasks and threads that ask it for messages."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")

Reader = asyncio.Task[Any] | threading.Thread
"""A task, or the thread for which the blocking client calls."""

_thread: ContextVar[threading.Thread | None] = ContextVar("reading thread", default=None)


class ReaderState(Enum):
    """Whether a reader will finish what it has in hand."""

    RUNNING = "running"
    RETURNED = "returned"
    """A task ended well: its result may be the messages, which its caller processes."""
    FAILED = "failed"
    """A task failed or was cancelled, or a thread ended, which may have failed."""


def current_reader() -> Reader | None:
    """Give the thread that this call is made for, else the task that makes it, else None."""
    thread = _thread.get()
    if thread is not None:
        return thread
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return None


def state_of(reader: Reader) -> ReaderState:
    """Tell whether a reader still runs, and how it ended if not."""
    if isinstance(reader, threading.Thread):
        return ReaderState.RUNNING if reader.is_alive() else ReaderState.FAILED
    if not reader.done():
        return ReaderState.RUNNING
    failed = reader.cancelled() or reader.exception() is not None
    return ReaderState.FAILED if failed else ReaderState.RETURNED


async def read_as(
    thread: threading.Thread, call: Callable[..., Awaitable[T]], *arguments: Any
) -> T:
    """Make a call of a consumer for a thread; needs a task of its own."""
    _thread.set(thread)
    return await call(*arguments)
