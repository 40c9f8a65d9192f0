"""A whole broker in one thread, on a disk and a clock of the test.

Its event loop never waits: when nothing is ready, the clock advances to the next timer. What a
broker does in threads is done in the loop. So a run is the same each time, and takes no longer than
its work. When the disk loses its power the run ends at once, and so do all tasks of the process.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import selectors
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cometmq.broker import opening
from cometmq.broker.app import SETTINGS, Broker
from cometmq.broker.durability import feature as durability
from cometmq.broker.durability.group_commit import GroupCommit
from cometmq.remoting import Connection, RemotingSettings, RequestHandler, Supervisor
from cometmq.store import MessageStore, StoreSettings
from cometmq.system.configuration import load
from cometmq.system.rocketmq_keys import BROKER_KEYS
from support.checks.manual_clock import ManualClock
from support.stores.power_files import PowerCutError, PowerFiles
from support.wire.memory_link import join

ROOT = Path("/store")
SMALL = {
    "brokerName": "a",
    "brokerIP1": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "listenPort": "0",
    "fastPortEnable": "false",
    "storePathRootDir": str(ROOT),
    "mappedFileSizeCommitLog": str(16 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 50),
    "maxHashSlotNum": "16",
    "maxIndexNum": "64",
    "osPageCacheBusyTimeOutMills": "600000",
    "waitTimeMillsInSendQueue": "600000",
}
"""Files so small that a few messages fill them; no request is refused on a busy machine."""

Work = Callable[[Broker], Awaitable[object]]


class _Selector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """Lets the clock advance instead of waiting, and ends a loop that has no power."""

    def __init__(self, clock: ManualClock, files: PowerFiles) -> None:
        super().__init__()
        self._clock = clock
        self._files = files
        self.is_ending = False
        """Whether the tasks of a process that has died are being ended."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._files.is_off and not self.is_ending:
            raise PowerCutError
        ready = super().select(0)
        if not ready and timeout != 0:
            if timeout is None:
                raise RuntimeError("no timer is set: nothing will ever happen")
            self._clock.advance(max(1, math.ceil(timeout * 1000)))
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """The event loop of a process on that clock; calls for threads run in it at once."""

    def __init__(self, clock: ManualClock, files: PowerFiles) -> None:
        self.clock = clock
        self.selector = _Selector(clock, files)
        super().__init__(self.selector)
        self.set_exception_handler(_log_unless_cut)

    def time(self) -> float:
        return self.clock.monotonic()

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, call: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        done = self.create_future()
        try:
            done.set_result(call(*args))
        except BaseException as problem:
            done.set_exception(problem)
        return done

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        """Clients come through `connect`, not through the listening socket."""

    def remove_reader(self, fd: Any) -> bool:
        return False


def _log_unless_cut(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), PowerCutError):
        loop.default_exception_handler(context)


class _CommitInLoop(GroupCommit):
    """Syncs in a later iteration of the loop."""

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def _begin(self) -> None:
        super()._begin()
        if self._running and self._loop is not None:
            self._loop.call_soon(self._sync)

    def _sync(self) -> None:
        self._requests.put(False)  # ends the run after this sync
        self._run()


def _store_in_loop(settings: StoreSettings, *, threaded: bool, **parts: Any) -> MessageStore:
    return MessageStore(settings, **parts)


@contextmanager
def one_thread(clock: ManualClock) -> Iterator[None]:
    """Let brokers that run within it have no threads and no time but that of the clock."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(durability, "GroupCommit", _CommitInLoop)
        patch.setattr(opening, "MessageStore", _store_in_loop)
        for module, name in _stopwatches():
            patch.setattr(module, name, clock.monotonic)
        yield


@functools.cache
def _stopwatches() -> list[tuple[ModuleType, str]]:
    """Where modules of ours have the functions that measure how long their work takes.

    Their namespaces are read: an attribute that a module lacks may load another one.
    """
    return [
        (module, name)
        for path, module in sys.modules.items()
        for name in ("monotonic", "perf_counter")
        if path.startswith("cometmq.") and vars(module).get(name) is getattr(time, name)
    ]


class _Errors(logging.Handler):
    """Keeps what a broker logs as an error while it has power: nothing it does here may fail."""

    def __init__(self, files: PowerFiles) -> None:
        super().__init__(logging.ERROR)
        self._files = files
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not self._files.is_off:
            self.texts.append(self.format(record))


@contextmanager
def _without_errors(files: PowerFiles) -> Iterator[None]:
    """Fail at the end if an error was logged."""
    errors, logger = _Errors(files), logging.getLogger("cometmq")
    logger.addHandler(errors)
    try:
        yield
    finally:
        logger.removeHandler(errors)
    assert not errors.texts, "\n".join(errors.texts)


def run_broker(
    files: PowerFiles, clock: ManualClock, settings: Mapping[str, str], work: Work
) -> bool:
    """Start a broker, let ``work`` use it, and stop it; return False if the power was cut.

    The caller sets when the power is cut, and decides what the disk has kept.
    """
    configuration = load(SETTINGS, known_keys=BROKER_KEYS, command_line=SMALL | dict(settings))
    broker = Broker(configuration, clock=clock, files=files)
    loop = SimulatedLoop(clock, files)
    try:
        with one_thread(clock), _without_errors(files):
            loop.run_until_complete(_serve(broker, work))
    except PowerCutError:
        return False
    finally:
        _end(loop, broker)
    return True


async def _serve(broker: Broker, work: Work) -> None:
    await broker.start()
    await work(broker)
    await broker.stop()


def _end(loop: SimulatedLoop, broker: Broker) -> None:
    """End what a process that died, or whose work failed, has left."""
    loop.selector.is_ending = True
    loop.call_soon(loop.stop)
    loop.run_forever()  # also if the main task has ended since, which stops the loop
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(_all(tasks))
    if broker.is_open:
        broker.listening.stop_accepting()
        broker.features.replication.master.stop_accepting()
    loop.close()


async def _all(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


def connect(broker: Broker, handlers: Mapping[int, RequestHandler]) -> Connection:
    """Return the client's end of a new connection to a broker that runs in this loop."""
    settings = RemotingSettings()
    client = Connection(handlers, settings=settings, supervisor=Supervisor("client"))
    join(broker.listening.servers[0]._connection(), client)
    return client
