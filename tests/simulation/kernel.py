"""The event loop of a simulation: many processes in one thread, on virtual time.

A process is a context: every task and callback that it starts inherits it. So a process dies when
the handles of its context are cancelled, as a machine does: no `finally` and no `except` runs.
What a process does in threads is done in the loop at once.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any

from support.checks.randomness import SeededRandomness
from support.stores.power_files import PowerCutError

EPOCH_MS = 1_700_000_000_000
RESOLUTION_S = time.get_clock_info("monotonic").resolution
"""Timers so near to each other are due at the same time."""
UNCLOSED = "ignore:unclosed :ResourceWarning"
"""A filter of warnings: a process that died has closed no client. A collection notices it, which
Python 3.14 begins at other times than older ones."""


class Process:
    """One process of the simulated cluster.

    Args:
        loop: the time and the network.
        name: for the history.
        ip: its address.
        ahead_ms: how far its wall clock is ahead of the true time.
    """

    def __init__(self, loop: SimulatedLoop, name: str, ip: str, ahead_ms: int = 0) -> None:
        self.loop = loop
        self.name = name
        self.ip = ip
        self.ahead_ms = ahead_ms
        self.is_dead = False
        self.slow_sync_s = 0.0
        """How much longer than usual a sync of its disk takes at most."""
        self.write_batch: Any = None
        """What the connections of a process share."""
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)
        self.on_death: list[Callable[[], None]] = []

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a part of this process."""
        task = self.loop.create_task(work, context=self.context)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not self.is_dead and not task.cancelled() and task.exception() is not None:
            self.loop.failures.append(f"{self.name} failed: {task.exception()!r}")

    def die(self) -> None:
        """End the process between two of its callbacks."""
        if self.is_dead:
            return
        self.is_dead = True
        self.loop.forget(self)
        for call in self.on_death:
            call()

    # --- Clock ----------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the wall clock of the process's machine."""
        return EPOCH_MS + self.ahead_ms + int(self.loop.now_s * 1000)

    def monotonic(self) -> float:
        """Return the time of the loop."""
        return self.loop.now_s

    def since_boot(self) -> float:
        """Return the same: no machine is suspended."""
        return self.loop.now_s


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class _Handle:
    """A callback that waits for its turn."""

    __slots__ = ("args", "callback", "context")

    def __init__(self, callback: Any, args: Any, context: contextvars.Context) -> None:
        self.callback = callback
        self.args = args
        self.context = context

    def cancel(self) -> None:
        self.callback = self.args = None

    def cancelled(self) -> bool:
        return self.callback is None


