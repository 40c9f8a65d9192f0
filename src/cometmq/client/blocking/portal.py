"""A loop in a thread of its own, which code without a loop uses as if calls were plain.

All blocking objects of a process share one portal: the first that starts opens it, the last that
closes ends it. A forked child opens its own.

"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import math
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cometmq.client.errors import ClientClosedError, ClientError
from cometmq.remoting import Supervisor
from cometmq.system.platforms import SYSTEM

T = TypeVar("T")

INTERRUPTED_S = 1.0
"""How long a call that was interrupted or ran out of time may take to end in the loop."""
END_S = 5.0
"""How long the thread may take to end."""
ENDED = "the event loop of the blocking client has ended: create and start a new object"


class _Call:
    """One coroutine on its way through the loop."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self.work = work
        self.task: asyncio.Task[Any] | None = None
        self.ended = threading.Event()
        self._given_up = False

    def begin(self, tasks: Supervisor) -> None:
        self.task = tasks.spawn(self.work, "call", awaited=True)
        self.task.add_done_callback(lambda _: self.ended.set())
        if self._given_up:
            self.task.cancel()

    def give_up(self) -> None:
        self._given_up = True
        if self.task is not None:
            self.task.cancel()

    def result(self) -> Any:
        if self.task is None or self.task.cancelled():
            raise ClientClosedError("the call was cancelled: another thread closed its client")
        return self.task.result()


