"""A loop that code without a loop uses as if calls were plain.

All blocking objects of a process share one portal: the first that starts opens it, the last that
closes ends it. A forked child opens its own.

The loop runs in one thread at a time. That is the portal's own thread at first. While calls follow
each other closely, the threads that make them run the loop: two switches of threads for each call
cost more than most calls. Then the portal's thread stays away until no thread runs the loop.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` adds takes longer than a swap of all handlers
import asyncio
import concurrent.futures
import contextlib
import contextvars
import math
import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cometmq.client.errors import ClientClosedError, ClientError
from cometmq.system.platforms import SYSTEM

T = TypeVar("T")

_SIGNALS = tuple(map(int, signal.valid_signals()))

INTERRUPTED_S = 1.0
"""How long a call that was interrupted or ran out of time may take to end in the loop."""
END_S = 5.0
"""How long the thread may take to end."""
AWAY_S = 0.002
"""For how long no thread may run the loop; calls follow closely if the pauses are shorter."""
HUB_AWAY_S = 0.25
"""The same while another event loop watches this one; see `Portal.step`."""
STEP_S = 0.01
"""The longest step."""
BATON_S = 0.1
"""How long a step waits for another thread to stop the loop; signals are deferred meanwhile."""
UNPOLLED_MAX = 3
"""Rounds of the loop, in a row, that do not ask the kernel what has arrived."""
ENDED = "the event loop of the blocking client has ended: create and start a new object"


class _Call:
    """One coroutine on its way through the loop."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self.work = work
        self.task: asyncio.Task[Any] | None = None
        self.ended = threading.Event()
        self.began_s = time.monotonic()
        self.is_driven = False
        """Whether the calling thread runs the loop until the call ends."""
        self._given_up = False

    def begin(self, loop: asyncio.AbstractEventLoop, on_end: Callable[[_Call], None]) -> None:
        self.task = loop.create_task(self.work)
        self.task.add_done_callback(lambda _: on_end(self))
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


class _Signals:
    """Defers the handlers of signals while the main thread runs the loop.

    An exception of a handler would end what the loop just runs, and a handler may make calls.
    """

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop = stop
        self._handlers: dict[int, Callable[..., object]] = {}
        self._received: list[int] = []
        self._pid = 0
        """The process that defers; 0 for none."""

    def defer(self) -> None:
        self._pid, note = os.getpid(), self._note
        for number in _SIGNALS:
            handler = _signal.getsignal(number)
            if callable(handler) and handler != note:
                self._handlers[number] = handler
                _signal.signal(number, note)

    def _note(self, number: int, frame: object) -> None:
        if self._pid != os.getpid():  # a child, forked by another thread meanwhile
            self._handlers[number](number, frame)
            return
        self._received.append(number)
        self._stop()

    def restore(self) -> None:
        self._pid = 0
        for number, handler in self._handlers.items():
            if _signal.getsignal(number) == self._note:
                _signal.signal(number, handler)
        received, self._received = self._received, []
        for number in received:
            signal.raise_signal(number)


