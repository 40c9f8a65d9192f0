"""Delivers scheduled messages: each is copied from the schedule topic to its topic when it is due.

Every level has its queue in ``SCHEDULE_TOPIC_XXXX``, ordered by due time, whose entries have that
time as their tags code; the offset of a level is the number of messages delivered. An offset
advances only after the message was appended, and is stored in config/delayOffset.json, together
with the end of the log at that time: what was delivered later is recognized there at the next
start. RocketMQ ignores that entry, and removes it when it stores the file.

A slave that acts as the master sends messages to other brokers instead, one of each level at a
time, and advances the offset when they are stored there.

If other replicas must confirm the log, slaves copy only offsets whose deliveries are confirmed: a
master that is elected may lack the others, and delivers those messages itself. While sends are
refused for lack of replicas, nothing is delivered either: it would have as few copies.

Levels that the settings do not have any more are delivered as well, at the times in their queues.

One timer per level waits for the level's next message; it reads the clock at least once a second,
because the wall clock may jump. Messages that are due are delivered in slices, one level after the
other, with other work of the event loop in between. Used in the event loop's thread. The delivered
record keeps the properties of the scheduled one, DELAY, REAL_TOPIC and REAL_QID included, and its
store host.

Source: ScheduleMessageService, RocketMQ 5.3, which polls instead of using timers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final

from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.delay.delivered import (
    offsets_before,
    offsets_by_log,
    offsets_by_log_in_slices,
)
from cometmq.broker.offsets.offset_store import Numbers, read_numbers, read_version
from cometmq.broker.targets import stored_again, waiting_target
from cometmq.model.delay import DelayLevels, delay_queue, level_of_queue
from cometmq.model.errors import CometError, InvalidMessageError, ResponseError, StoreError
from cometmq.model.topic import DELAY_TOPIC
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.record import RecordParts, split_record
from cometmq.remoting.slices import SLICE_S
from cometmq.store import MessageStore, StoreUnavailableError
from cometmq.store.config_files import JsonFile
from cometmq.store.message_store import bring_in
from cometmq.store.queues.consume_queue_ext import is_address
from cometmq.system.clock import Clock
from cometmq.system.failure_log import FailureLog, RateLimitedLog

log = logging.getLogger(__name__)

_LOG_OFFSET: Final = "logOffset"
"""The entry of the file that names the end of the log."""

RUN_MESSAGES_MAX: Final = 128
"""Messages delivered in one slice; fewer, if they are large or take longer than `SLICE_S`."""
RUN_BYTES_MAX: Final = 256 * 1024
"""A slice ends with the message that exceeds it: the next one may take milliseconds."""
CHECK_INTERVAL_S: Final = 1.0
STORE_BUSY_S: Final = 0.1
SEND_RETRY_S: Final = 1.0
"""Pause of a level whose next message no other broker has stored."""
FAILURE_S = 10.0
FAILURES_MAX: Final = 3
"""How often one message may fail for another reason than a refusal of the store."""
READ_AHEAD_MS: Final = 1000
"""Messages that are due within this time are read with messages that are due now."""
READS_AT_ONCE: Final = 2
"""For the queue entries and for the messages; a level that needs more reads waits between them."""
UNCONFIRMED_MAX: Final = 256
"""Positions that are kept until they are confirmed; then the newest one is replaced."""
UNRECORDED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes after which the end of the log is stored again while scheduled messages wait."""


Send = Callable[[str, RecordParts], Awaitable[None]]
"""Sends a message that is due to its topic at another broker; CometError if none has stored it."""


