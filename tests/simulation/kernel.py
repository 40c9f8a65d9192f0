"""The event loop of a simulation: many processes in one thread, on virtual time.

A process is a context: every task and callback that it starts inherits it. So a process dies when
the handles of its context are cancelled, as a machine does: no `finally` and no `except` runs.
What a process does in threads is done in the loop at once.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from support.power_files import PowerCutError
from support.randomness import SeededRandomness

EPOCH_MS = 1_700_000_000_000


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


class _Selector(selectors.BaseSelector):
    """Has no files; lets time pass instead of waiting."""

    def __init__(self) -> None:
        self.loop: SimulatedLoop

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def get_map(self) -> Any:
        return {}

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        raise KeyError(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("no timer is set: nothing will ever happen")
        if timeout > 0:
            self.loop.now_s += timeout
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """The event loop.

    Args:
        chance: what delays and faults are drawn from.
    """

    def __init__(self, chance: SeededRandomness) -> None:
        selector = _Selector()
        selector.loop = self
        self.now_s = 0.0
        self.chance = chance
        self.kept: list[asyncio.Task[Any]] = []
        """Tasks of processes that may die; their coroutines must not be closed in between."""
        self.readers: dict[int, tuple[Process | None, Callable[[], object]]] = {}
        self.network: Any = None
        self._dropped: list[tuple[Any, Any, Any]] = []
        self._is_ending = False
        super().__init__(selector)
        self.set_task_factory(_task)
        self.set_exception_handler(self._failed)
        self.failures: list[str] = []

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

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = super().call_soon(callback, *args, context=context)
        self._drop_if_dead(handle)
        return handle

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        self._drop_if_dead(handle)
        return handle

    def _drop_if_dead(self, handle: Any) -> None:
        """Cancel what would run in a process that is dead."""
        process = handle._context.get(PROCESS)
        if process is not None and process.is_dead and not self._is_ending:
            self._drop(handle)

    def _drop(self, handle: Any) -> None:
        self._dropped.append((handle._callback, handle._args, handle._context))
        handle.cancel()

    def forget(self, process: Process) -> None:
        """Cancel everything that a process has scheduled."""
        for handle in [*self._ready, *self._scheduled]:  # type: ignore[attr-defined]
            if not handle.cancelled() and handle._context.get(PROCESS) is process:
                self._drop(handle)
        for number in [n for n, (owner, _) in self.readers.items() if owner is process]:
            del self.readers[number]

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
        self.readers[fd] = PROCESS.get(), callback

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

    async def create_server(self, factory: Any, *, sock: Any, **_: Any) -> Any:  # type: ignore[override]
        sock.factory = factory
        return sock


def _task(loop: Any, work: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    loop.kept.append(task)
    return task