class Portal:
    """Runs coroutines in a loop of another thread. Made by `acquire_portal`, not by itself."""

    def __init__(self) -> None:
        self._holders = 0
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._exit: BaseException | None = None
        """The `SystemExit` or `KeyboardInterrupt` that has ended the loop."""
        self._tasks = Supervisor("blocking calls")
        self._calls: set[_Call] = set()
        self._thread = threading.Thread(target=self._run, name="cometmq-blocking", daemon=True)
        self._thread.start()
        self._ready.wait()

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine in the loop and wait for what it returns or raises.

        Args:
            work: the coroutine.
            timeout: seconds, or None for no limit.

        Raises:
            TimeoutError: the time ran out; the coroutine was cancelled.
            ClientError: this is the portal's own thread, which would wait for itself.
            ClientClosedError: the portal has ended.
            SystemExit, KeyboardInterrupt: what runs in the loop, such as a handler, has raised it;
                in the main thread only.

        Ctrl-C cancels the coroutine, waits a second for its end, and raises KeyboardInterrupt.
        """
        loop = self._usable(work)
        call = _Call(work)
        self._calls.add(call)
        try:
            in_time = self._ends(loop, call, timeout)
        except ClientClosedError:
            raise
        except BaseException:  # Ctrl-C, wherever it strikes
            self._give_up(loop, call)
            raise
        finally:
            self._calls.discard(call)
        if not in_time:
            raise TimeoutError(f"no result within {timeout} s")
        if self._exit is not None:
            if threading.current_thread() is threading.main_thread():
                raise self._exit
            raise ClientClosedError(ENDED) from self._exit
        result: T = call.result()
        return result

    def call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call a plain function in the loop's thread and wait for what it returns or raises."""

        async def called() -> T:
            return function(*arguments, **named)

        return self.run(called())

    def begin(self, make: Callable[[], asyncio.Future[T]]) -> concurrent.futures.Future[T]:
        """Call what gives a future, in the loop's thread; gives one that other threads can use.

        What the call raises is in the future, too.

        Raises:
            ClientClosedError: the portal has ended.
        """
        result: concurrent.futures.Future[T] = concurrent.futures.Future()
        loop = self._loop
        if loop is None:
            raise ClientClosedError(ENDED)

        def called() -> None:
            try:
                future = make()
            except Exception as error:
                if result.set_running_or_notify_cancel():
                    result.set_exception(error)
            else:
                future.add_done_callback(lambda done: _pass_on(done, result))

        try:
            loop.call_soon_threadsafe(called, context=contextvars.copy_context())
        except RuntimeError:
            raise ClientClosedError(ENDED) from None
        return result

    def soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a plain function in the loop's thread, without waiting for it.

        Once the portal has ended nothing is left to act on, so nothing is done.
        """
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(function, *arguments)

    def is_alive(self) -> bool:
        """Whether the loop can run calls: an exit in a handler ends it while objects hold it."""
        return self._thread.is_alive() and self._exit is None

    def _usable(self, work: Coroutine[Any, Any, Any]) -> asyncio.AbstractEventLoop:
        if threading.current_thread() is self._thread:
            work.close()
            raise ClientError(
                "a blocking call inside its own event loop would wait for itself: "
                "use a plain function as the handler, or the asyncio client"
            )
        if self._loop is None or not self.is_alive() or self._stop.is_set():
            work.close()
            raise ClientClosedError(ENDED) from self._exit
        return self._loop

    def _hand_over(self, loop: asyncio.AbstractEventLoop, call: _Call) -> None:
        context = contextvars.copy_context()
        try:
            loop.call_soon_threadsafe(call.begin, self._tasks, context=context)
        except RuntimeError:
            call.work.close()
            raise ClientClosedError(ENDED) from None

    def _ends(self, loop: asyncio.AbstractEventLoop, call: _Call, timeout: float | None) -> bool:
        """Start a call and wait for its end; False if it is late and was abandoned."""
        self._hand_over(loop, call)
        if _wait(call.ended, timeout):
            return True
        self._give_up(loop, call)
        return False

    def _give_up(self, loop: asyncio.AbstractEventLoop, call: _Call) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the call with it
            loop.call_soon_threadsafe(call.give_up)
            call.ended.wait(INTERRUPTED_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._until_stopped())
        except (SystemExit, KeyboardInterrupt) as error:
            self._exit = error
        finally:
            for call in list(self._calls):
                call.ended.set()

    async def _until_stopped(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        await self._stop.wait()
        await self._tasks.cancel()

    def _end(self) -> None:
        if self._loop is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop ends just now
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(END_S)

    def _acquire(self) -> None:
        self._holders += 1

    def _release(self) -> bool:
        self._holders -= 1
        return self._holders == 0


def _wait(ended: threading.Event, timeout: float | None) -> bool:
    """Wait for an event, in steps after which Ctrl-C is noticed; return whether it is set."""
    step_s = SYSTEM.wait_max_s()
    if step_s is None:
        return ended.wait(timeout)
    end_s = math.inf if timeout is None else time.monotonic() + timeout
    while not ended.wait(max(0.0, min(step_s, end_s - time.monotonic()))):
        if time.monotonic() >= end_s:
            return False
    return True


def _pass_on(done: asyncio.Future[T], result: concurrent.futures.Future[T]) -> None:
    error: BaseException | None = ClientClosedError("the call was cancelled")
    if not done.cancelled():
        error = done.exception()  # asyncio logs one that is not taken, also of a cancelled result
    if not result.set_running_or_notify_cancel():
        return
    if error is not None:
        result.set_exception(error)
    else:
        result.set_result(done.result())


class _Shared:
    """The portal of this process, while it is in use."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may come in between
        self.portal: Portal | None = None


_shared = _Shared()


def acquire_portal() -> Portal:
    """Return the portal of this process, which the first call opens; see `release_portal`."""
    with _shared.lock:
        if _shared.portal is None or not _shared.portal.is_alive():
            _shared.portal = Portal()
        _shared.portal._acquire()
        return _shared.portal


def release_portal(portal: Portal) -> None:
    """End the use of the portal; the last release ends it."""
    with _shared.lock:
        if not portal._release():
            return
        if _shared.portal is portal:
            _shared.portal = None
    portal._end()


def _forget_in_child() -> None:
    global _shared
    _shared = _Shared()


SYSTEM.after_fork(_forget_in_child)