class Portal:
    """Runs coroutines in a loop that threads share. Made by `acquire_portal`, not by itself."""

    def __init__(self) -> None:
        self._holders = 0
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._exit: BaseException | None = None
        """The `SystemExit` or `KeyboardInterrupt` that has ended the loop."""
        self._calls: set[_Call] = set()
        self._baton = threading.Lock()
        """Held by the thread that runs the loop."""
        self._driver = 0
        """This thread; 0 for none."""
        self._runs = 0
        """How often other threads than the portal's have run the loop."""
        self._ended_s = -math.inf
        """When the last call has ended."""
        self._is_ending = False
        self._is_needed = False
        """Whether the portal's thread is to run the loop at once."""
        self._waits_for_leave = False
        self._return = threading.Event()
        """Wakes the portal's thread while it stays away."""
        self._hubs = 0
        self._polls_left = 0
        self._step_until: float | None = None
        """Until when the step may last that runs now."""
        self._step_pause = math.inf
        """For how long the loop had nothing to do at the end of the last step."""
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
        """Call a plain function in the loop and wait for what it returns or raises."""

        async def called() -> T:
            return function(*arguments, **named)

        return self.run(called())

    def begin(self, make: Callable[[], asyncio.Future[T]]) -> concurrent.futures.Future[T]:
        """Call what gives a future, in the loop; gives one that other threads can use.

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
        """Call a plain function in the loop, without waiting for it.

        Once the portal has ended nothing is left to act on, so nothing is done.
        """
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(function, *arguments)

    def is_alive(self) -> bool:
        """Whether the loop can run calls: an exit in a handler ends it while objects hold it."""
        return self._thread.is_alive() and self._exit is None

    # --- another event loop that watches this one -----------------------------------------------

    def join(self) -> int | None:
        """Let another event loop run this one by steps.

        Returns:
            The descriptor that is readable when there is something to do; None if there is none,
            so that the portal's thread runs the loop as ever.
        """
        if not isinstance(self._loop, _Loop):
            return None
        try:
            descriptor: int = self._loop.selector.fileno()
        except AttributeError:  # a selector that gevent has replaced
            return None
        self._hubs += 1
        return descriptor

    def leave(self) -> None:
        """Run by steps no longer."""
        self._hubs -= 1
        self._call_back()

    def step(self, function: Callable[[], object] | None = None) -> float:
        """Call a function in the loop, and run the loop in this thread while it need not wait.

        Returns:
            For how many seconds there will be nothing to do, unless the descriptor is readable.
        """
        loop, self._step_pause = self._loop, math.inf
        if loop is None or self._is_ending:
            return math.inf

        def take() -> bool:
            if not self._baton.acquire(blocking=False):
                if self._driver != self._thread.ident:
                    return False  # that thread does it
                loop.call_soon_threadsafe(loop.stop)
                if not self._baton.acquire(timeout=BATON_S):  # that thread may take it again
                    return False
            if function is not None:
                loop.call_soon(function)
            self._step_until = time.monotonic() + STEP_S
            return True

        if not (self._may_drive() and self._run_here(take)) and function is not None:
            self.soon(function)
        return self._step_pause

    def _select(self, wait: Callable[[float | None], list[Any]], timeout: float | None) -> Any:
        """Wait for what the loop waits for; in a step, end it instead."""
        if timeout == 0 and self._polls_left:  # the loop has other things to do
            self._polls_left -= 1
            return []
        self._polls_left, until = UNPOLLED_MAX, self._step_until
        if until is None:
            return wait(timeout)
        found = wait(0)
        is_idle = timeout != 0 and not found
        if is_idle or time.monotonic() > until:
            if not is_idle:
                self._step_pause = 0.0
            elif timeout is not None:
                self._step_pause = timeout
            assert self._loop is not None
            self._loop.stop()
        return found

    # --- calls ----------------------------------------------------------------------------------

    def _usable(self, work: Coroutine[Any, Any, Any]) -> asyncio.AbstractEventLoop:
        if self._driver == threading.get_ident():
            work.close()
            raise ClientError(
                "a blocking call inside its own event loop would wait for itself: "
                "use a plain function as the handler, or the asyncio client"
            )
        if self._loop is None or not self.is_alive() or self._is_ending:
            work.close()
            raise ClientClosedError(ENDED) from self._exit
        return self._loop

    def _may_drive(self) -> bool:
        """Whether this thread can run the loop: it runs no other one."""
        return isinstance(self._loop, _Loop) and asyncio._get_running_loop() is None

    def _hand_over(self, loop: asyncio.AbstractEventLoop, call: _Call) -> None:
        context = contextvars.copy_context()
        try:
            loop.call_soon_threadsafe(call.begin, loop, self._ended, context=context)
        except RuntimeError:
            call.work.close()
            raise ClientClosedError(ENDED) from None

    def _ends(self, loop: asyncio.AbstractEventLoop, call: _Call, timeout: float | None) -> bool:
        """Start a call and wait for its end; False if it is late and was abandoned."""
        until = None if timeout is None else time.monotonic() + timeout
        if not (self._may_drive() and self._drive(loop, call, until)):
            self._hand_over(loop, call)
        if _wait(call.ended, None if until is None else max(0.0, until - time.monotonic())):
            return True
        self._give_up(loop, call)
        return False

    def _drive(self, loop: asyncio.AbstractEventLoop, call: _Call, until: float | None) -> bool:
        """Begin a call, and run the loop until its end if no other thread does.

        Returns:
            Whether it is begun.
        """

        def take() -> bool:
            if self._baton.acquire(blocking=False):
                if not call.is_driven:
                    call.is_driven = True
                    call.begin(loop, self._ended)
                    if until is not None:
                        loop.call_later(until - time.monotonic(), loop.stop)
                if not call.ended.is_set():
                    return True
                self._baton.release()
            return False

        while self._run_here(take):
            is_late = until is not None and time.monotonic() >= until
            if call.ended.is_set() or is_late or self._is_ending:
                break
        return call.is_driven

    def _ended(self, call: _Call) -> None:
        """Note the end of a call. The portal's thread stays away if calls follow closely."""
        call.ended.set()
        pause_s, self._ended_s = call.began_s - self._ended_s, time.monotonic()
        is_stayed = self._driver == self._thread.ident
        follows = pause_s < AWAY_S and not self._has_calls() and isinstance(self._loop, _Loop)
        if (
            self._loop is not None
            and not self._is_ending
            and (follows if is_stayed else call.is_driven)
        ):
            self._loop.stop()

    def _has_calls(self) -> bool:
        return any(not call.ended.is_set() for call in list(self._calls))

    def _give_up(self, loop: asyncio.AbstractEventLoop, call: _Call) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the call with it
            self._call_back()
            loop.call_soon_threadsafe(call.give_up)
            call.ended.wait(INTERRUPTED_S)

    # --- who runs the loop ----------------------------------------------------------------------

    def _run_here(self, take: Callable[[], bool]) -> bool:
        """Run the loop in this thread until it is stopped, if ``take`` has taken the baton."""
        loop, signals = self._loop, None
        assert loop is not None
        if threading.current_thread() is threading.main_thread():
            signals = _Signals(lambda: loop.call_soon_threadsafe(loop.stop))
        try:
            if signals is not None:
                signals.defer()
            if not take():
                return False
            try:
                self._driver = threading.get_ident()
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                self._exit = error
            finally:
                self._step_until = None
                self._driver = 0
                self._runs += 1
                self._baton.release()
                if self._exit is not None or (not self._hubs and self._has_calls()):
                    self._call_back()
                elif self._waits_for_leave:
                    self._return.set()
        finally:
            if signals is not None:
                signals.restore()
        return True

    def _call_back(self) -> None:
        """Have the portal's thread run the loop, if no other thread does."""
        self._is_needed = True
        self._return.set()

    def _posted(self) -> None:
        """Another thread has something for the loop."""
        if not self._driver and not self._hubs:
            self._call_back()

    def _run(self) -> None:
        runner = asyncio.Runner(loop_factory=self._new_loop)
        loop = self._loop = runner.get_loop()
        self._ready.set()
        try:
            while not self._is_ending and self._exit is None:
                self._stay(loop)
                self._stay_away()
        finally:
            self._is_ending = True
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(loop.stop)
            with self._baton:
                self._driver = threading.get_ident()
                _take_stops(loop)
                runner.close()
            for call in list(self._calls):
                call.ended.set()

    def _stay(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the loop until other threads do."""
        with self._baton:
            self._driver = threading.get_ident()
            self._is_needed = False
            try:
                if not self._is_ending:
                    loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                self._exit = error
            finally:
                self._return.clear()
                self._driver = 0

    def _stay_away(self) -> None:
        """Return when no thread has run the loop for a moment, or this one is called back."""
        while not (self._is_needed or self._is_ending or self._exit is not None):
            runs = self._runs
            if not self._hubs and not self._driver and self._has_calls():
                return
            self._return.wait(HUB_AWAY_S if self._hubs else AWAY_S)
            if self._runs == runs and not self._return.is_set():
                if not self._driver:
                    return
                self._waits_for_leave = True  # a long call
                if self._driver:
                    self._return.wait()
                self._waits_for_leave = False
            self._return.clear()

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        if SYSTEM.wait_max_s() is not None:  # Windows, whose loop has no selector
            return asyncio.new_event_loop()
        return _Loop(self._select, self._posted)

    def _end(self) -> None:
        self._is_ending = True
        if self._loop is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop ends just now
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._return.set()
            self._thread.join(END_S)

    def _acquire(self) -> None:
        self._holders += 1

    def _release(self) -> bool:
        self._holders -= 1
        return self._holders == 0


class _Loop(asyncio.SelectorEventLoop):
    """A loop that several threads run in turn."""

    def __init__(
        self,
        select: Callable[[Callable[[float | None], list[Any]], float | None], Any],
        on_posted: Callable[[], None],
    ) -> None:
        self.selector: Any = selectors.DefaultSelector()
        wait = self.selector.select
        self.selector.select = lambda timeout=None: select(wait, timeout)  # type: ignore[method-assign]
        super().__init__(self.selector)
        self._on_posted = on_posted
        self._pid = os.getpid()

    def is_closed(self) -> bool:
        """Also true in a forked child, where a close would change what the parent waits for."""
        return self._pid != os.getpid() or super().is_closed()

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *arguments: Any, context: Any = None
    ) -> asyncio.Handle:
        """Call it in the loop, whichever thread runs it."""
        handle = super().call_soon_threadsafe(callback, *arguments, context=context)
        self._on_posted()
        return handle


def _take_stops(loop: asyncio.AbstractEventLoop) -> None:
    """Run up to the stops that no thread has seen: they would end the last run of the loop."""
    while True:
        loop.call_soon(loop.stop)
        with contextlib.suppress(SystemExit, KeyboardInterrupt):  # of further tasks
            return loop.run_forever()


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
