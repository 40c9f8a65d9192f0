"""A store with timer messages, their delivery, and a clock that goes with the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.timers import delivery
from cometmq.broker.timers.delivery import TimerDelivery
from cometmq.broker.timers.routing import TimerRouting, TimerRules
from cometmq.model import property_names as names
from cometmq.model.delay import DelayLevels
from cometmq.model.errors import ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.topic import TIMER_TOPIC
from cometmq.protocol.record import iter_records
from cometmq.store import MessageStore
from cometmq.store.timers import index, wheel
from cometmq.store.timers.index import TimerIndex
from cometmq.system.clock import Clock
from cometmq.system.files import Files
from support.brokers.timers import RULES
from support.checks.waiting import until
from support.stores.small_stores import put, small_settings

BEGIN_MS = 1_700_000_000_000
LOG_BYTES = 52 * 20 + 16
"""Twenty units fill a file of the timer log."""


def shrink_wheel(patch: pytest.MonkeyPatch, slots: int) -> None:
    """Let timer wheels have fewer slots: a disk in memory copies them often."""
    patch.setattr(wheel, "WHEEL_BYTES", wheel.WHEEL_BYTES // wheel.SLOTS * slots)
    for user in (wheel, index, delivery):
        patch.setattr(user, "SLOTS", slots)


class LoopClock(Clock):
    """A wall clock that goes with the event loop's time, which may be virtual."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        """Return the wall clock in ms since 1970."""
        return BEGIN_MS + int(self.monotonic() * 1000) + self.ahead_ms

    def monotonic(self) -> float:
        """Return the time of the loop."""
        return asyncio.get_running_loop().time()


class Timers:
    """A store with its timers, as a broker has them; made in the event loop.

    Args:
        folder: of the store.
        precision_ms, roll_slots: see `TimerIndex`.
        files: the file system.
        store: further settings of the store.
    """

    def __init__(
        self,
        folder: Path,
        *,
        precision_ms: int = 1000,
        roll_slots: int = 172_800,
        files: Files | None = None,
        rules: TimerRules = RULES,
        **store: Any,
    ) -> None:
        self.folder = folder
        self.clock = LoopClock()
        self.precision_ms, self.roll_slots = precision_ms, roll_slots
        self.files = files or Files()
        self.rules = rules._replace(precision_ms=precision_ms)
        self.settings = {"commit_log_file_bytes": 1 << 20, "consume_queue_file_bytes": 20_000}
        self.settings |= store
        self.lack: ResponseError | None = None
        self.gone: set[str] = set()
        """Topics that were deleted."""
        self.on_route: Callable[[int], object] = lambda log_offset: None
        """Called with the log offset of each message that is about to be delivered."""
        self.open()

    def open(self) -> None:
        """Open the store and its timers."""
        (self.folder / "config").mkdir(parents=True, exist_ok=True)
        self.store = MessageStore(
            small_settings(self.folder, **self.settings), clock=self.clock, files=self.files
        )
        self.store.open()
        self.index = TimerIndex(
            self.files,
            self.folder,
            log_file_bytes=LOG_BYTES,
            precision_ms=self.precision_ms,
            roll_slots=self.roll_slots,
        )
        self.cold_reads = ColdReads()
        self.delivery = TimerDelivery(
            self.store,
            self.index,
            topics=self,
            clock=self.clock,
            cold_reads=self.cold_reads,
            refusal=lambda: self.lack,
        )
        self.delivery.load()
        self.routing = TimerRouting(
            DelayLevels.parse(),
            lambda: self.rules,
            now_ms=self.clock.now_ms,
            count_in=self.index.count_in,
        )
        self.store.notify_of_arrivals(
            lambda topic, *_: self.delivery.arrived() if topic == TIMER_TOPIC else None
        )

    def all(self) -> Mapping[str, object]:
        """Return the topics."""
        return {"T": 1, "U": 1}

    def queue_for(self, name: str, queue_id: int, log_offset: int) -> int | None:
        """Return the queue of a message."""
        self.on_route(log_offset)
        return None if name in self.gone else queue_id

    def start(self, *, delivers: bool = True) -> None:
        """Read the queue, and deliver."""
        self.delivery.begin()
        if delivers:
            self.delivery.start()

    async def stop(self) -> None:
        """Stop as a broker does."""
        await self.delivery.end()
        self.delivery.save()
        self._close()
        self.store.close()

    async def crash(self) -> None:
        """End as a killed process does: what was written to files is there."""
        self.delivery.stop()
        await self.delivery.end()
        self._close()
        self.store.abandon()

    def _close(self) -> None:
        self.index.close()
        self.cold_reads.close()

    async def reopen(self, *, crash: bool = False, delivers: bool = True) -> None:
        """Stop or crash, and start again."""
        await (self.crash() if crash else self.stop())
        self.open()
        self.start(delivers=delivers)

    # --- messages -------------------------------------------------------------------------------

    def send(self, body: str, delay_ms: int, *, topic: str = "T", **more: str) -> None:
        """Store a message that is due after a delay."""
        properties = {
            names.UNIQ_KEY: f"K{body}",
            names.TIMER_DELIVER_MS: str(self.clock.now_ms() + delay_ms),
            **more,
        }
        waiting = self.routing.delayed(topic, 0, properties)
        assert waiting is not None
        put(self.store, body.encode(), waiting.topic, waiting.queue_id, waiting.properties)

    def recall(self, body: str, due_ms: int, *, topic: str = "T") -> None:
        """Store a recall of a message that is due at a time."""
        slot_ms = self.routing.slot_of(due_ms)
        key = {names.TIMER_DEL_UNIQKEY: f"{topic}+K{body}", names.UNIQ_KEY: f"K{body}"}
        properties = key | {names.TIMER_DELIVER_MS: str(slot_ms + 1)}
        waiting = self.routing.delayed(topic, 0, properties)
        assert waiting is not None
        put(self.store, b"0", waiting.topic, waiting.queue_id, waiting.properties)

    def delivered(self, topic: str = "T") -> list[StoredMessage]:
        """Return the messages of a topic."""
        found: list[StoredMessage] = []
        low, high = self.store.bounds(topic, 0)
        while low < high:
            result = self.store.get(topic, 0, low, 1000)
            found += [m for part in result.slices for m in iter_records(part)]
            low = result.next_begin_offset
        return found

    def bodies(self, topic: str = "T") -> list[str]:
        """Return the bodies of the messages of a topic."""
        return [message.body.decode() for message in self.delivered(topic)]

    async def bodies_become(self, *bodies: str, topic: str = "T") -> None:
        """Wait until a topic has these messages, in any order, each once."""
        await until(
            lambda: Counter(self.bodies(topic)) == Counter(bodies), timeout=600, pause_s=0.05
        )

    def counts(self) -> dict[str, int]:
        """Return how many messages of each topic wait."""
        return {each.topic: each.waiting for each in self.index.counts()}
