"""Timer messages: the feature, its requests and jobs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.broker.timers.figures import TimerFigures
from cometmq.broker.timers.routing import TIMER_QUEUE, TimerRouting, TimerRules
from cometmq.model.errors import StoreError
from cometmq.model.topic import TIMER_TOPIC
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import Job, every
from cometmq.store import StoreSettings
from cometmq.system.failure_log import FailureLog

if TYPE_CHECKING:
    from cometmq.broker.delay.feature import DelayFeature
    from cometmq.broker.durability.feature import DurabilityFeature
    from cometmq.broker.timers.delivery import TimerDelivery
    from cometmq.broker.timers.handler import TimerTablesHandler
    from cometmq.broker.timers.listing import TimerListHandler
    from cometmq.broker.timers.recall import RecallHandler
    from cometmq.store.timers.index import Count

log = logging.getLogger(__name__)

HOUR_MS: Final = 3_600_000
ROLL_SLOTS_MIN: Final = 60
INDEX_FILES: Final = ("timerwheel", "timerlog", "config/timercheck")


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
        self._has_begun = self._delivers = False
        self.delivery = Deferred(self._make)
        """Reads the queue and delivers: made when the timer topic has a message, or the store has
        the files of an index."""
        self._failures = FailureLog(
            log,
            fails="timer messages wait, retrying",
            works="timer messages are read",
            name="for",
        )
        self.routing = TimerRouting(
            delay.levels,
            self.rules,
            now_ms=core.clock.now_ms,
            count_in=self._count_in,
        )
        """Decides which messages wait."""
        root = core.configuration[StoreSettings].root
        if self._has_messages() or any(core.files.exists(root / file) for file in INDEX_FILES):
            self.delivery.get()

    def _has_messages(self) -> bool:
        store = self._core.store
        return bool(store.dispatch_backlog_bytes or store.next_offset(TIMER_TOPIC, TIMER_QUEUE))

    def _make(self) -> TimerDelivery:
        from cometmq.broker.timers.delivery import TimerDelivery
        from cometmq.store.timers.index import TimerIndex

        core, store = self._core, self._core.configuration[StoreSettings]
        delivery = TimerDelivery(
            core.store,
            TimerIndex(
                core.files,
                store.root,
                log_file_bytes=store.timer_log_file_bytes,
                precision_ms=store.timer_precision_ms,
                roll_slots=_roll_slots(store),
            ),
            topics=core.topics,
            clock=core.clock,
            cold_reads=core.cold_reads,
            on_delivery=lambda topic, queue_id, size: core.stats.put(topic, queue_id, 1, size),
            request_sync=(
                None if core.store.shows_unsynced else self._durability.commit.request_sync
            ),
            refusal=self._durability.refusal,
        )
        try:
            delivery.load()
        except BaseException:
            delivery.index.close()
            raise
        if self._has_begun:
            delivery.begin()
        if self._delivers:
            delivery.start()
        return delivery

    def _count_in(self, slot_ms: int) -> int:
        delivery = self.delivery.made()
        return 0 if delivery is None else delivery.index.count_in(slot_ms)

    def _slot_has_begun(self, slot_ms: int) -> bool:
        delivery = self.delivery.made()
        return delivery is not None and delivery.has_begun(slot_ms)

    def figures(self) -> TimerFigures:
        """Return how far the timers are."""
        if (delivery := self.delivery.made()) is not None:
            return delivery.figures()
        low, end = self._core.store.bounds(TIMER_TOPIC, TIMER_QUEUE)
        return TimerFigures(queue_behind=end - low)

    def counts(self) -> list[Count]:
        """Return how many messages of each topic wait."""
        delivery = self.delivery.made()
        return [] if delivery is None else delivery.counts()

    def arrived(self) -> None:
        """Note that readers see another message of the queue."""
        if (delivery := self._needed()) is not None:
            delivery.arrived()

    def _needed(self) -> TimerDelivery | None:
        """Return the delivery, made now if it was not; None if the disk refuses.

        `_sample` tries again each second.
        """
        try:
            delivery = self.delivery.get()
        except StoreError as problem:
            self._failures.failed("the index", problem)
            return None
        self._failures.succeeded("the index")
        return delivery

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
                has_begun=self._slot_has_begun,
                store_host=endpoint.store_host,
            )

        @Deferred
        def tables() -> TimerTablesHandler:
            from cometmq.broker.timers.handler import TimerTablesHandler

            return TimerTablesHandler(self.delivery.get(), core.clock)

        @Deferred
        def listing() -> TimerListHandler:
            from cometmq.broker.timers.listing import TimerListHandler

            return TimerListHandler(core, self.delivery.get().index, self.routing)

        return Feature(
            {
                RequestCode.RECALL_MESSAGE: recalls.handler(lambda h: h.recall),
                RequestCode.GET_TIMER_CHECK_POINT: tables.handler(lambda h: h.checkpoint),
                RequestCode.GET_TIMER_METRICS: tables.handler(lambda h: h.metrics),
                RequestCode.LIST_TIMER_MESSAGES: listing.exclusive(lambda h: h.messages),
            },
            [
                Job("persist-timers", self._interval_s, self._persist),
                every(1.0, self._sample, "sample-timers"),
            ],
        )

    def _interval_s(self) -> float:
        return self._core.configuration[StoreSettings].timer_flush_interval_ms / 1000

    async def _persist(self) -> None:
        if (delivery := self.delivery.made()) is not None:
            await delivery.persist()

    def _sample(self) -> None:
        """Note the rates; a slave is not notified of its first message."""
        is_needed = self.delivery.made() is not None or self._has_messages()
        if is_needed and (delivery := self._needed()) is not None:
            delivery.sample()

    async def begin(self, endpoint: Endpoint) -> None:
        """Read the queue; deliver as a master."""
        self._has_begun = True
        if (delivery := self.delivery.made()) is not None:
            delivery.begin()
        if not self._core.role.is_slave:
            self._start()

    def _start(self) -> None:
        if self._core.configuration[StoreSettings].timer_wheel_enabled:
            self._delivers = True
            if (delivery := self.delivery.made()) is not None:
                delivery.start()

    def role_changed(self) -> None:
        """Stop the delivery of a slave."""
        if self._core.role.is_slave:
            self._delivers = False
            if (delivery := self.delivery.made()) is not None:
                delivery.stop()

    async def take_over(self) -> None:
        """Start the delivery in place of the old master."""
        self._start()

    def before_truncation(self, log_end: int) -> None:
        """Let the messages wait whose copies are about to be truncated."""
        if (delivery := self.delivery.made()) is not None:
            delivery.take_back(log_end)

    async def end(self) -> None:
        """Stop the delivery."""
        self._has_begun = self._delivers = False
        if (delivery := self.delivery.made()) is not None:
            await delivery.end()

    def save(self) -> None:
        """Write the index."""
        if (delivery := self.delivery.made()) is not None:
            try:
                delivery.save()
            finally:
                delivery.index.close()


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
