"""A handler whose writes are applied once for each key, even if messages are redelivered.

Each call opens a transaction, marks the message's key in it, calls the application's handler, and
commits. If the key is marked already, the message counts as consumed and the handler is not called.
If the handler raises or returns a result such as LATER, everything is rolled back, and the message
is redelivered.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from enum import Enum
from typing import Any, Protocol

from cometmq.client._callbacks import is_async, is_generator, unfinished
from cometmq.client.errors import KeyMissingError
from cometmq.client.handlers import Consumed, ConsumedInOrder
from cometmq.model.arguments import check_callable, check_parameters, check_provides
from cometmq.model.errors import CometError, ConfigError
from cometmq.model.message import StoredMessage
from cometmq.model.property_names import RETRY_TOPIC
from cometmq.model.topic import DLQ_PREFIX, RETRY_PREFIX


class TransactionEndedError(CometError):
    """A handler ended the store's transaction; its mark and its writes may differ.

    Args:
        where: the database.
    """

    def __init__(self, where: object) -> None:
        super().__init__(
            f"the handler ended the transaction of {where} itself; its mark and its writes may be "
            "apart now"
        )


class Transaction(Protocol):
    """One database transaction, for plain handlers."""

    def mark(self, group: str, key: str) -> bool:
        """Mark the key for the group; False if it is marked already."""


class AsyncTransaction(Protocol):
    """One database transaction, for ``async def`` handlers."""

    async def mark(self, group: str, key: str) -> bool:
        """Mark the key for the group; False if it is marked already."""


class MarkStore(Protocol):
    """Stores marks in the database that the application writes to."""

    def transaction(
        self,
    ) -> AbstractContextManager[Any] | AbstractAsyncContextManager[Any]:
        """Return a transaction that starts when it is entered.

        ``with`` returns a `Transaction`, ``async with`` an `AsyncTransaction`. Leaving it commits;
        leaving it with an exception rolls back. A store may offer one way or both.
        """


class FairLock:
    """A lock for threads and event loops, first come, first served. Any thread may release it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: deque[Future[None]] = deque()
        self._taken = False

    def wait(self, timeout: float) -> None:
        """Acquire the lock in a thread.

        Raises:
            TimeoutError: it was not released within ``timeout`` seconds.
        """
        with self._turn(timeout) as turn:
            turn.result(timeout)

    async def wait_in_loop(self, timeout: float) -> None:
        """Acquire the lock in an event loop; a cancelled call does not hold it.

        Raises:
            TimeoutError: it was not released within ``timeout`` seconds.
        """
        with self._turn(timeout) as turn:
            async with asyncio.timeout(timeout):
                await asyncio.wrap_future(turn)

    def give_back(self) -> None:
        """Release the lock to the first request that waits."""
        with self._mutex:
            while self._waiting:
                turn = self._waiting.popleft()
                if turn.set_running_or_notify_cancel():
                    turn.set_result(None)
                    return
            self._taken = False

    @contextmanager
    def _turn(self, timeout: float) -> Iterator[Future[None]]:
        """Return a request for the lock, and withdraw it if the wait fails."""
        turn = self._ask()
        try:
            yield turn
        except BaseException as error:
            self._withdraw(turn)
            if isinstance(error, TimeoutError):
                raise TimeoutError(
                    f"the database was busy with another transaction for {timeout:g} s"
                ) from None
            raise

    def _ask(self) -> Future[None]:
        turn: Future[None] = Future()
        with self._mutex:
            if self._taken:
                self._waiting.append(turn)
            else:
                self._taken = True
                turn.set_result(None)
        return turn

    def _withdraw(self, turn: Future[None]) -> None:
        if not turn.cancel():  # it came all the same
            self.give_back()


_NOT_DONE = (Consumed.LATER, ConsumedInOrder.SUSPEND, ConsumedInOrder.ROLLBACK)


def first_key(message: StoredMessage) -> str:
    """Return the topic and the first key of the message, separated by a blank.

    Raises:
        KeyMissingError: the message has no key.
    """
    if not message.keys:
        raise KeyMissingError(message.message_id)
    topic = message.topic
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        topic = message.properties.get(RETRY_TOPIC, topic)
    return f"{topic} {message.keys[0]}"


