"""The part of the log that slaves have, and the sends that wait for them.

    inSyncReplicas    a send of a SYNC_MASTER waits for    if there are too few slaves
    not set           one slave                            SLAVE_NOT_AVAILABLE, at once
    1                 nothing
    n                 n - 1 slaves                         FLUSH_SLAVE_TIMEOUT, after slaveTimeout

The message is stored in each case. A slave that does not report in time leads to
FLUSH_SLAVE_TIMEOUT. The first row is RocketMQ 4.9's rule, the others are 5.3's.

Source: CommitLog.handleHA and GroupTransferService, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from cometmq.broker.config import BrokerSettings
from cometmq.broker.role import Role
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

SUCCESS = int(ResponseCode.SUCCESS)

Outcome = Callable[[int], None]
"""Called once with a response code."""


class Slave(Protocol):
    """A connected slave."""

    @property
    def acknowledged_to(self) -> int:
        """The log offset up to which it has the log; -1 before its first report."""


class Acknowledgements:
    """Lets sends wait until slaves have them.

    Args:
        role: only a SYNC_MASTER waits.
        settings: returns the current settings of the broker.
        slaves: returns the connected slaves.
    """

    ended_code = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)
    """The outcome of waits that end because this broker is to be the master no more."""

    def __init__(
        self,
        role: Role,
        settings: Callable[[], BrokerSettings],
        slaves: Callable[[], Iterable[Slave]],
    ) -> None:
        self._role = role
        self._settings = settings
        self._slaves = slaves
        self._waiting: deque[tuple[int, float, Outcome]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None
        self.refusal: ResponseError | None = None
        """Why sends that would wait must not be stored at all; never without a controller."""
        self.on_refusal: Callable[[], object] = _ignore
        """Called when that has changed."""
        self.fenced: ResponseError | None = None
        """Why nothing is acknowledged, whatever slaves have; never without a controller."""

    def __len__(self) -> int:
        return len(self._waiting)

    def are_needed(self) -> bool:
        """Return whether sends wait for slaves."""
        return self._role.is_sync_master and self._settings().in_sync_replicas != 1

    def may_be_replaced(self) -> bool:
        """Return whether another master may have been elected; never without a controller."""
        return False

    def wait(self, log_offset_end: int, on_outcome: Outcome) -> None:
        """Call ``on_outcome`` when enough slaves have the log up to an offset, or do not get it."""
        if self.reached() >= log_offset_end:
            on_outcome(SUCCESS)
            return
        if self.lack_slaves(log_offset_end):
            on_outcome(int(ResponseCode.SLAVE_NOT_AVAILABLE))
            return
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._settings().slave_timeout_ms / 1000
        self._waiting.append((log_offset_end, deadline_s, on_outcome))
        if self._timer is None:
            self._timer = loop.call_at(deadline_s, self._expire)

    def lack_slaves(self, log_offset_end: int) -> bool:
        """Return whether a send that ends at an offset would wait for slaves in vain."""
        settings = self._settings()
        if settings.in_sync_replicas != 0:
            return False
        newest = max((slave.acknowledged_to for slave in self._slaves()), default=-1)
        return newest < 0 or log_offset_end - newest >= settings.ha_slave_fallbehind_max

    def are_too_few(self, log_offset_end: int) -> bool:
        """Return whether no wait for an offset ends well with the slaves that are connected."""
        return self.reached() < 0 or self.lack_slaves(log_offset_end)

    def reached(self) -> int:
        """Return the log offset that enough slaves have; -1 for none."""
        needed = max(1, self._settings().in_sync_replicas - 1)
        offsets = sorted((slave.acknowledged_to for slave in self._slaves()), reverse=True)
        return offsets[needed - 1] if len(offsets) >= needed else -1

    def reported(self) -> None:
        """End the waits for what enough slaves have now; call it after each report."""
        waiting = self._waiting
        if not waiting:
            return
        reached = self.reached()
        while waiting and waiting[0][0] <= reached:
            _call(waiting.popleft()[2], SUCCESS)
        self._note_emptied()

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now_s = loop.time()
        if self._waiting and self._waiting[0][1] <= now_s:
            self._note_timeout()
        while self._waiting and self._waiting[0][1] <= now_s:
            _call(self._waiting.popleft()[2], int(ResponseCode.FLUSH_SLAVE_TIMEOUT))
        if self._waiting:
            self._timer = loop.call_at(self._waiting[0][1], self._expire)
        self._note_emptied()

    def _note_timeout(self) -> None:
        """Called when slaves did not get in time what sends wait for."""

    def _note_emptied(self) -> None:
        if self._emptied is not None and not self._waiting:
            self._emptied.set()

    async def stop(self, timeout_s: float) -> None:
        """Wait for slaves at most so long; the waits that are left end then."""
        if self._waiting:
            self._emptied = asyncio.Event()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._emptied.wait()
            except TimeoutError:
                log.warning("sends still wait for slaves at the stop count=%d", len(self._waiting))
        self.end_all()

    def end_all(self) -> None:
        """End all waits with `ended_code`."""
        while self._waiting:
            _call(self._waiting.popleft()[2], self.ended_code)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._note_emptied()


def _ignore() -> None:
    """Listener of parts for which no send is refused."""


def _call(on_outcome: Outcome, code: int) -> None:
    try:  # an error of one send must not stop the responses to the others
        on_outcome(code)
    except Exception:
        log.exception("cannot complete a send that waited for slaves")
