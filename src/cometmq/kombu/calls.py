"""Calls of the application's threads into the loop of a session, and the wake-ups back."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cometmq.client import ClientClosedError, CometError
from cometmq.kombu.link import HOLD_S, RETRY_S, Link
from cometmq.kombu.session import Held, Session

log = logging.getLogger(__name__)
T = TypeVar("T")


class Receive:
    """One receive, which runs in the session's loop until it has messages.

    Args:
        calls: of the transport, which is woken at the end.
        topics: topic to queue, in the order in which they are received from.
        room: the limit of messages.
    """

    def __init__(self, calls: SessionCalls, topics: dict[str, str], room: int) -> None:
        self.topics = topics
        self.messages: list[Held] = []
        self.done = False
        self._calls = calls
        self._room = room
        self._is_cancelled = False
        self._task: asyncio.Task[None] | None = None
        calls.soon(self._begin)

    def _begin(self) -> None:
        if not self._is_cancelled:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        session = self._calls.session
        while not self.messages:
            try:
                self.messages = await session.receive(list(self.topics), self._room, HOLD_S)
            except ClientClosedError:
                return
            except CometError:  # the consumer logs it
                await asyncio.sleep(RETRY_S)
            except Exception:  # a worker that is alive consumes
                log.exception("receive failed, retrying")
                await asyncio.sleep(RETRY_S)
        if self._is_cancelled:
            self._release()
        else:
            self.done = True
            self._calls.wake()

    def cancel(self) -> None:
        """Stop. What was received already is redelivered."""
        self._is_cancelled = True
        self._calls.soon(self._stop)

    def _stop(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
        else:
            self._release()

    def _release(self) -> None:
        for held in self.messages:
            self._calls.session.release(held)
        self.messages = []


class SessionCalls:
    """The part of a transport that its channels use."""

    session: Session
    undecided: dict[str, int]
    """Queues of which the first use decides whether they are short-lived."""
    _deliver: Any

    def open_calls(self) -> None:
        """Prepare the object."""
        self.undecided = {}
        self._portal: Any = None
        self._pid = 0
        self._hub: Any = None
        self._woken = threading.Event()

    def _is_ours(self) -> bool:
        """Whether it is open, and this is the process that opened it, not a forked child."""
        return self._portal is not None and self._pid == os.getpid() and self._portal.is_alive()

    @property
    def link(self) -> Link:
        """What the connections of this process share."""
        return self.session.link

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the session, and wait for its result."""
        if not self._is_ours():
            work.close()
            raise ClientClosedError("the connection is closed, or of another process")
        result: T = self._portal.run(work)
        return result

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function of the session, and wait for its result."""
        result: T = self._portal.call(function, *arguments)
        return result

    def soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function of the session, and do not wait."""
        if self._is_ours():
            self._portal.soon(function, *arguments)

    def wake(self) -> None:
        """Have the application's thread deliver what there is; any thread may call it."""
        self._woken.set()
        hub = self._hub
        if hub is not None:
            hub.call_soon(self.pump)

    def pump(self) -> bool:
        """Deliver what there is, and fetch more; return whether there was anything."""
        raise NotImplementedError