class ScheduledDelivery:
    """The delivery of scheduled messages.

    Args:
        store: contains the schedule topic and the target topics.
        levels: the delay levels.
        file: delayOffset.json.
        queue_for: returns the queue to store a message in, given topic and queue that it was sent
            to and its log offset; None if the topic was deleted.
        clock: decides when a message is due.
        cold_reads: reads what is on the disk only.
        on_delivery: called with topic, queue, size and delay level of every message that was
            delivered.
        request_sync: called after each slice that delivered messages, if readers wait for the disk.
        refusal: returns why too few replicas would have a message that is stored now, or None.
        check_interval_s: the longest time until the clock is read again.
        store_busy_s: pause while the store refuses appends.
    """

    def __init__(
        self,
        store: MessageStore,
        levels: DelayLevels,
        file: JsonFile,
        *,
        queue_for: Callable[[str, int, int], int | None],
        clock: Clock,
        cold_reads: ColdReads,
        on_delivery: Callable[[str, int, int, int], None] | None = None,
        request_sync: Callable[[], object] | None = None,
        refusal: Callable[[], ResponseError | None] = lambda: None,
        check_interval_s: float = CHECK_INTERVAL_S,
        store_busy_s: float = STORE_BUSY_S,
    ) -> None:
        self._store = store
        self._levels = levels
        self._file = file
        self._queue_for = queue_for
        self._clock = clock
        self._cold_reads = cold_reads
        self._reading: dict[int, asyncio.Task[None]] = {}
        """The levels whose next messages are being read from the disk, or sent to another broker.
        """
        self._was_read: dict[int, tuple[int, int]] = {}
        """The offset at which a level last waited for the disk, and how often it waited there."""
        self._check_interval_s = check_interval_s
        self._store_busy_s = store_busy_s
        self._refusal = refusal
        self._offsets: Numbers = {}
        self._known: set[int] = set()
        """The levels of the settings, and further ones that have a queue."""
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._due: dict[int, None] = {}
        """The levels that have messages to deliver now, in the order in which they are served."""
        self._slice: asyncio.Handle | None = None
        self._store_waits = FailureLog(
            log,
            fails="scheduled delivery waits for the store",
            works="scheduled delivery continues",
            name="level",
        )
        self._send_waits = FailureLog(
            log,
            fails="scheduled messages wait for another broker of their topic",
            works="scheduled messages are sent again",
            name="level",
        )
        self._failures: dict[int, tuple[int, int]] = {}
        """The offset at which a level last failed, and how often it failed there."""
        self._skipped = RateLimitedLog(log, "scheduled messages were skipped or moved")
        self._noted: tuple[Numbers, int] = {}, 0
        """The offsets after the last slice, and the end of the log then."""
        self._unconfirmed: list[tuple[Numbers, int]] = []
        """Such pairs in their order, from the last confirmed one on, if the log is confirmed."""
        self._running = False
        self._send: Send | None = None
        self._saving = threading.Lock()
        self._saved: Numbers = {}
        """The offsets in the file."""
        self._saved_log_offset: int | None = None
        """The end of the log that the file names."""
        self._is_copy = False
        """Whether the offsets come from the master of this broker."""
        self.version: DataVersion = DataVersion(timestamp=clock.now_ms())
        """Version of the table of offsets."""
        self.on_delivery = on_delivery
        self.request_sync = request_sync

    # --- lifecycle ----------------------------------------------------------------------------

    def load(self) -> None:
        """Read the offsets, and advance them past messages that the log shows as delivered.

        Offsets outside their queue move to its nearer end.

        Raises:
            StoreError: file and backup cannot be read.
        """
        queues = (queue_id for topic, queue_id in self._store.queue_keys() if topic == DELAY_TOPIC)
        self._known = {*range(1, self._levels.highest + 1), *map(level_of_queue, queues)}
        content = self._file.load()
        if content is not None:
            self._take(content)
            start = self._saved_log_offset
        else:  # perhaps a crash came before the first one was stored
            start = self._store.min_log_offset
            self._offsets |= offsets_by_log(self._store, {}, self._known, start)
        written_to = self._store.written_to
        if start is None or self._store.readable_to == written_to:
            self._note(written_to)
        else:  # what the log has behind is looked at once it is confirmed
            self._note(min(start, written_to))
        if self._saved_log_offset is None:
            self._store_position()

    def _store_position(self) -> None:
        """Store the end of the log before messages that wait are delivered."""
        try:
            self.persist()
        except StoreError as problem:  # the job tries again
            log.warning("scheduled messages may be delivered again after a crash: %s", problem)

    def _take(self, content: Mapping[str, Any]) -> None:
        self._saved = read_numbers(content.get("offsetTable") or {}, self._file)
        self.version = read_version(content, self._file) or self.version
        for level, offset in self._saved.items():
            self._offsets[level] = self._corrected(level, offset)
        log_offset = content.get(_LOG_OFFSET)
        if log_offset is None:  # stored by RocketMQ
            return
        if type(log_offset) is not int or log_offset < 0:
            raise StoreError(
                f"{self._file.path} has the {_LOG_OFFSET} {str(log_offset)[:80]!r},"
                " expected an offset"
            )
        self._saved_log_offset = log_offset
        self._offsets |= offsets_by_log(self._store, self._offsets, self._known, log_offset)

    def copy(self, offsets: Numbers, version: DataVersion | None, log_offset: int) -> None:
        """Take over the offsets of the master; ignored while messages are delivered.

        Args:
            offsets: of each level.
            version: of that table; None if a broker of RocketMQ 4 is the master.
            log_offset: an end of the log that the offsets cover.
        """
        if self._running:
            return
        self._offsets = dict(offsets)
        self._note(log_offset)
        self.version = version or self.version
        self._is_copy = True

    def take_back(self, log_offset: int) -> None:
        """Count the messages as waiting whose copies are about to be truncated.

        The offsets are on the disk before the log is truncated: a start finds the copies there
        that it still has. Not while messages are delivered.

        Args:
            log_offset: the end that the log gets.

        Raises:
            StoreError: the disk refused.
        """
        self._offsets |= offsets_before(self._store, self._offsets, log_offset)
        self._unconfirmed.clear()
        self._note(min(log_offset, self._noted[1]))
        self._is_copy = True
        self.persist()

    def advance(self, offsets: Numbers) -> int:
        """Take over the offsets that are larger than those known, before the start.

        Args:
            offsets: of each level, from a slave; none is taken over beyond the end of its queue.

        Returns:
            How many were taken over.
        """
        found = {level: self._corrected(level, offset) for level, offset in offsets.items()}
        larger = {n: offset for n, offset in found.items() if offset > self._offsets.get(n, 0)}
        self._offsets |= larger
        self._note_progress()
        return len(larger)

    async def take_over(self, send: Send | None = None) -> None:
        """Start the delivery in place of the master.

        The offsets, copied or loaded, advance past the messages that the master has delivered
        since, as the log shows.

        Args:
            send: where messages go; None to store them here.
        """
        self._send = send
        if not self._running:
            start = self._noted[1]
            self._offsets |= await offsets_by_log_in_slices(
                self._store, self._offsets, self._known, start
            )
        self.start()

    def start(self) -> None:
        """Start the delivery; the event loop must be running."""
        if self._running:
            return
        self._running, self._is_copy = True, False
        for level in sorted(self._known):
            self._run_soon(level)

    async def finish(self) -> None:
        """Stop the delivery; return when the messages that are being sent are sent."""
        self._cancel_runs()
        if self._reading:
            await asyncio.wait(list(self._reading.values()))
        self.stop()
        self._send = None

    def _cancel_runs(self) -> None:
        if self._running:  # else the log may have what the offsets do not count
            self._note_progress()
        self._running = False
        for timer in self._timers.values():
            timer.cancel()
        if self._slice is not None:
            self._slice.cancel()
            self._slice = None
        self._timers.clear()
        self._due.clear()

    def stop(self) -> None:
        """Stop the delivery; the offsets still have to be persisted."""
        self._cancel_runs()
        for task in self._reading.values():
            task.cancel()
        self._reading.clear()
        self._skipped.settle(now=True)

    def persist(self) -> None:
        """Write the offsets if any has changed; return when they are on the disk.

        The delivered messages go to the disk first, so that no power cut loses one which counts
        as delivered. It waits for the disk and may be called from any thread, before the store is
        closed.

        Raises:
            StoreError: the disk refused; the next call tries again.
        """
        self._skipped.settle()
        with self._saving:
            offsets, log_offset = self._noted
            is_changed = offsets != self._saved
            if not is_changed and not self._needs_position(offsets, log_offset):
                return
            if is_changed and not self._is_copy:
                self.version = self.version.next(self._clock.now_ms())
            content = {
                "dataVersion": self.version,
                "offsetTable": offsets,
                _LOG_OFFSET: log_offset,
            }
            self._store.flush()
            self._file.save(content)
            self._saved, self._saved_log_offset = offsets, log_offset

    def _needs_position(self, offsets: Numbers, log_offset: int) -> bool:
        """Return whether the next start would read too much of the log."""
        saved = self._saved_log_offset
        if saved is not None and log_offset < saved:
            return True  # a start would find no record there once others are behind
        if saved is not None and log_offset - saved < UNRECORDED_BYTES_MAX:
            return False
        return any(
            offsets.get(level, 0) < self._store.next_offset(DELAY_TOPIC, delay_queue(level))
            for level in list(self._known)
        )

    # --- reading ------------------------------------------------------------------------------

    def offsets(self) -> Numbers:
        """Return the offset of each level in its queue: the messages that were delivered."""
        return dict(self._offsets)

    def confirmed_offsets(self) -> Numbers:
        """Return the offsets that count no message whose delivery may be truncated yet."""
        self._drop_confirmed()
        return dict(self._unconfirmed[0][0]) if self._unconfirmed else self.offsets()

    def _drop_confirmed(self) -> None:
        """Keep the last confirmed pair, and the pairs behind it."""
        confirmed_to, kept = self._store.confirmed_to, self._unconfirmed
        while len(kept) > 1 and kept[1][1] <= confirmed_to:
            del kept[0]

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return for each level that was used its offset and the end of its queue."""
        ends = {
            level: self._store.bounds(DELAY_TOPIC, delay_queue(level))[1]
            for level in self._known | self._offsets.keys()
        }
        return {
            level: (self._offsets.get(level, 0), end)
            for level, end in sorted(ends.items())
            if end or level in self._offsets
        }

    def arrived(self, queue_id: int) -> None:
        """Note that a message was appended to a queue of the schedule topic."""
        level = level_of_queue(queue_id)
        self._known.add(level)
        if self._running and not (level in self._timers or level in self._reading):
            self._run_soon(level)

    # --- delivering ---------------------------------------------------------------------------

    def _schedule_run(self, level: int, seconds: float) -> None:
        if seconds > 0:
            loop = asyncio.get_running_loop()
            self._timers[level] = loop.call_later(seconds, self._run_soon, level)
        else:
            self._run_soon(level)

    def _run_soon(self, level: int) -> None:
        self._timers.pop(level, None)
        self._due[level] = None
        if self._slice is None:
            self._slice = asyncio.get_running_loop().call_soon(self._run_slice)

    def _run_slice(self) -> None:
        """Deliver messages of the first due level; each further level gets a slice of its own."""
        level = next(iter(self._due))
        del self._due[level]
        self._slice = None
        if self._due:
            self._slice = asyncio.get_running_loop().call_soon(self._run_slice)
        written_to = self._store.written_to
        self._run(level)
        if self.request_sync is not None and self._store.written_to > written_to:
            self.request_sync()

    def _run(self, level: int) -> None:
        # A failure of one level must stop neither it nor the others.
        try:
            wait_s = self._deliver_due(level)
            self._store_waits.succeeded(str(level))
        except StoreError as problem:
            wait_s = self._store_busy_s
            self._store_waits.failed(str(level), problem)
        except Exception as problem:
            log.exception("scheduled delivery failed level=%d", level)
            wait_s = FAILURE_S
            if self._failed_too_often(level):
                self._skip(level, self._offset(level), f"{type(problem).__name__}: {problem}")
                wait_s = 0.0
        if wait_s is not None and self._running:
            self._schedule_run(level, wait_s)

    def _deliver_due(self, level: int) -> float | None:
        """Deliver due messages of one slice.

        Returns:
            The seconds until the next run; None if an arrival or the end of a read begins it.
        """
        try:
            return self._deliver_slice(level)
        finally:
            self._note_progress()

    def _note_progress(self) -> None:
        """Note offsets and end of the log for the next write to the file.

        The offsets count every message that was delivered before this end.
        """
        self._note(self._store.written_to)

    def _note(self, log_offset: int) -> None:
        self._noted = noted = dict(self._offsets), log_offset
        if not self._store.confirms:
            return
        self._drop_confirmed()
        if len(self._unconfirmed) >= UNCONFIRMED_MAX:
            self._unconfirmed[-1] = noted
        else:
            self._unconfirmed.append(noted)

    def _deliver_slice(self, level: int) -> float | None:
        end_s, left_bytes = monotonic() + SLICE_S, RUN_BYTES_MAX
        offset = self._offset(level)
        queue = (DELAY_TOPIC, delay_queue(level), offset, RUN_MESSAGES_MAX)
        cold = self._store.reader.cold_units(*queue, None)
        if cold:
            self._read_first(level, offset, partial(bring_in, cold))
            return None
        units = self._store.consume_queue_units(*queue)
        if not units:
            return None
        for number, (log_offset, size_bytes, due_ms) in enumerate(units):
            now_ms = self._clock.now_ms()
            if is_address(due_ms):  # of an extension unit that is lost
                read = self._store.cold_store_time(DELAY_TOPIC, delay_queue(level), offset)
                if read is not None:
                    self._read_first(level, offset, read)
                    return None
                due_ms = self._store.store_time_at(DELAY_TOPIC, delay_queue(level), offset)
                if level <= self._levels.highest:
                    due_ms += self._levels.delay_ms(level)
            if now_ms < due_ms:
                if level > self._levels.highest and (
                    read := self._store.cold_store_time(DELAY_TOPIC, delay_queue(level), offset)
                ):
                    self._read_first(level, offset, read)
                    return None
                if not self._is_beyond_level(level, offset, due_ms, now_ms):
                    return min((due_ms - now_ms) / 1000, self._check_interval_s)
            if self._store.cold_record(log_offset, size_bytes) is not None:
                self._read_first(level, offset, self._reads(units[number:]))
                return None
            if self._send is not None:
                sending = self._send_away(self._send, level, offset, log_offset, size_bytes)
                self._reading[level] = asyncio.ensure_future(sending)
                return None
            if (lack := self._refusal()) is not None:
                raise StoreUnavailableError(lack.remark)
            self._deliver(level, offset, log_offset, size_bytes)
            offset += 1
            left_bytes -= size_bytes
            if left_bytes <= 0 or monotonic() >= end_s:
                break
        return 0.0

    def _is_beyond_level(self, level: int, offset: int, due_ms: int, now_ms: int) -> bool:
        """Return whether a message is due later than its level allows.

        The wall clock was set back, or the level made shorter: the message is due now, as in
        RocketMQ. A level that the settings do not have any more allows what it did allow.
        """
        if level <= self._levels.highest:
            return due_ms > now_ms + self._levels.delay_ms(level)
        return self._store.store_time_at(DELAY_TOPIC, delay_queue(level), offset) > now_ms

    def _reads(self, units: Sequence[tuple[int, int, int]]) -> _RecordReads:
        """Return what reads messages which are due now or soon, for any thread."""
        soon_ms = self._clock.now_ms() + READ_AHEAD_MS
        near = [unit for unit in units[1:] if unit[2] <= soon_ms]
        reads = [self._store.cold_record(log_offset, size) for log_offset, size, _ in near]
        return _RecordReads(self._store.cold_record(*units[0][:2]), reads)

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
        except StoreError as problem:  # logged where it was met
            pause_s = FAILURE_S
            blocks_others = isinstance(read, _RecordReads) and read.has_others
            if blocks_others and self._failed_too_often(level):
                self._skip(level, self._offset(level), problem)
                pause_s = 0.0
        except ResponseError:  # too many other reads
            pause_s = self._store_busy_s
        self._reading.pop(level, None)
        if self._running:
            self._schedule_run(level, pause_s)

    def _failed_too_often(self, level: int) -> bool:
        """Count a failure of the next message of a level; return whether to skip it."""
        offset = self._offset(level)
        before, times = self._failures.get(level, (offset, 0))
        times = times + 1 if before == offset else 1
        self._failures[level] = (offset, times)
        return (
            self._send is None  # the master may have what this slave cannot deliver
            and times >= FAILURES_MAX
            and offset < self._store.bounds(DELAY_TOPIC, delay_queue(level))[1]
        )

    def _offset(self, level: int) -> int:
        known = self._offsets.get(level, 0)
        offset = self._corrected(level, known)
        if offset != known:
            log.warning(
                "corrected the schedule offset level=%d from=%d to=%d", level, known, offset
            )
            self._offsets[level] = offset
        return offset

    def _corrected(self, level: int, offset: int) -> int:
        """Return an offset within its queue."""
        low = self._store.bounds(DELAY_TOPIC, delay_queue(level))[0]
        high = self._store.next_offset(DELAY_TOPIC, delay_queue(level))
        if self._store.dispatch_backlog_bytes:  # a full disk keeps messages out of the queue
            high = max(high, offset)
        return min(max(offset, low), high)

    def _skip(self, level: int, offset: int, reason: object) -> None:
        self._skipped.add(
            "skipped a scheduled message level=%d offset=%d error=%s", level, offset, reason
        )
        self._offsets[level] = offset + 1

    def _deliver(self, level: int, offset: int, log_offset: int, size_bytes: int) -> None:
        """Store one message in its target queue; skip one that cannot be read or is invalid.

        Raises:
            StoreError: the store does not take it now.
        """
        try:
            record = self._record(log_offset, size_bytes)
            topic, queue_id = self._target(level, offset, record)
            stored = self._store.append(
                stored_again(record, topic, queue_id, prepared_offset=record.prepared_offset)
            )
        except StoreError:
            raise
        except CometError as problem:
            self._skip(level, offset, problem)
            return
        self._offsets[level] = offset + 1
        if self.on_delivery is not None:
            self.on_delivery(topic, queue_id, stored.size_bytes, level)

    async def _send_away(
        self, send: Send, level: int, offset: int, log_offset: int, size_bytes: int
    ) -> None:
        """Send one message to another broker, and run the level again.

        A message that cannot be sent waits, and those behind it: the master may return.
        """
        pause_s = 0.0
        try:
            record = self._record(log_offset, size_bytes)
            topic, _ = waiting_target(record.properties)
            await send(topic, record)
        except CometError as problem:
            self._send_waits.failed(str(level), problem)
            pause_s = SEND_RETRY_S
        except Exception:
            log.exception("cannot send a scheduled message level=%d offset=%d", level, offset)
            pause_s = FAILURE_S
        else:
            self._send_waits.succeeded(str(level))
            self._offsets[level] = offset + 1
            self._note_progress()
        self._reading.pop(level, None)
        if self._running:
            self._schedule_run(level, pause_s)

    def _record(self, log_offset: int, size_bytes: int) -> RecordParts:
        """Return the record of a message.

        Raises:
            InvalidMessageError, ProtocolError: there is none, or it is damaged.
        """
        data = self._store.record_at(log_offset, size_bytes)
        if data is None:
            raise InvalidMessageError(f"no record of {size_bytes} bytes at {log_offset}")
        return split_record(data)

    def _target(self, level: int, offset: int, record: RecordParts) -> tuple[str, int]:
        """Return the target queue of a message, or another one if it does not exist any more.

        Raises:
            InvalidMessageError: it has none, or its topic was deleted.
        """
        topic, queue_id = waiting_target(record.properties)
        moved = self._queue_for(topic, queue_id, record.log_offset)
        if moved is None:
            raise InvalidMessageError(f"met topic {topic[:300]!r}, expected one that exists")
        if moved == queue_id:
            return topic, queue_id
        self._skipped.add(
            "moved a scheduled message, its queue does not exist any more level=%d offset=%d"
            " topic=%s queue=%d to=%d",
            *(level, offset, topic, queue_id, moved),
        )
        return topic, moved


class _RecordReads:
    """Reads the next message of a level into memory, and others that are due soon.

    Args:
        first: reads the next message.
        others: read the others; None for one that is in memory.
    """

    def __init__(
        self, first: Callable[[], None] | None, others: Sequence[Callable[[], None] | None]
    ) -> None:
        self._first = first
        self._others = others
        self.has_others = None in others
        """Whether another message could be read."""

    def __call__(self) -> None:
        """Read; from any thread.

        Raises:
            OSError: the disk cannot read the next message.
        """
        problem = self._problem_of(self._first)
        for read in self._others:
            if read is not None and self._problem_of(read) is None:
                self.has_others = True
        if problem is not None:
            raise problem

    def _problem_of(self, read: Callable[[], None] | None) -> OSError | None:
        try:
            if read is not None:
                read()
        except OSError as problem:
            return problem
        return None
