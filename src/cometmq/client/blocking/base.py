"""The base of all blocking objects: an asyncio object, and the portal that runs it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from cometmq.client._lifecycle import Lifecycle
from cometmq.client.blocking.portal import Portal, hold, let_go
from cometmq.client.errors import ClientClosedError

T = TypeVar("T")


class Blocking:
    """Starts on entering ``with``, and closes on leaving it.

    Any thread may call it, except a thread that runs ``async def`` handlers. Ctrl-C during a call
    cancels the call.
    """

    _inner: Lifecycle

    def __init__(self, inner: Lifecycle) -> None:
        self._inner = inner
        self._portal: Portal | None = None
        self._changing = threading.Lock()

    def start(self) -> None:
        """Make the object ready for use."""
        with self._changing:
            if self._portal is not None:
                return
            portal = hold()
            try:
                portal.run(self._inner.start())
            except BaseException:
                let_go(portal)
                raise
            self._portal = portal

    def close(self) -> None:
        """Close the object; further calls do nothing."""
        with self._changing:
            portal, self._portal = self._portal, None
            if portal is None:
                return
            try:
                portal.run(self._inner.close())
            finally:
                let_go(portal)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the asyncio object, and wait for it.

        One that was not started, or was closed, says so by itself where that matters.
        """
        portal = self._portal
        if portal is not None:
            return portal.run(work)
        portal = hold()
        try:
            return portal.run(work)
        finally:
            let_go(portal)

    def _call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call a plain method of the asyncio object where it lives."""
        portal = self._portal
        if portal is None:
            return function(*arguments, **named)
        return portal.call(function, *arguments, **named)

    def _begin(
        self, function: Callable[..., asyncio.Future[T]], *arguments: Any, **named: Any
    ) -> concurrent.futures.Future[T]:
        """Call a method that gives a future, and do not wait for it."""
        portal = self._portal
        if portal is None:
            raise ClientClosedError(f"this {type(self).__name__} is not running: start it first")
        return portal.begin(lambda: function(*arguments, **named))
