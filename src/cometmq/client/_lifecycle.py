"""Objects that are started once and closed once, best by ``async with``."""

from __future__ import annotations

import asyncio
import logging
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NoReturn, Self

from cometmq.client._hints import Hints
from cometmq.client.errors import ClientClosedError, ClientError
from cometmq.remoting.tasks import begin_task, failure_of, raise_unless_failure

log = logging.getLogger(__name__)


class Lifecycle(Hints, ABC):
    """Starts when ``async with`` is entered and closes when it is left.

    The start and the close run once, each in a task of its own. Cancelling a caller only stops its
    waiting, but if no other call waits for the start or has waited for it, the object is closed.
    Closing interrupts a start that is running. A failed start closes the object. From its start on,
    the object belongs to one event loop: calls from another loop or thread are refused, since they
    would change what this loop uses at that moment.

    Args:
        owner: names the object in errors and tasks, such as ``consumer billing``.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the first start."""
        self._process = os.getpid()
        self._start_task: asyncio.Task[None] | None = None
        self._starters = 0
        self._started = False
        self._in_use = False
        """Whether a call of `start` has returned."""
        self._close_task: asyncio.Task[None] | None = None
        self._close_error: BaseException | None = None
        self._closing = asyncio.Event()
        """Set when the close begins."""

    def __del__(self) -> None:
        """Warn of an object that was started and never closed, as Python does of open files."""
        process = getattr(self, "_process", None)  # None if the constructor raised
        if process == os.getpid() and self._started and not self._closing.is_set():
            warnings.warn(
                f"unclosed {self._owner}: leave its `async with`, or call close()",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

    @property
    def running(self) -> bool:
        """Whether it is started and not closing."""
        return self._started and not self._closing.is_set()

    async def start(self) -> None:
        """Make it ready for use. Further calls do nothing.

        Raises:
            ClientClosedError: it was closed before, or during the start.
            ClientError: it was started in another event loop.
        """
        self._check_open()
        self._loop = asyncio.get_running_loop()
        if self._start_task is None:
            self._start_task = in_background(self._run_start(), f"{self._owner}.start")
        task = self._start_task
        self._starters += 1
        try:
            if not task.done():
                await asyncio.wait([task])
        except asyncio.CancelledError:
            if self._starters == 1 and not self._in_use:
                await asyncio.shield(self._begin_close())
            raise
        finally:
            self._starters -= 1
        failure = failure_of(task)
        if failure is None and not task.cancelled() and not self._closing.is_set():
            self._in_use = True
            return
        interrupted = task.cancelling() or isinstance(failure, asyncio.CancelledError)
        await asyncio.shield(self._begin_close())
        if failure is None or interrupted:
            raise ClientClosedError(
                f"{self._owner} was closed while it started: create a new one"
            ) from failure
        raise failure

    async def close(self) -> None:
        """Release everything. Further calls wait for the end; cancelling only stops the waiting.

        Raises:
            ClientError: it was started in another event loop, which still runs.
        """
        self._check_loop_to_close()
        await asyncio.shield(self._begin_close())
        error, self._close_error = self._close_error, None
        if error is not None:
            raise error

    def _begin_close(self) -> asyncio.Task[None]:
        """Close in the background. The returned task raises nothing; `close` raises the error."""
        if self._close_task is None:
            self._close_task = in_background(self._run_close(), f"{self._owner}.close")
            self._closing.set()
        return self._close_task

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise ClientClosedError(f"{self._owner} is closed: create a new one")
        self._check_loop()

    def _check_loop(self) -> None:
        """Raise if it was started in another event loop than the one that runs in this thread."""
        try:
            if self._loop is None or self._loop is asyncio.get_running_loop():
                return
        except RuntimeError:
            pass  # no loop runs in this thread
        if self._process != os.getpid():
            return  # a fork: the instance belongs to the parent, and says so
        raise ClientError(
            f"{self._owner} runs in another event loop: call it there, for example with "
            "asyncio.run_coroutine_threadsafe, or use cometmq.client.blocking"
        )

    def _check_loop_to_close(self) -> None:
        """As `_check_loop`, but what a loop that is closed has left can be closed in any other."""
        if self._loop is not None and not self._loop.is_closed():
            self._check_loop()

    def _check_running(self) -> None:
        self._check_open()
        if not self._started:
            raise ClientClosedError(
                f"{self._owner} is not running: start it first, with `async with` or `start`"
            )

    @abstractmethod
    async def _start(self) -> None:
        """Do the work of a start; may be cancelled anywhere."""

    async def _finish_work(self) -> None:
        """Finish what was begun, for a limited time: ``async with`` is left without an error."""
        return

    @abstractmethod
    async def _close(self) -> None:
        """Release what was acquired, however far the start came."""

    async def _run_start(self) -> None:
        await self._start()
        self._started = True

    async def _run_close(self) -> None:
        starting = self._start_task
        if starting is not None and not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
        loop = asyncio.get_running_loop()
        began_s, was_started = loop.time(), self._started
        try:
            await self._close()
            if was_started:
                log.info("%s closed seconds=%.1f", self._owner, loop.time() - began_s)
        except BaseException as error:
            raise_unless_failure(error)
            self._close_error = error

    def _forget_start(self) -> None:
        """Let `start` start it again."""
        self._start_task, self._started, self._in_use, self._loop = None, False, False, None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None and self.running:
                await self._finish_work()
        finally:
            await self.close()

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise TypeError(
                f"{self._owner} belongs to an event loop: write `async with`, or use "
                f"cometmq.client.blocking.{type(self).__name__}"
            )

        def __exit__(self, *error: object) -> None:
            """Exist, so that `with` calls `__enter__`."""


def in_background(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Run a coroutine in a task that is kept alive until it ends."""
    task = begin_task(work, name)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


_tasks: set[asyncio.Task[None]] = set()
"""The event loop holds weak references only."""
