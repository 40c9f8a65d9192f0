"""Delivers scheduled messages: each is copied from the schedule topic to its topic when it is due.

Every level has its queue in ``SCHEDULE_TOPIC_XXXX``, ordered by due time, whose entries have that
time as their tags code; the offset of a level is the number of messages delivered. An offset
advances only after the message was appended, and is stored in config/delayOffset.json.

One timer per level waits for the level's next message; it reads the clock at least once a second,
because the wall clock may jump. Used in the event loop's thread. The delivered record keeps the
properties of the scheduled one, DELAY, REAL_TOPIC and REAL_QID included, and its store host.

Source: ScheduleMessageService, RocketMQ 5.3, which polls instead of using timers.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from cometmq.broker.checks import check_subscribed_topic
from cometmq.broker.cold_reads import ColdReads, bring_in
from cometmq.broker.offsets.offset_store import Numbers, read_numbers, read_version
from cometmq.model import property_names
from cometmq.model.delay import DelayLevels
from cometmq.model.errors import CometError, InvalidMessageError, ResponseError, StoreError
from cometmq.model.topic import DELAY_TOPIC, HALF_TOPIC
from cometmq.protocol.bodies import DataVersion
from cometmq.protocol.properties import decode_properties
from cometmq.protocol.record import RecordParts, split_record
from cometmq.store import MessageStore
from cometmq.store.config_files import JsonFile
from cometmq.system.clock import Clock

log = logging.getLogger(__name__)

_QUEUE_ID = re.compile(r"[0-9]{1,9}")

RUN_MESSAGES_MAX = 128
"""Messages delivered in one iteration of the event loop, per level."""
CHECK_INTERVAL_S = 1.0
STORE_BUSY_S = 0.1
FAILURE_S = 10.0
READ_AHEAD_MS = 1000
"""Messages that are due within this time are read with those that are due now."""
READS_AT_ONCE = 2
"""For the queue entries and for the messages; a level that needs more reads waits between them."""


class ScheduledDelivery:
    """The delivery of scheduled messages.

    Args:
        store: contains the schedule topic and the target topics.
        levels: the delay levels.
        file: delayOffset.json.
        clock: decides when a message is due.
        cold_reads: reads what is on the disk only.
        check_interval_s: the longest time until the clock is read again.
        store_busy_s: pause while the store refuses appends.
    """

    def __init__(
        self,
        store: MessageStore,
        levels: DelayLevels,
        file: JsonFile,
        *,
        clock: Clock,
        cold_reads: ColdReads,
        check_interval_s: float = CHECK_INTERVAL_S,
        store_busy_s: float = STORE_BUSY_S,
    ) -> None:
        self._store = store
        self._levels = levels
        self._file = file
        self._clock = clock
        self._cold_reads = cold_reads
        self._reading: dict[int, asyncio.Task[None]] = {}
        """The levels whose next messages are being read from the disk."""
        self._was_read: dict[int, tuple[int, int]] = {}
        """Where each level last waited for the disk: its offset, and how often it waited there."""
        self._check_interval_s = check_interval_s
        self._store_busy_s = store_busy_s
        self._offsets: Numbers = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._store_waits: set[int] = set()
        """Levels whose messages the store refuses now; each was logged once."""
        self._changed = False
        self._running = False
        self._saving = threading.Lock()
        self.version: DataVersion = DataVersion(timestamp=clock.now_ms())
        """Version of the table of offsets."""
        self.on_delivery: Callable[[str, int, int], None] | None = None
        """Called with topic, queue and size of every message that was delivered."""

    # --- lifecycle ----------------------------------------------------------------------------

    def load(self) -> None:
        """Read the offsets, and move those outside their queue to its nearer end.

        Raises:
            StoreError: file and backup cannot be read.
        """
        content = self._file.load()
        if content is not None:
            self._offsets = read_numbers(content.get("offsetTable") or {}, self._file)
            self.version = read_version(content, self._file) or self.version
        for level, offset in self._offsets.items():
            low, high = self._store.bounds(DELAY_TOPIC, level - 1)
            self._offsets[level] = min(max(offset, low), high)

    def start(self) -> None:
        """Start the delivery; the event loop must be running."""
        self._running = True
        for level in range(1, self._levels.highest + 1):
            self._schedule_run(level, 0.0)

    def stop(self) -> None:
        """Stop the delivery; the offsets still have to be persisted."""
        self._running = False
        for timer in self._timers.values():
            timer.cancel()
        for task in self._reading.values():
            task.cancel()
        self._reading.clear()
        self._timers.clear()

    def persist(self) -> None:
        """Write the offsets if any has changed; return when they are on the disk.

        The delivered messages go to the disk first, so that no power cut loses one which counts
        as delivered. It waits for the disk and may be called from any thread, before the store is
        closed.

        Raises:
            StoreError: the disk refused; the next call tries again.
        """
        with self._saving:
            if not self._changed:
                return
            self._changed = False
            self.version = self.version.next(self._clock.now_ms())
            content = self._content()
            try:
                self._store.flush()
                self._file.save(content)
            except StoreError:
                self._changed = True
                raise

    # --- reading ------------------------------------------------------------------------------

    def offsets(self) -> Numbers:
        """Return the offset of each level in its queue: the messages that were delivered."""
        return dict(self._offsets)

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return for each level that was used its offset and the end of its queue."""
        return {
            level: (offset, self._store.bounds(DELAY_TOPIC, level - 1)[1])
            for level, offset in sorted(self._offsets.items())
        }

    def arrived(self, queue_id: int) -> None:
        """Note that a message was appended to a queue of the schedule topic."""
        level = queue_id + 1
        is_waited_for = level in self._timers or level in self._reading
        if self._running and not is_waited_for and level <= self._levels.highest:
            self._schedule_run(level, 0.0)

    # --- delivering ---------------------------------------------------------------------------

    def _schedule_run(self, level: int, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers[level] = loop.call_later(seconds, self._run, level)

    def _run(self, level: int) -> None:
        # A failure of one level must stop neither it nor the others.
        del self._timers[level]
        try:
            wait_s = self._deliver_due(level)
            self._store_waits.discard(level)
        except StoreError as problem:
            wait_s = self._store_busy_s
            if level not in self._store_waits:
                self._store_waits.add(level)
                log.warning(
                    "scheduled delivery waits for the store level=%d error=%s", level, problem
                )
        except Exception:
            log.exception("scheduled delivery failed, retrying level=%d", level)
            wait_s = FAILURE_S
        if wait_s is not None and self._running:
            self._schedule_run(level, wait_s)

    def _deliver_due(self, level: int) -> float | None:
        """Deliver due messages; return the seconds until the next run, None for an empty queue."""
        offset = self._offset(level)
        queue = (DELAY_TOPIC, level - 1, offset, RUN_MESSAGES_MAX)
        cold = self._store.reader.cold_units(*queue, None)
        if cold:
            self._read_first(level, offset, partial(bring_in, cold))
            return None
        units = self._store.consume_queue_units(*queue)
        if not units:
            return None
        latest_ms = self._clock.now_ms() + self._levels.delay_ms(level)
        for number, (log_offset, size_bytes, due_ms) in enumerate(units):
            now_ms = self._clock.now_ms()
            # Due later than the level allows: the level was changed or the clock set back.
            if now_ms < due_ms <= latest_ms:
                return min((due_ms - now_ms) / 1000, self._check_interval_s)
            if self._store.cold_record(log_offset, size_bytes) is not None:
                self._read_first(level, offset, self._reads(units[number:]))
                return None
            self._deliver(log_offset, size_bytes)
            offset += 1
            self._offsets[level] = offset
            self._changed = True
        return 0.0

    def _reads(self, units: list[tuple[int, int, int]]) -> Callable[[], object]:
        """Return a function that reads messages which are due now or soon, for any thread."""
        soon_ms = self._clock.now_ms() + READ_AHEAD_MS
        cold = [
            read
            for log_offset, size_bytes, due_ms in units
            if due_ms <= soon_ms
            and (read := self._store.cold_record(log_offset, size_bytes)) is not None
        ]
        return lambda: [read() for read in cold]

    def _read_first(self, level: int, offset: int, read: Callable[[], object]) -> None:
        """Read from the disk and run the level again.

        Pages that leave the memory before they are used are read again, after a pause; so are those
        that the disk cannot read. The messages of a level are delivered in their order, so the
        level waits until then.
        """
        before, times = self._was_read.get(level, (offset, 0))
        times = times + 1 if before == offset else 1
        self._was_read[level] = (offset, times)
        pause_s = self._store_busy_s if times > READS_AT_ONCE else 0.0
        self._reading[level] = asyncio.ensure_future(self._read(level, read, pause_s))

    async def _read(self, level: int, read: Callable[[], object], pause_s: float) -> None:
        try:
            await self._cold_reads.run(read)
        except StoreError:  # logged where it was met
            pause_s = FAILURE_S
        except ResponseError:  # too many other reads
            pause_s = self._store_busy_s
        self._reading.pop(level, None)
        if self._running:
            self._schedule_run(level, pause_s)

    def _offset(self, level: int) -> int:
        low, high = self._store.bounds(DELAY_TOPIC, level - 1)
        known = self._offsets.get(level, 0)
        offset = min(max(known, low), high)
        if offset != known:
            log.warning(
                "corrected the schedule offset level=%d from=%d to=%d", level, known, offset
            )
            self._offsets[level] = offset
        return offset

    def _deliver(self, log_offset: int, size_bytes: int) -> None:
        """Store one message in its target queue; skip one that cannot be read or is invalid.

        Raises:
            StoreError: the store does not take it now.
        """
        data = self._store.record_at(log_offset, size_bytes)
        if data is None:
            log.warning(
                "skipped a scheduled message: its record is missing physical_offset=%d", log_offset
            )
            return
        try:
            self._append_to_target(split_record(data))
        except StoreError:
            raise
        except CometError as problem:
            log.error(
                "skipped a scheduled message physical_offset=%d error=%s", log_offset, problem
            )

    def _append_to_target(self, record: RecordParts) -> None:
        properties = decode_properties(record.properties)
        topic = properties.get(property_names.REAL_TOPIC, "")
        queue_text = properties.get(property_names.REAL_QID, "")
        check_subscribed_topic(topic)
        if _QUEUE_ID.fullmatch(queue_text) is None or topic in (HALF_TOPIC, DELAY_TOPIC):
            raise InvalidMessageError(
                f"expected a target topic and queue, met topic {topic!r}, queue {queue_text[:80]!r}"
            )
        stored = self._store.append(
            topic,
            int(queue_text),
            record.body,
            record.properties,
            flag=record.flag,
            sys_flag=record.sys_flag,
            born_time_ms=record.born_time_ms,
            born_host=record.born_host,
            store_host=record.store_host,
            reconsume_times=record.reconsume_times,
            prepared_offset=record.prepared_offset,
        )
        if self.on_delivery is not None:
            self.on_delivery(topic, int(queue_text), stored.size_bytes)

    def _content(self) -> dict[str, Any]:
        return {"dataVersion": self.version, "offsetTable": dict(self._offsets)}
