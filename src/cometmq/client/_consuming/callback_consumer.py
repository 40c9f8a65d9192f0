"""The base of consumers that call a handler."""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import timedelta

from cometmq.client._callbacks import is_generator
from cometmq.client._consuming.consumer import SubscribingConsumer
from cometmq.client._consuming.engine import ABORT_S, Engine
from cometmq.client._consuming.request_handlers import RequestHandlers, common_properties
from cometmq.client._hints import WrongCallError
from cometmq.client._lifecycle import in_background
from cometmq.client.errors import ClientClosedError
from cometmq.client.settings import PopSettings, PushSettings
from cometmq.model.arguments import check_parameters
from cometmq.model.errors import ConfigError
from cometmq.model.queue import MessageQueue
from cometmq.model.times import timeout_s
from cometmq.protocol.bodies.client import ConsumerRunningInfo
from cometmq.system.platforms import SYSTEM

log = logging.getLogger(__name__)


class _SignalHandlers:
    """The signal handlers of one event loop, which all its consumers share."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.callbacks: list[Callable[[], None]] = []
        self.restore = SYSTEM.on_signals(loop, self._call_all)
        """Sets the handlers that were there before."""

    def _call_all(self) -> None:
        for callback in list(self.callbacks):
            callback()


_handlers: dict[asyncio.AbstractEventLoop, _SignalHandlers] = {}


@contextmanager
def stop_signals(callback: Callable[[], None]) -> Iterator[None]:
    """Call ``callback`` on each SIGTERM and SIGINT within a ``with`` block.

    The first block of an event loop sets signal handlers, the last one restores those before.
    Outside the main thread, and in event loops without signal support, nothing is called.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    handlers = _handlers.get(loop)
    if handlers is None:
        handlers = _handlers[loop] = _SignalHandlers(loop)
    handlers.callbacks.append(callback)
    try:
        yield
    finally:
        handlers.callbacks.remove(callback)
        if not handlers.callbacks:
            del _handlers[loop]
            handlers.restore()


CONCURRENCY_MAX = 1000
RELEASE_SHARE = 0.2
"""The part of the time for a drain that is left for offsets, locks and unregistration."""
RELEASE_S_MAX = 5.0


def check_handler(
    group: str, handler: object, batch_handler: object, options: Mapping[str, object]
) -> None:
    """Check that there is one handler, which can be called as the consumer calls it.

    A handler that cannot be called would fail for each message until all are dead letters.

    Raises:
        ConfigError: there is not exactly one, it takes other arguments, it is a generator
            function, or a batch has a size and no handler.
    """
    if handler is None and batch_handler is None:
        raise WrongCallError(f"consumer {group}: no handler, expected handler= or batch_handler=")
    if handler is not None and batch_handler is not None:
        raise ConfigError(f"consumer {group}: give either a handler or a batch_handler")
    if handler is not None and options.get("batch_max", 1) != 1:
        raise ConfigError(
            f"consumer {group}: batch_max={options['batch_max']!r} beside handler, which takes one "
            "message: expected batch_handler, which takes messages and a context"
        )
    name, given, arguments = "handler", handler, ["message"]
    if batch_handler is not None:
        name, given, arguments = "batch_handler", batch_handler, ["messages", "context"]
    if not callable(given):
        raise ConfigError(f"consumer {group}: {name}={given!r}: expected a function")
    if is_generator(given):
        raise ConfigError(
            f"consumer {group}: {name} is a generator function, whose body would not run: expected "
            "a function without yield"
        )
    check_parameters(f"consumer {group}: {name}", given, arguments)