class Idempotent:
    """Wraps a handler, so that its writes are applied exactly once for each key.

    Args:
        handle: called with the message and the open transaction of ``store``. It must do all its
            writes through this transaction, and must neither commit nor roll back. Its result is
            the result of the wrapped handler.
        store: stores the marks, in the database that ``handle`` writes to.
        group: the consumer group. Another group applies the same message for itself. None means the
            group of the consumer that calls it.
        key: returns the key of a message. The default is the topic and the first key, so a
            producer must give each message a unique key. A message id does not work: a
            producer that sends again after a lost response makes a new id.

    Raises:
        ConfigError: the store has no transactions for this kind of handler, or the handler is no
            function, a generator function, or one that takes other arguments.

    Writes outside the transaction, such as a call to another service, may still happen more than
    once.

    Example: ``handler=Idempotent(book, store=SqliteMarks("shop.db"))``
    """

    def __new__(cls, handle: Callable[..., Any], *_: Any, **__: Any) -> Idempotent:
        """Make one that is called as its handler is: awaited, or in a thread."""
        return super().__new__(_AwaitedIdempotent if is_async(handle) else cls)

    def __init__(
        self,
        handle: Callable[[StoredMessage, Any], Awaitable[Any] | Any],
        *,
        store: MarkStore,
        group: str | None = None,
        key: Callable[[StoredMessage], str] = first_key,
    ) -> None:
        check_callable("Idempotent", "handle", handle)
        check_callable("Idempotent", "key", key)
        check_provides("Idempotent", "store", store, MarkStore)
        if is_generator(handle):
            raise ConfigError(
                f"handler {getattr(handle, '__name__', handle)!r} is a generator function, whose "
                "body would not run: expected a function without yield"
            )
        check_parameters("Idempotent: handle", handle, ("message", "transaction"))
        way, method = ("async with", "__aenter__") if is_async(handle) else ("with", "__enter__")
        if not hasattr(store.transaction(), method):
            raise ConfigError(
                f"{type(store).__name__} has no transactions for `{way}`, which "
                f"{getattr(handle, '__name__', handle)!r} needs: async def handlers need an "
                "asynchronous store, plain ones a synchronous one"
            )
        self._handle = handle
        self._store = store
        self._group = group
        self._key = key

    def for_group(self, group: str) -> Idempotent:
        """Return the handler for a consumer of this group; consumers call it. A group that was
        given stays."""
        if self._group is not None:
            return self
        return Idempotent(self._handle, store=self._store, group=group, key=self._key)

    def __call__(self, message: StoredMessage) -> Any:
        """Act on the message unless its key is marked.

        Raises:
            KeyMissingError: the message has no key; nothing was written.
            ConfigError: no group is known.
        """
        group, key = self._known_group(), self._key(message)
        transaction: Any = self._store.transaction()
        try:
            with transaction as opened:
                if not opened.mark(group, key):
                    return None
                return _checked(self._handle(message, opened))
        except _NotDoneError as failure:
            return failure.result

    def _known_group(self) -> str:
        if self._group is None:
            raise ConfigError(
                "Idempotent has no group: pass it to a consumer as handler=, or give it group="
            )
        return self._group


class _AwaitedIdempotent(Idempotent):
    async def __call__(self, message: StoredMessage) -> Any:
        group, key = self._known_group(), self._key(message)
        transaction: Any = self._store.transaction()
        try:
            async with transaction as opened:
                if not await opened.mark(group, key):
                    return None
                return _checked(await self._handle(message, opened))
        except _NotDoneError as failure:
            return failure.result


class _NotDoneError(Exception):
    """The handler requests a redelivery; carries its result out of the transaction."""

    def __init__(self, result: object) -> None:
        self.result = result


def _checked(result: Any) -> Any:
    """Return the handler's result, or roll the transaction back if it is no success."""
    error = unfinished(result)
    if error is not None:
        raise error
    if isinstance(result, Enum) and result in _NOT_DONE:
        raise _NotDoneError(result)
    return result
