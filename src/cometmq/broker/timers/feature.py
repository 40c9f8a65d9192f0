"""Timer messages: the feature, its requests and jobs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.broker.timers.delivery import TimerDelivery
from cometmq.broker.timers.routing import TimerRouting, TimerRules
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import Job, every
from cometmq.store import StoreSettings
from cometmq.store.timers.index import TimerIndex

if TYPE_CHECKING:
    from cometmq.broker.delay.feature import DelayFeature
    from cometmq.broker.durability.feature import DurabilityFeature
    from cometmq.broker.timers.handler import TimerTablesHandler
    from cometmq.broker.timers.recall import RecallHandler

log = logging.getLogger(__name__)

HOUR_MS: Final = 3_600_000
ROLL_SLOTS_MIN: Final = 60


class TimersFeature(BrokerFeature):
    """Delivers timer messages while this broker is the master.

    Args:
        core: of the broker.
        durability: decides whether messages may be stored, and acknowledges recalls.
        delay: has the delay levels.
    """

    def __init__(self, core: Core, durability: DurabilityFeature, delay: DelayFeature) -> None:
        super().__init__(core)
        self._durability = durability
        store = core.configuration[StoreSettings]
        self.index = TimerIndex(
            core.files,
            store.root,
            log_file_bytes=store.timer_log_file_bytes,
            precision_ms=store.timer_precision_ms,
            roll_slots=_roll_slots(store),
        )
        self.delivery = TimerDelivery(
            core.store,
            self.index,
            topics=core.topics,
            clock=core.clock,
            cold_reads=core.cold_reads,
            on_delivery=lambda topic, queue_id, size: core.stats.put(topic, queue_id, 1, size),
            request_sync=(None if core.store.shows_unsynced else durability.commit.request_sync),
            refusal=durability.refusal,
        )
        self.routing = TimerRouting(
            delay.levels,
            self.rules,
            now_ms=core.clock.now_ms,
            count_in=self.index.count_in,
        )
        """Decides which messages wait for their time."""
        self.delivery.load()

    def rules(self) -> TimerRules:
        """Return the rules that the settings give."""
        store = self._core.configuration[StoreSettings]
        return TimerRules(
            store.timer_wheel_enabled,
            store.timer_precision_ms,
            store.timer_max_delay_s * 1000,
            store.timer_congestion_max,
            self._core.settings().broker_name,
        )

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handlers of recalls and tables, and the write of the index to its files."""
        core = self._core

        @Deferred
        def recalls() -> RecallHandler:
            from cometmq.broker.timers.recall import RecallHandler

            return RecallHandler(
                core,
                self.rules,
                self.routing,
                self._durability.wait,
                store_host=endpoint.store_host,
            )

        @Deferred
        def tables() -> TimerTablesHandler:
            from cometmq.broker.timers.handler import TimerTablesHandler

            return TimerTablesHandler(self.index, core.clock, self.delivery.read_ms)

        return Feature(
            {
                RequestCode.RECALL_MESSAGE: recalls.handler(lambda h: h.recall),
                RequestCode.GET_TIMER_CHECK_POINT: tables.handler(lambda h: h.checkpoint),
                RequestCode.GET_TIMER_METRICS: tables.handler(lambda h: h.metrics),
            },
            [
                Job("persist-timers", self._interval_s, self.delivery.persist),
                every(1.0, self.delivery.sample, "sample-timers"),
            ],
        )

    def _interval_s(self) -> float:
        return self._core.configuration[StoreSettings].timer_flush_interval_ms / 1000

    async def begin(self, endpoint: Endpoint) -> None:
        """Read the queue; deliver as a master."""
        self.delivery.begin()
        if not self._core.role.is_slave:
            self._start()

    def _start(self) -> None:
        if self._core.configuration[StoreSettings].timer_wheel_enabled:
            self.delivery.start()

    def role_changed(self) -> None:
        """Stop the delivery of a slave."""
        if self._core.role.is_slave:
            self.delivery.stop()

    async def take_over(self) -> None:
        """Start the delivery in place of the old master."""
        self._start()

    def before_truncation(self, log_end: int) -> None:
        """Let the messages wait whose copies are about to be truncated."""
        self.delivery.take_back(log_end)

    async def end(self) -> None:
        """Stop the delivery."""
        await self.delivery.end()

    def save(self) -> None:
        """Write the index."""
        try:
            self.delivery.save()
        finally:
            self.index.close()


def _roll_slots(store: StoreSettings) -> int:
    """Return the window of slots: no record is deleted before its message is stored again."""
    kept_slots = store.file_reserved_hours * HOUR_MS * 2 // 3 // store.timer_precision_ms
    slots = max(ROLL_SLOTS_MIN, kept_slots)
    if slots < store.timer_roll_window_slots:
        log.warning(
            "timer messages are stored again after %d slots, not after timerRollWindowSlot=%d:"
            " files of the log are deleted after fileReservedTime=%d hours",
            *(slots, store.timer_roll_window_slots, store.file_reserved_hours),
        )
        return slots
    return store.timer_roll_window_slots
