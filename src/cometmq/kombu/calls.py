"""Calls of the application's threads into the loop of a session, and the wake-ups back."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeVar

from cometmq.client import ClientClosedError
from cometmq.kombu.link import HOLD_S, RETRY_S, Link
from cometmq.kombu.session import POP_MAX, Held, Session
from cometmq.system.failure_log import FailureLog

log = logging.getLogger(__name__)
T = TypeVar("T")

HUB_S = 1.0
"""A worker's loop steps at least as often as this, or another thread does."""
GATHER_S = 0.005
"""How long acknowledgements wait for others, and a receive for more room."""
ACKS_BEHIND_MAX = 512
"""Acknowledgements that are not sent, with which no more is received: a crash repeats these."""
ROOM_MIN = 0.75
"""Part of the prefetch count that is free when they do not wait."""


class Fetcher:
    """Receives for a channel, in the session's loop, while the channel has room.

    Args:
        calls: of the transport, which is woken when there are messages.
        queues: they take turns.
        room: returns how many more messages the channel takes, and of how many.
        found: where queues and their messages are added.
    """

    def __init__(
        self,
        calls: SessionCalls,
        queues: Iterable[str],
        room: Callable[[], tuple[int, int]],
        found: deque[tuple[str, Held]],
    ) -> None:
        self._calls = calls
        self._turns = deque(queues)
        self._room = room
        self._found = found
        self._failing = FailureLog(
            log, fails="receive failed, retrying", works="receive succeeds again", name="queues"
        )
        self._asked = asyncio.Event()
        self._is_asked = self._is_cancelled = self._is_receiving = False
        self._task: asyncio.Task[None] | None = None
        calls.fetchers.add(self)
        calls.soon(self._begin)

    def ask(self, room_min: float = 0.0) -> None:
        """Receive if there is room, and at least this part of all; any thread may call it."""
        if self._is_asked or self._is_receiving:
            return
        room, most = self._room()
        if room > 0 and room >= most * room_min:
            self._is_asked = True
            self._calls.soon(self._calls.flush)

    def receive(self) -> None:
        """Receive if there is room, and no receive runs; called in the loop."""
        self._is_asked = False
        if not self._is_receiving and self._room()[0] > 0:
            self._asked.set()

    def _begin(self) -> None:
        if not self._is_cancelled:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            if len(self._calls.session.acks) > ACKS_BEHIND_MAX:
                await asyncio.sleep(GATHER_S)
                self._asked.set()
                continue
            wanted = min(self._room()[0], POP_MAX)
            if wanted > 0:
                self._is_receiving = True
                count = await self._receive(wanted)
                self._is_receiving = False
                room, most = self._room()
                if room >= most * ROOM_MIN:
                    self._calls.flush()
                elif count < wanted:
                    self._asked.set()
                else:
                    self._calls.gather()

    async def _receive(self, room: int) -> int:
        link = self._calls.link
        # Another process may have given a queue more priorities.
        topics = {topic: queue for queue in self._turns for topic in link.topics_of(queue)}
        name = ",".join(sorted(self._turns))
        self._turns.rotate(-1)
        try:
            found = await self._calls.session.receive(list(topics), room, HOLD_S)
        except Exception as error:  # a worker that is alive consumes
            if self._calls.session.is_closed:
                raise asyncio.CancelledError from None
            self._failing.failed(name, error)
            await asyncio.sleep(RETRY_S)
        else:
            self._failing.succeeded(name)
            if found:
                self._found.extend((topics[held.topic], held) for held in found)
                self._calls.wake()
            return len(found)
        return 0

    def cancel(self) -> None:
        """Stop. What a broker hands out to a receive that ends goes to the next one."""
        self._is_cancelled = True
        self._calls.fetchers.discard(self)
        self._calls.soon(self._stop)

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()