class _Timer(_Handle):
    """A callback that waits for its time.

    The heap has pairs of a time and a timer. All timers are equal, so only the times are compared.
    """

    __slots__ = ("is_scheduled", "loop")

    def __init__(
        self, callback: Any, args: Any, context: contextvars.Context, loop: SimulatedLoop
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.loop = loop
        self.is_scheduled = True

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return id(self)

    def cancel(self) -> None:
        if self.callback is not None and self.is_scheduled:
            self.loop.cancelled_timers += 1
        self.callback = self.args = None


class SimulatedLoop(asyncio.BaseEventLoop):
    """The event loop: the order of asyncio's own, without what only real time and files need.

    Args:
        chance: what delays and faults are drawn from.
    """

    def __init__(self, chance: SeededRandomness) -> None:
        super().__init__()
        self.now_s = 0.0
        self.chance = chance
        self.kept: list[asyncio.Task[Any]] = []
        """Tasks of processes that may die; their coroutines must not be closed in between."""
        self.readers: dict[int, tuple[Process | None, Callable[[], object]]] = {}
        self.network: Any = None
        self.cancelled_timers = 0
        """How many timers of the heap are cancelled."""
        self.failures: list[str] = []
        self._ready: deque[_Handle] = deque()
        self._scheduled: list[tuple[float, _Timer]] = []
        self._dropped: list[tuple[Any, Any, Any]] = []
        self._is_ending = False
        self.set_task_factory(_task)
        self.set_exception_handler(self._failed)

    def time(self) -> float:
        return self.now_s

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, call: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        done = self.create_future()
        try:
            done.set_result(call(*args))
        except BaseException as problem:
            done.set_exception(problem)
        return done

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_soon(callback, *args, context=context)

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        if context is None:
            context = contextvars.copy_context()
        handle = _Handle(callback, args, context)
        self._ready.append(handle)
        process = context.get(PROCESS)
        if process is not None and process.is_dead and not self._is_ending:
            self._drop(handle)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        if context is None:
            context = contextvars.copy_context()
        timer = _Timer(callback, args, context, self)
        heappush(self._scheduled, (when, timer))
        process = context.get(PROCESS)
        if process is not None and process.is_dead and not self._is_ending:
            self._drop(timer)
        return timer

    def _drop(self, handle: _Handle) -> None:
        """Cancel what would run in a process that is dead."""
        self._dropped.append((handle.callback, handle.args, handle.context))
        handle.cancel()

    def forget(self, process: Process) -> None:
        """Cancel everything that a process has scheduled."""
        for handle in [*self._ready, *(timer for _, timer in self._scheduled)]:
            if not handle.cancelled() and handle.context.get(PROCESS) is process:
                self._drop(handle)
        for number in [n for n, (owner, _) in self.readers.items() if owner is process]:
            del self.readers[number]

    def _run_once(self) -> None:
        """Run until the loop is stopped; time passes when there is nothing to do."""
        ready, popped = self._ready, self._ready.popleft
        while True:
            self._remove_cancelled_timers()
            if not ready and not self._stopping:  # type: ignore[attr-defined]
                if not self._scheduled:
                    raise RuntimeError("no timer is set: nothing will ever happen")
                self.now_s += max(0, self._scheduled[0][0] - self.now_s)
            scheduled, end_s = self._scheduled, self.now_s + RESOLUTION_S
            while scheduled and scheduled[0][0] < end_s:
                timer = heappop(scheduled)[1]
                timer.is_scheduled = False
                ready.append(timer)
            for _ in range(len(ready)):
                handle = popped()
                callback = handle.callback
                if callback is None:
                    continue
                try:
                    handle.context.run(callback, *handle.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as problem:
                    message = f"Exception in callback {callback}"
                    self.call_exception_handler({"message": message, "exception": problem})
            if self._stopping:  # type: ignore[attr-defined]
                return

    def _remove_cancelled_timers(self) -> None:
        """Keep the heap small, by asyncio's rule: it decides on the order of equal times."""
        scheduled = self._scheduled
        if len(scheduled) > 100 and self.cancelled_timers > len(scheduled) / 2:
            for _, timer in scheduled:
                timer.is_scheduled = not timer.cancelled()
            self._scheduled = [entry for entry in scheduled if entry[1].is_scheduled]
            heapify(self._scheduled)
            self.cancelled_timers = 0
            return
        while scheduled and scheduled[0][1].callback is None:
            self.cancelled_timers -= 1
            heappop(scheduled)[1].is_scheduled = False

    def end_tasks(self) -> None:
        """End what dead processes have left; nothing that it does reaches a disk or a network."""
        self._is_ending = True
        for _ in range(20):
            dropped, self._dropped = self._dropped, []
            for callback, args, context in dropped:
                self.call_soon(callback, *args, context=context)
            left = [task for task in self.kept if not task.done()]
            if not left:
                return
            for task in left:
                task.cancel()
            self.run_until_complete(asyncio.wait(left, timeout=0.01))
        raise RuntimeError(f"tasks do not end: {left[:3]}")

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), PowerCutError):
            self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    # --- sockets --------------------------------------------------------------------------------

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        self.readers[fd] = PROCESS.get(), partial(callback, *args)

    def remove_reader(self, fd: Any) -> bool:
        return self.readers.pop(fd, None) is not None

    def is_gone(self) -> bool:
        """Whether the process that runs now has died in this very callback."""
        process = PROCESS.get()
        return process is not None and process.is_dead

    async def create_connection(
        self, factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:  # type: ignore[override]
        return await self.network.connect(factory, host, port)

    async def connect_accepted_socket(self, factory: Any, sock: Any, **_: Any) -> Any:  # type: ignore[override]
        return self.network.accepted(factory, sock)


def _task(loop: Any, work: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    loop.kept.append(task)
    return task
