"""A handler that acts once for each key, though messages may be delivered more than once.

Each call opens a transaction, marks the message's key in it, calls the application's handler, and
commits. A key that was marked before ends the call as a success without calling the handler; an
exception of the handler, or an answer such as LATER, rolls everything back, and the message comes
again.

Source: ours; the pattern is the usual one of RocketMQ's users, a table with a unique index.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

from cometmq.client._callbacks import is_async
from cometmq.client.errors import KeyMissingError
from cometmq.client.handlers import Consumed, ConsumedInOrder
from cometmq.client.idempotent.marks import MarkStore
from cometmq.model.errors import ConfigError
from cometmq.model.message import StoredMessage
from cometmq.model.property_names import RETRY_TOPIC
from cometmq.model.topic import DLQ_PREFIX, RETRY_PREFIX

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
        group: the consumer group. Another group applies the same message for itself.
        key: returns the key of a message. The default is the topic and the first key, so a
            producer must give each message a unique key. A message id does not work: a
            producer that sends again after a lost response makes a new id.

    Raises:
        ConfigError: the store has no transactions for this kind of handler.

    Writes outside the transaction, such as a call to another service, may still happen more than
    once.

    Example: ``Idempotent(book, store=SqliteMarks("shop.db"), group="warehouse")``
    """

    def __new__(cls, handle: Callable[..., Any], *_: Any, **__: Any) -> Idempotent:
        """Make one that is called as its handler is: awaited, or in a thread."""
        return super().__new__(_AwaitedIdempotent if is_async(handle) else cls)

    def __init__(
        self,
        handle: Callable[[StoredMessage, Any], Awaitable[Any] | Any],
        *,
        store: MarkStore,
        group: str,
        key: Callable[[StoredMessage], str] = first_key,
    ) -> None:
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

    def __call__(self, message: StoredMessage) -> Any:
        """Act on the message unless its key is marked.

        Raises:
            KeyMissingError: the message has no key; nothing was written.
        """
        key = self._key(message)
        transaction: Any = self._store.transaction()
        try:
            with transaction as opened:
                if not opened.mark(self._group, key):
                    return None
                return _checked(self._handle(message, opened))
        except _NotDoneError as answer:
            return answer.result


class _AwaitedIdempotent(Idempotent):
    async def __call__(self, message: StoredMessage) -> Any:
        key = self._key(message)
        transaction: Any = self._store.transaction()
        try:
            async with transaction as opened:
                if not await opened.mark(self._group, key):
                    return None
                return _checked(await self._handle(message, opened))
        except _NotDoneError as answer:
            return answer.result


class _NotDoneError(Exception):
    """The handler asks for the message again; takes its answer out of the transaction."""

    def __init__(self, result: object) -> None:
        self.result = result


def _checked(result: Any) -> Any:
    """Give the handler's result, or break off the transaction when it is no success."""
    if inspect.isawaitable(result):
        raise ConfigError("a plain handler returned an awaitable: make it an async def function")
    if isinstance(result, Enum) and result in _NOT_DONE:
        raise _NotDoneError(result)
    return result
