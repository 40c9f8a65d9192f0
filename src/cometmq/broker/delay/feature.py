"""The delivery of messages with a delay level, and the requests and jobs for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.delay.delivery import ScheduledDelivery
from cometmq.broker.delay.handler import DelayOffsetsHandler
from cometmq.broker.life import BrokerFeature
from cometmq.model.delay import UNITS_MS, DelayLevels
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Feature
from cometmq.remoting.jobs import Job
from cometmq.store import StoreSettings

if TYPE_CHECKING:
    from cometmq.broker.durability.feature import DurabilityFeature

log = logging.getLogger(__name__)

PERSIST_S = 1.0
"""RocketMQ's is 10 s (``flushDelayOffsetInterval``). What was delivered since is found in the log
at the next start, which is quicker the less there is."""


class DelayFeature(BrokerFeature):
    """Delivers scheduled messages while this broker is the master.

    Args:
        core: of the broker.
        durability: decides whether messages may be stored, and syncs them.
    """

    def __init__(self, core: Core, durability: DurabilityFeature) -> None:
        super().__init__(core)
        self.levels = DelayLevels.parse(core.configuration[StoreSettings].delay_levels)
        self._file = core.table_file("delayOffset")
        self.delivery = ScheduledDelivery(
            core.store,
            self.levels,
            self._file,
            queue_for=core.topics.queue_for,
            clock=core.clock,
            cold_reads=core.cold_reads,
            on_delivery=core.stats.delivered,
            request_sync=(None if core.store.shows_unsynced else durability.commit.request_sync),
            refusal=durability.refusal,
        )
        self.delivery.load()

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handler that shows the schedule offsets, and their write to the file."""
        delivery = self.delivery
        warn_of_retention(self.levels, self._core.configuration[StoreSettings])
        delayed = DelayOffsetsHandler(lambda: (delivery.confirmed_offsets(), delivery.version))
        persist = Job("persist-delay-offsets", lambda: PERSIST_S, delivery.persist, blocking=True)
        return Feature({RequestCode.GET_ALL_DELAY_OFFSET: delayed.all}, [persist])

    async def begin(self, endpoint: Endpoint) -> None:
        """Start the delivery of a master."""
        if not self._core.role.is_slave:
            self.delivery.start()

    def role_changed(self) -> None:
        """Stop the delivery of a slave."""
        if self._core.role.is_slave:
            self.delivery.stop()

    async def take_over(self) -> None:
        """Start the delivery in place of the old master."""
        await self.delivery.take_over()
        if self._core.role.is_slave:
            self.delivery.stop()

    async def settings_changed(self, changes: Mapping[str, str]) -> None:
        """Warn of files that are deleted too early."""
        if "fileReservedTime" in changes:
            warn_of_retention(self.levels, self._core.configuration[StoreSettings])

    def before_truncation(self, log_end: int) -> None:
        """Let the messages wait whose copies are about to be truncated."""
        self.delivery.take_back(log_end)

    async def end(self) -> None:
        """Stop the delivery."""
        self.delivery.stop()

    def save(self) -> None:
        """Write the schedule offsets."""
        try:
            self.delivery.persist()
        finally:
            self._file.close()


def warn_of_retention(levels: DelayLevels, store: StoreSettings) -> None:
    """Log that messages may be deleted before they are due."""
    longest_h = levels.longest_ms / UNITS_MS["h"]
    if longest_h > store.file_reserved_hours:
        log.warning(
            "messageDelayLevel has a delay of %g hours, and files of the log are deleted after"
            " fileReservedTime=%d: messages that wait longer are lost",
            *(longest_h, store.file_reserved_hours),
        )