class CallbackConsumer(SubscribingConsumer):
    """The base of consumers that call a handler."""

    _settings: PushSettings | PopSettings
    _engine: Engine
    _requests: RequestHandlers
    _grace_s: float | None = None
    """Seconds for running handlers at the close; None for the setting ``stop_ms``."""
    _graceful = True
    _signalled = False

    async def run(self, timeout: float | timedelta = 25.0, *, signals: bool = True) -> None:
        """Consume until SIGTERM or SIGINT, or until `close`, and then close. Starts if needed.

        On a signal the consumer fetches no more, waits for running handlers, commits offsets,
        releases locks and unregisters, all within ``timeout``. Handlers have the first four fifths
        of that time, at least all but 5 s, and are cancelled then; their messages are redelivered.
        A second signal closes at once. Cancelling the call closes like a signal.

        All consumers that run in one event loop receive the signals. Outside the main thread
        signals are not handled. Signal handlers that were set before are restored, except those
        of ``loop.add_signal_handler``. A plain handler that never returns keeps the process alive.
        Without subscriptions it waits until `subscribe` is called, and logs a warning.

        Args:
            timeout: seconds, or a timedelta, to close after a signal: less than the time until the
                process is killed (Kubernetes: 30 s).
            signals: whether SIGTERM and SIGINT are handled. False in a program that handles them
                itself, such as a web server: call `close`, or cancel the call, when it ends.

        Raises:
            Exception: the consumer failed and could not go on; or what `start` raises, or
                the error of the ``offset_store``.

        Example: ``await PushConsumer(..., handler=bill).run()``
        """
        limit_s = timeout_s(timeout)
        self._grace_s = max(limit_s - min(limit_s * RELEASE_SHARE, RELEASE_S_MAX), 0.0)
        if not self._signalled:
            self._check_open()
        with stop_signals(self._on_signal) if signals else nullcontext():
            try:
                await self.start()
                if not self._subscriptions.announced():
                    log.warning(
                        "%s runs without subscriptions: give topic= or call subscribe",
                        self._owner,
                    )
                await self._wait_unless_ended()
            except ClientClosedError:
                if not (self._signalled or self._started):  # a close ends a run that has started
                    raise
            finally:
                await self._drain(limit_s)
        if self.failure is not None:
            raise self.failure
        if self._begin_close().done():
            await super().close()  # raises the error of the close

    def _on_signal(self) -> None:
        log.info(
            "%s received a signal and closes%s",
            self._owner,
            " at once" if self._signalled else "",
        )
        if self._signalled:
            self._abort_soon()
        self._signalled = True
        self._begin_close()

    async def _drain(self, timeout: float) -> None:
        """Close within a time; if the call is cancelled meanwhile, at once."""
        closing = self._begin_close()
        try:
            await asyncio.wait([closing], timeout=timeout)
        except asyncio.CancelledError:
            self._abort_soon()
            await asyncio.wait([closing], timeout=timeout)
            raise
        if not closing.done():
            log.warning("%s is not closed after %.1f s", self._owner, timeout)

    def _abort_soon(self) -> None:
        self._check_loop_to_close()
        self._graceful = False
        if self._close_task is not None:
            in_background(self._engine.service.stop(grace_s=0), f"{self._owner}.abort")

    async def close(self) -> None:
        """Stop consuming and leave the group. Further calls only wait for the end.

        No message is fetched. Running handlers have ``stop_ms`` to return and are cancelled after
        that. Messages that no handler has received are delivered to other members. Cancelling
        stops the waiting, not the closing.

        Called by a handler, it begins the close and returns at once: the close waits for that
        handler as for the others, and its result counts. A task that the handler makes waits, as
        does a call from a thread: a handler that waits for them is cancelled after ``stop_ms``.

        An error of the offset store is raised once, after everything else is closed.
        """
        if self._engine.service.runs_handlers(asyncio.current_task()):
            self._begin_close()
        else:
            await super().close()

    async def abort(self) -> None:
        """Stop at once: cancel the handlers. Their messages are redelivered."""
        self._check_loop_to_close()
        self._graceful = False
        if self._close_task is not None and not self._close_task.done():
            await self._engine.service.stop(grace_s=0)
        await asyncio.shield(self._begin_close())

    async def _start(self) -> None:
        await self._connect()
        await self._engine.load()
        self._retain_traces()
        self._requests.open()
        await self._join()
        await self._engine.start()
        self._check.start(self._tasks)

    async def _close(self) -> None:
        self._requests.close()
        hard = not (self._graceful and self._started)
        step_s = ABORT_S if hard else self._instance.settings.call_timeout_ms / 1000
        error = None
        try:
            grace_s = self._settings.stop_ms / 1000 if self._grace_s is None else self._grace_s
            grace_s = 0.0 if hard else grace_s
            error = await self._engine.stop(grace_s=grace_s, step_s=step_s, hard=hard)
        finally:
            await self._release()
        if error is not None and not hard:
            raise error

    async def _until_assigned(self) -> None:
        await self._engine.until_assigned()

    def _missing(self) -> str:
        return self._without_route(self._subscriptions.announced())

    def _failures(self) -> list[str]:
        return self._engine.failures()

    def _subscriptions_changed(self) -> None:
        self._engine.rebalance()

    @property
    def suspended(self) -> bool:
        """Whether no messages are fetched."""
        return self._engine.suspended

    def suspend(self) -> None:
        """Stop fetching until `resume`. Messages that are already fetched are still handled."""
        self._check_open()
        self._engine.suspend()

    def resume(self) -> None:
        """Fetch again."""
        self._check_open()
        self._engine.resume()

    def set_concurrency(self, count: int) -> None:
        """Change the number of handler calls that run at a time. Running calls continue.

        Raises:
            ConfigError: the number is not from 1 to 1,000.
        """
        self._check_open()
        if not 1 <= count <= CONCURRENCY_MAX:
            raise ConfigError(f"concurrency {count}: expected 1 to {CONCURRENCY_MAX}")
        self._engine.set_concurrency(count)

    @abstractmethod
    def queues(self) -> list[MessageQueue]:
        """Return the assigned queues."""

    def running_info(self) -> ConsumerRunningInfo:
        """Return this consumer's settings, queues and rates, as administrators see them."""
        engine = self._engine
        return ConsumerRunningInfo(
            properties=common_properties(
                self._instance,
                self._settings,
                group=engine.group,
                concurrency=engine.concurrency,
                started_ms=engine.started_ms,
                ordered=engine.spec.ordered,
            ),
            subscription_set=self._subscriptions.data(),
            status_table={
                topic: engine.statistics.status(topic) for topic in self._subscriptions.topics()
            },
        )
