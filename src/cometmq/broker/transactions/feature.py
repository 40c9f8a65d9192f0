"""The half messages of this broker, and the requests and jobs for transactions."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.broker.transactions.half_message import HALF_QUEUE
from cometmq.broker.transactions.half_queue import GROUP, HalfQueue
from cometmq.model.errors import CometError
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import Job, every

if TYPE_CHECKING:
    from cometmq.broker.access.control import AccessControl
    from cometmq.broker.durability.feature import DurabilityFeature
    from cometmq.broker.forwarding import Forwarding
    from cometmq.broker.timers.feature import TimersFeature
    from cometmq.broker.transactions.check_service import CheckService
    from cometmq.broker.transactions.handler import TransactionHandler

log = logging.getLogger(__name__)

LOAD_S = 1.0
"""How soon the half queue is read again if the disk refused that at the start: until then
transactions are refused."""

LOG_S = 10.0


class TransactionsFeature(BrokerFeature):
    """Keeps the half messages, and ends transactions.

    Args:
        core: of the broker.
        durability: acknowledges what decisions store.
        timers: decide how long committed messages wait.
        access: decides which producers may be asked; None without access control.
        forwarding: forwards decisions to the elected master; None without a controller.
    """

    def __init__(
        self,
        core: Core,
        durability: DurabilityFeature,
        timers: TimersFeature,
        access: AccessControl | None,
        forwarding: Forwarding | None,
    ) -> None:
        super().__init__(core)
        self._durability = durability
        self._access = access
        self._forwarding = forwarding
        self.half_queue = HalfQueue(
            core.store, core.offsets, timers.routing, clock=core.clock, cold_reads=core.cold_reads
        )
        self.half_queue.on_stored = lambda topic, size: core.stats.put(topic, HALF_QUEUE, 1, size)
        self.half_queue.on_read = partial(core.stats.got, GROUP)
        self._decisions = Deferred(self._make_handler)
        self._checks = Deferred(self._make_checks)

    def _make_handler(self) -> TransactionHandler:
        from cometmq.broker.transactions.handler import TransactionHandler

        durability = self._durability
        return TransactionHandler(
            self._core, self.half_queue, durability.wait, durability.synced_by
        )

    def _make_checks(self) -> CheckService:
        from cometmq.broker.transactions.check_service import CheckService

        may_send = None if self._access is None else self._access.may_send
        return CheckService(self._core, self.half_queue, self._durability.wait, may_send)

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handler of decisions, and the checks of undecided half messages."""
        end = self._decisions.handler(lambda h: h.end)
        resume = self._decisions.exclusive(lambda h: h.resume)
        if self._forwarding is not None:
            end = self._forwarding.wrap(end)
        return Feature(
            {
                RequestCode.END_TRANSACTION: end,
                RequestCode.RESUME_CHECK_HALF_MESSAGE: resume,
            },
            [
                Job("check-transactions", self._check_interval_s, self._check),
                every(LOG_S, self._log_refusals, "log-refused-decisions"),
            ],
        )

    def _check_interval_s(self) -> float:
        if not self.half_queue.is_loaded:
            return LOAD_S
        return self._core.settings().transaction_check_interval_ms / 1000

    async def _check(self) -> None:
        is_idle = self._core.role.is_slave or self.half_queue.is_unused
        if self._checks.made() is not None or not is_idle:
            await self._checks.get().run()

    def _log_refusals(self) -> None:
        if (made := self._decisions.made()) is not None:
            made.log_refusals()

    async def start(self) -> None:
        """Read which transactions of a master are decided."""
        if not self._core.role.is_slave:
            await self._load()

    def role_changed(self) -> None:
        """Forget what a slave gets with the log; let a new master wait with what it stores."""
        if (checks := self._checks.made()) is not None:
            checks.role_changed()
        if self._core.role.is_slave:
            self.half_queue.unload()
        else:
            self.half_queue.elected()

    async def before_sends(self) -> None:
        """Note the log's last record before others are behind it."""
        self.half_queue.note_log_end()

    async def take_over(self) -> None:
        """Read which transactions are decided."""
        self.half_queue.confirmed()
        await self._load()

    async def _load(self) -> None:
        """Read which transactions are decided; the checks try again if the disk refuses."""
        try:
            if not await self.half_queue.load() and not self._core.role.is_slave:
                log.warning("transactions are refused until the disk has room")
        except CometError as problem:
            log.warning("transactions are refused for now: %s", problem)

    def before_truncation(self, log_end: int) -> None:
        """Let the transactions be undecided whose decisions are about to be truncated."""
        self.half_queue.take_back(log_end)
        self._core.persist_offsets()
