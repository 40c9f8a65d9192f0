"""Request handlers and jobs for transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.protocol.codes import RequestCode
from cometmq.remoting import exclusive
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import Job, every
from cometmq.store import StoreSettings

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts
    from cometmq.broker.transactions.check_service import CheckService
    from cometmq.broker.transactions.handler import TransactionHandler


LOAD_S = 1.0
"""How soon the half queue is read again if the disk refused that at the start: until then
transactions are refused."""

LOG_S = 10.0


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the handler of decisions, and the checks of undecided half messages."""
    commit = parts.commit if parts.sync_flush else None

    def make_handler() -> TransactionHandler:
        from cometmq.broker.transactions.handler import TransactionHandler

        return TransactionHandler(
            parts.half_queue,
            parts.store,
            topics=parts.topics,
            stats=parts.stats,
            settings=parts.settings,
            role=parts.role,
            clock=parts.clock,
            cold_reads=parts.cold_reads,
            durability=parts.durability,
            commit=commit,
            timings=parts.timings,
        )

    def make_checks() -> CheckService:
        from cometmq.broker.transactions.check_service import CheckService

        return CheckService(
            parts.half_queue,
            parts.store,
            producers=parts.producers,
            topics=parts.topics,
            settings=parts.settings,
            role=parts.role,
            stored=parts.configuration.reader_of(StoreSettings),
            clock=parts.clock,
            durability=parts.durability,
            may_send=None if parts.access is None else parts.access.may_send,
        )

    decisions, checks = Deferred(make_handler), Deferred(make_checks)

    async def check() -> None:
        is_idle = parts.role.is_slave or parts.half_queue.is_unused
        if checks.made() is not None or not is_idle:
            await checks.get().run()

    def log_refusals() -> None:
        if (made := decisions.made()) is not None:
            made.log_refusals()

    def interval_s() -> float:
        if not parts.half_queue.is_loaded:
            return LOAD_S
        return parts.settings().transaction_check_interval_ms / 1000

    end = decisions.handler(lambda h: h.end)
    if parts.forwarding is not None:
        end = parts.forwarding.wrap(end)
    return Feature(
        {
            RequestCode.END_TRANSACTION: end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: exclusive(decisions.handler(lambda h: h.resume)),
        },
        [
            Job(
                "check-transactions",
                interval_s,
                check,
            ),
            every(LOG_S, log_refusals, "log-refused-decisions"),
        ],
    )
