"""Sends popped messages that were not acknowledged in time to other brokers.

They go to the retry topics of their groups there, as the master would store them here. The log of a
slave gets no record of that. Its committed offset of the revive group says which check points count
no more, and the master takes it over when it returns. It redelivers once more what was sent for
check points behind one that is not due yet.

Source: PopReviveService and EscapeBridge, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from cometmq.broker.pop.check_points import CheckPoint
from cometmq.broker.prerequisites import after_prerequisites
from cometmq.model.errors import CometError
from cometmq.system.failure_log import FailureLog

if TYPE_CHECKING:
    from cometmq.broker.acting_master.other_brokers import OtherBrokers
    from cometmq.broker.core import Core
    from cometmq.broker.pop.revive_log import ReviveLog
    from cometmq.broker.pop.reviver import Reviver

log = logging.getLogger(__name__)

RETRY_MS: Final = 5_000
DUE_MAX: Final = 1_000
"""Check points that are sent with one call."""


class PoppedMessages:
    """What is popped and not acknowledged, by the log of a slave that acts as the master.

    Args:
        core: of the broker.
        check_points: those of the log; other ones than those of a master.
        reviver: reads the messages.
    """

    def __init__(self, core: Core, check_points: ReviveLog, reviver: Reviver) -> None:
        self._core = core
        self._log = check_points
        self._reviver = reviver
        self._failures = FailureLog(
            log,
            fails="popped messages wait, retrying",
            works="popped messages are sent to other brokers again",
            name="topic",
        )

    async def send_due(self, others: OtherBrokers, is_over: Callable[[], bool]) -> None:
        """Send what is due, up to the first message that no other broker takes.

        Args:
            others: the brokers.
            is_over: returns whether to end before the next message.
        """
        try:
            await self._log.load()
            await self._log.read_new()
        except CometError as problem:
            self._failures.failed(self._log.topic, problem)
            return
        points, sent = self._log.points, 0
        for _ in range(DUE_MAX):
            now_ms = self._core.clock.now_ms()
            if is_over() or not (due := points.take_due(now_ms, 1)):
                break
            [point] = due
            try:
                sent += await self._send(point, others, is_over)
            except CometError as problem:
                self._failures.failed(point.topic, problem)
                points.delay(point, now_ms + RETRY_MS, now_ms)
                break
            self._failures.succeeded(point.topic)
        if sent:
            log.info("sent popped messages to other brokers count=%d", sent)
        self._log.commit_base()

    async def _send(
        self, point: CheckPoint, others: OtherBrokers, is_over: Callable[[], bool]
    ) -> int:
        """Send the messages of a check point that are left; return how many."""
        reviver, sent = self._reviver, 0
        is_gone = reviver.is_gone(point)
        for offset in point.offsets_of(point.all_bits() & ~point.acked):
            if is_over():
                break
            if not is_gone:
                record = await after_prerequisites(partial(reviver.read, point, offset))
                if record is not None:
                    await others.send_popped(
                        reviver.retry_name(point), point.topic, reviver.popped_again(point, record)
                    )
                    sent += 1
            self._log.settle(point, point.bit_of(offset))
        return sent
