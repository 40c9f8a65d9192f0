"""The bases of the blocking classes: what is not generated from the asyncio classes.

A blocking object holds an asyncio object, and the portal that runs it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, Unpack

import cometmq.client as asynchronous
from cometmq.client._connection.name_servers import HasNameServers
from cometmq.client._hints import Hints
from cometmq.client._lifecycle import Lifecycle
from cometmq.client._pull.positions import read_as
from cometmq.client._sending.outgoing import copy_message
from cometmq.client.blocking.portal import Portal, acquire_portal, release_portal
from cometmq.client.errors import ClientClosedError
from cometmq.client.options import ConnectionOptions
from cometmq.client.settings import ClientSettings, read_tables, resolve_settings
from cometmq.model.errors import ConfigError
from cometmq.model.message import Message, StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.system.platforms import SYSTEM

T = TypeVar("T")


class Blocking(Hints):
    """Starts on entering ``with``, and closes on leaving it.

    Any thread may call it, except a thread that runs ``async def`` handlers. Ctrl-C during a call
    cancels the call.
    """

    _inner: Lifecycle | asynchronous.ClientInstance

    def __init__(self, inner: Lifecycle | asynchronous.ClientInstance) -> None:
        self._inner = inner
        self._portal: Portal | None = None
        # Re-entrant: a signal handler may close the object in the middle of its start or close.
        self._starting = threading.RLock()
        self._holding = threading.RLock()

    def start(self) -> None:
        """Make the object ready for use."""
        with self._starting:
            if self._portal is not None:
                return
            portal = self._portal = acquire_portal()
            try:
                portal.run(self._inner.start())
            except BaseException:
                self._release_portal(portal)
                raise

    def close(self) -> None:
        """Close the object; further calls do nothing.

        In a transaction listener: begin the close of its producer, and return. Another thread must
        call it, too, to wait for the end.
        """
        portal, inner = self._portal, self._inner
        if portal is None:
            return
        if isinstance(inner, asynchronous.TransactionProducer) and inner._runs_here():
            portal.call(inner._begin_close)
            return
        try:
            if portal.is_alive():  # an exit in a handler has ended the loop with all that was open
                portal.run(self._inner.close())
        except asynchronous.ClientClosedError:
            if self._portal is portal and portal.is_alive():  # else another thread closed it
                raise
        finally:
            self._release_portal(portal)

    def _release_portal(self, portal: Portal) -> None:
        """Hold the portal no longer, however many threads close the object."""
        with self._holding:
            if self._portal is not portal:
                return
            self._portal = None
        release_portal(portal)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            portal, inner = self._portal, self._inner
            is_open = portal is not None and portal.is_alive() and inner.running
            if error is None and is_open and isinstance(inner, Lifecycle):
                assert portal is not None
                portal.run(inner._finish_work())
        finally:
            self.close()

    if not TYPE_CHECKING:

        async def __aenter__(self) -> NoReturn:
            name = type(self).__name__
            raise TypeError(f"this {name} blocks: write `with`, or use cometmq.client.{name}")

        async def __aexit__(self, *error: object) -> None:
            """Exist, so that `async with` calls `__aenter__`."""

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the asyncio object, and wait for it.

        One that was not started, or was closed, says so by itself where that matters.
        """
        portal = self._portal
        if portal is not None:
            return portal.run(work)
        portal = acquire_portal()
        try:
            return portal.run(work)
        finally:
            release_portal(portal)

    def _call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call a plain method of the asyncio object where it lives."""
        portal = self._portal
        if portal is None:
            return function(*arguments, **named)
        return portal.call(function, *arguments, **named)

    def _begin(
        self, function: Callable[..., asyncio.Future[T]], *arguments: Any, **named: Any
    ) -> concurrent.futures.Future[T]:
        """Call a method that gives a future, and do not wait for it.

        Messages are copied, since the caller may change them before the call is made.
        """
        portal = self._portal
        if portal is None:
            raise ClientClosedError(f"this {type(self).__name__} is not running: start it first")
        given = [copy_message(each) if isinstance(each, Message) else each for each in arguments]
        return portal.begin(lambda: function(*given, **named))

    def _begin_when_ready(
        self,
        function: Callable[..., Coroutine[Any, Any, asyncio.Future[T]]],
        *arguments: Any,
        **named: Any,
    ) -> concurrent.futures.Future[T]:
        """Wait for a coroutine that returns a future, and do not wait for the future."""
        started = self._run(function(*arguments, **named))
        return self._begin(lambda: started)


class ClientInstance(Blocking):
    """The connections of one client, like `cometmq.client.ClientInstance`.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses.
        settings: the client's settings.
        config: a TOML file with a table ``[client]``.
        options: settings of `ClientSettings` by name.

    Example:
        ``with ClientInstance("127.0.0.1:9876") as instance:``
        ``    with Producer(instance=instance, group="billing") as producer: ...``
    """

    _inner: asynchronous.ClientInstance

    def __init__(
        self,
        name_servers: str | Sequence[str] | HasNameServers = "",
        *,
        settings: ClientSettings | None = None,
        config: Path | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        tables = read_tables(config) if config else None
        used = resolve_settings(ClientSettings, keywords=options, given=settings, tables=tables)
        super().__init__(asynchronous.ClientInstance(name_servers, settings=used))

    @property
    def client_id(self) -> str:
        """The id of this client at the brokers."""
        return self._inner.client_id


def inner_instance(instance: ClientInstance | None) -> asynchronous.ClientInstance | None:
    """Return the asyncio object behind an instance.

    Raises:
        ConfigError: it is something else, such as an asyncio object.
    """
    if not isinstance(instance, ClientInstance | None):
        raise ConfigError(
            f"instance={instance!r}: expected a ClientInstance of cometmq.client.blocking"
        )
    return None if instance is None else instance._inner


class CallbackConsumer(Blocking):
    """A consumer that calls a handler."""

    NOTES = """
        Plain handlers run in threads and may use blocking objects. ``async def`` handlers run in
        the event loop and must not use them. In a handler, `close` begins the close and returns at
        once; another thread must call it, too, to wait for the end.
    """

    _inner: asynchronous.PushConsumer | asynchronous.PopConsumer

    def run(self, timeout: float | timedelta = 25.0, *, signals: bool = True) -> None:
        """Consume until SIGTERM or SIGINT, or until `close`, and then close within ``timeout``.

        Signals are handled in the main thread only, and not at all with ``signals=False``: then
        another thread calls `close`.
        """
        with self._starting:
            portal = self._portal = self._portal or acquire_portal()
        try:
            on_signal = _signals(lambda: portal.soon(self._inner._on_signal))
            with on_signal if signals else contextlib.nullcontext():
                self._run(self._inner.run(timeout, signals=signals))
        finally:
            self.close()

    def close(self) -> None:
        """Close the object; further calls do nothing. In a handler: begin the close, and return."""
        if self._inner._engine.handling.runs_here():
            self._call(self._inner._begin_close)
        else:
            super().close()

    def abort(self) -> None:
        """Stop at once: cancel the handlers. Their messages are redelivered."""
        if self._portal is not None:
            self._run(self._inner.abort())
        super().close()


@contextlib.contextmanager
def _signals(callback: Callable[[], None]) -> Iterator[None]:
    """Call ``callback`` on each signal that stops a consumer, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, lambda *_: callback()) for each in SYSTEM.STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class Reader(Blocking):
    """A consumer whose threads request messages."""

    NOTES = """
        Several threads may read. Each message goes to one of them, and each thread finishes its
        own. If a thread ends, its unfinished messages are redelivered, unless they are committed.
        Ctrl-C during a wait for messages loses no message.
    """

    _inner: asynchronous.PullConsumer

    def __iter__(self) -> Iterator[StoredMessage]:
        return self

    def __next__(self) -> StoredMessage:
        """Wait for the next message of any queue; messages of a queue come in order."""
        found = self._uninterrupted(_next, self._inner)
        if found is None:
            raise StopIteration
        return found

    def poll(self, timeout: float | timedelta = 5.0) -> list[StoredMessage]:
        """Return the fetched messages of one queue, or wait for messages."""
        return self._uninterrupted(self._inner.poll, timeout)

    def commit(
        self, offsets: Mapping[MessageQueue, int] | Iterable[MessageQueue] | None = None
    ) -> None:
        """Commit offsets."""
        self._read(self._inner.commit, offsets)

    def take_back(self) -> None:
        """Redeliver the messages that this thread received last: they are not consumed."""
        self._read(_take_back, self._inner)

    def _uninterrupted(self, call: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Wait for messages; messages that arrive during an interrupted wait are redelivered."""
        try:
            return self._read(call, *arguments)
        except KeyboardInterrupt:
            self.take_back()
            raise

    def _read(self, call: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Make a call that concerns the messages of this thread."""
        return self._run(read_as(threading.current_thread(), call, *arguments))


async def _next(consumer: asynchronous.PullConsumer) -> StoredMessage | None:
    return await anext(consumer, None)


async def _take_back(consumer: asynchronous.PullConsumer) -> None:
    consumer.take_back()