class SessionCalls:
    """The part of a transport that its channels use."""

    session: Session
    undecided: dict[str, int]
    """Queues of which the first use decides whether they are short-lived."""
    fetchers: set[Fetcher]
    unsettled: dict[Any, Held]
    """By delivery tag. Channels share it, since each may consume from the queue of another."""
    _callbacks: dict[str, Callable[[Any], object]]

    def open_calls(self) -> None:
        """Prepare the object."""
        self.undecided = {}
        self.fetchers = set()
        self.unsettled = {}
        self._portal: Any = None
        self._pid = 0
        self._woken = threading.Event()
        self._hub: Any = None
        self._hub_due = math.inf
        self._descriptor: int | None = None
        self._hub_thread = 0
        self._is_hub_woken = self._is_more = self._is_stepping = self._is_gathering = False
        self._readable: tuple[socket.socket, ...] = ()
        """Readable for ever: the hub calls again while there is more to deliver."""
        self._flushes: Any = None
        """The timer of the next flush."""

    def _is_ours(self) -> bool:
        """Whether it is open, and this is the process that opened it, not a forked child."""
        portal = self._portal
        return portal is not None and self._pid == os.getpid() and portal.is_alive()

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

        async def called() -> T:
            return function(*arguments)

        return self.run(called())

    def soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function of the session, and do not wait."""
        if self._is_in_hub():
            self._step(partial(function, *arguments))
        elif self._is_ours():
            self._portal.soon(function, *arguments)

    def ack(self, held: Held) -> None:
        """Acknowledge a message, together with others; any thread may call it."""
        self.session.acks.append(held)
        if not self._is_gathering and self._is_ours():
            self._is_gathering = True
            if self._is_in_hub():
                self.gather()
            else:
                self._portal.soon(self.gather)

    def gather(self) -> None:
        """Flush after a moment; called in the loop, or in that of a worker."""
        if self._flushes is None and self._is_in_hub():
            self._flushes = self._hub.call_later(GATHER_S, self._step, self.flush)
        elif self._flushes is None:
            self._flushes = asyncio.get_running_loop().call_later(GATHER_S, self.flush)

    def flush(self) -> None:
        """Send the acknowledgements, and receive if there is room; called in the loop."""
        if self._flushes is not None:
            self._flushes.cancel()
            self._flushes = None
        self._is_gathering = False
        self.session.send_acks()
        for fetcher in list(self.fetchers):
            fetcher.receive()

    def wake(self) -> None:
        """Have the application's thread deliver what there is; any thread may call it."""
        if not self._is_ours():
            return  # another thread of the parent may have held the lock at the fork
        self._woken.set()
        hub = self._hub
        if hub is None or self._is_stepping:
            return
        if self._is_in_hub():
            self._deliver_again(True)
        elif not self._is_hub_woken:
            self._is_hub_woken = True
            hub.call_soon(self._deliver)

    def pump(self) -> bool:
        """Deliver what there is, and fetch more; return whether there was anything."""
        raise NotImplementedError

    # --- the loop of a worker -----------------------------------------------------------------

    def join_hub(self, hub: Any) -> None:
        """Receive and deliver in the loop of a worker from now on."""
        self.leave_hub()
        self._hub, self._hub_thread = hub, threading.get_ident()
        self._descriptor = self._portal.join()
        if self._descriptor is not None:
            hub.add_reader(self._descriptor, self._step)
        self._readable = socket.socketpair()
        self._readable[1].send(b"\0")
        hub.call_soon(self._step)

    def _is_in_hub(self) -> bool:
        return self._hub is not None and self._hub_thread == threading.get_ident()

    def feeds_processes(self) -> bool:
        """Return whether the worker's loop hands tasks to child processes."""
        return self._hub is not None and self._hub.consolidate_callback is not None

    def _step(self, function: Callable[[], object] | None = None) -> None:
        """Run the loop while there is something to do, then deliver what it has received."""
        if self._hub is None or not self._is_ours():
            return
        is_nested, self._is_stepping = self._is_stepping, True
        pause_s = self._portal.step(function)
        self._is_stepping = is_nested
        if pause_s < HUB_S and time.monotonic() + pause_s < self._hub_due:
            self._hub_due = time.monotonic() + pause_s
            self._hub.call_later(pause_s, self._step_when_due)
        if self._woken.is_set() and not is_nested:
            self._deliver()

    def _deliver(self) -> None:
        """Deliver some of what there is; the worker's loop hands it to processes in between."""
        if self._hub is None or not self._is_ours():
            return
        self._is_hub_woken, self._is_stepping = False, True
        try:
            self._woken.clear()
            self.pump()
        finally:
            self._is_stepping = False
            self._deliver_again(self._woken.is_set())

    def _deliver_again(self, is_more: bool) -> None:
        """Have the worker's loop deliver in its next round, before it waits; or do not."""
        if self._hub is not None and is_more != self._is_more:
            self._is_more = is_more
            if is_more:
                self._hub.add_reader(self._readable[0], self._deliver)
            else:
                self._hub.remove_reader(self._readable[0])

    def _step_when_due(self) -> None:
        self._hub_due = math.inf
        self._step()

    def leave_hub(self) -> None:
        """Deliver in no loop any more."""
        hub, self._hub = self._hub, None
        if hub is None:
            return
        if self._pid == os.getpid():
            if self._descriptor is not None:
                hub.remove_reader(self._descriptor)
                self._portal.leave()
            if self._is_more:
                hub.remove_reader(self._readable[0])
        for each in self._readable:
            each.close()
        self._is_hub_woken = self._is_more = False
