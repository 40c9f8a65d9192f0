"""Runs application callbacks: coroutines on the loop, plain functions in a thread, and hooks."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from cometmq.remoting.tasks import raise_unless_failure

log = logging.getLogger(__name__)


class HookContext(Protocol):
    """The argument of a hook."""

    @property
    def group(self) -> str:
        """The group of the client."""


H = TypeVar("H")
C = TypeVar("C", bound=HookContext)

_thread = threading.local()

LISTENER_S_MAX = 30.0
"""Timeout of a call of a listener, in seconds."""


class Caller:
    """Runs coroutine functions in the loop and plain functions in a pool of its own.

    Args:
        threads: plain calls that run at a time; further ones wait. The caller of this class bounds
            how many wait.
        name: of the threads.

    Cancelling a plain call stops the waiting only: its thread runs on to the end of the function.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._name = name
        self._pool: ThreadPoolExecutor | None = None

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function``; return its result, or raise its error."""
        if not is_async(function):
            context = contextvars.copy_context()
            work = functools.partial(context.run, _without_stop, function, *arguments)
            result = await asyncio.get_running_loop().run_in_executor(self._executor(), work)
        else:
            result = function(*arguments)
        return await result if inspect.isawaitable(result) else result

    async def notify(self, listener: Callable[..., Any], *arguments: Any) -> None:
        """Call a listener, for a limited time.

        Raises:
            TimeoutError: it has not ended after `LISTENER_S_MAX`; an ``async def`` one is cancelled
                then, a plain one runs on in its thread.
        """
        async with asyncio.timeout(LISTENER_S_MAX):
            await self.call(listener, *arguments)

    def resize(self, threads: int) -> None:
        """Let this many plain calls run at a time from now on; running ones go on."""
        if threads != self._threads:
            self._threads = threads
            self.close()

    def close(self) -> None:
        """Take no further calls into the present threads, which end once they have nothing to do.

        A plain function that never returns keeps its thread, and the process at its exit, alive.
        """
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)

    def is_calling(self) -> bool:
        """Return whether this is the thread of a plain call."""
        return getattr(_thread, "caller", None) is self

    def _executor(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                self._threads,
                thread_name_prefix=self._name,
                initializer=lambda: setattr(_thread, "caller", self),
            )
        return self._pool


def _without_stop(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; a StopIteration, which no future can hold, becomes a RuntimeError.

    Python does the same where a coroutine raises it (PEP 479).
    """
    try:
        return function(*arguments)
    except StopIteration as error:
        raise RuntimeError(f"{function!r} raised StopIteration") from error


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine: async functions, and objects that are called so."""
    return any(map(inspect.iscoroutinefunction, _called(function)))


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a generator, plain or async, and runs nothing of its body."""
    called = _called(function)
    return any(map(inspect.isgeneratorfunction, called)) or any(
        map(inspect.isasyncgenfunction, called)
    )


def unfinished(result: object) -> TypeError | None:
    """Return the error for a result whose work has not been done yet: await or iterate it first."""
    if inspect.isawaitable(result):
        return TypeError(
            f"the handler returned {result!r:.100}, which was not awaited: make the handler an "
            "async def function, and await it there"
        )
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        return TypeError(
            f"the handler returned {result!r:.100}, whose body has not run: iterate it in the "
            "handler"
        )
    return None


def _called(function: Callable[..., Any]) -> tuple[Any, Any]:
    """Return the function itself and the ``__call__`` of an object: one of them has the body."""
    while isinstance(function, functools.partial):
        function = function.func
    return function, getattr(function, "__call__", None)  # noqa: B004 - its kind counts


def call_hooks(hooks: Iterable[H], method: Callable[[H, C], None], context: C) -> None:
    """Call one method of every hook; what a hook raises is logged and changes nothing."""
    for hook in hooks:
        try:
            getattr(hook, method.__name__)(context)
        except BaseException as error:
            raise_unless_failure(error)
            log.exception(
                "hook failed hook=%s call=%s group=%s",
                type(hook).__name__,
                method.__name__,
                context.group,
            )


TRACE_EVERY_S = 60.0
"""From one traceback of a kind of error to the next, in seconds."""
KINDS_MAX = 256
"""Kinds of errors that are remembered; of more, the errors logged longest ago are forgotten."""


class TraceTimes:
    """Says when a traceback belongs into the log: once a minute for each kind of error.

    Errors of one class that were raised at one line are of one kind.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._logged: dict[tuple[type[BaseException], object, int], float] = {}

    def is_due(self, error: BaseException) -> bool:
        """Return whether to log the traceback of this error, and remember that."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = (trace.tb_frame.f_code.co_filename, trace.tb_lineno) if trace else ("", 0)
        kind, now = (type(error), *where), self._now()
        if now - self._logged.get(kind, -math.inf) < TRACE_EVERY_S:
            return False
        self._logged.pop(kind, None)  # the order of the table is that of the times
        if len(self._logged) >= KINDS_MAX:
            del self._logged[next(iter(self._logged))]
        self._logged[kind] = now
        return True
