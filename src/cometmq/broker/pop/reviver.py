"""Redelivers what was not acknowledged in its invisible time.

Each check point is revived by itself when it is due: its messages are stored in the retry topic of
their group and topic, with the acknowledgement of the popped ones in the same write. So none waits
for another one that is slow: reads from the disk run beside each other, and what fails is tried
again later, alone.

    copy := body, tags, properties, flags and born time of the message, reconsumeTimes + 1,
            1ST_POP_TIME = the time of its first pop

A message of a retry topic goes back to the same topic. RocketMQ has a thread for each queue of the
revive topic, which reads the check points in their order (PopReviveService, RocketMQ 5.3).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final

from cometmq.broker.pop.check_points import CheckPoint
from cometmq.broker.pop.receipts import retry_topic_of
from cometmq.broker.prerequisites import PrerequisiteError
from cometmq.broker.targets import stored_again
from cometmq.model import property_names as names
from cometmq.model.errors import CometError, ProtocolError, StoreError
from cometmq.model.topic import RETRY_PREFIX
from cometmq.protocol.properties import encode_properties, join_properties, marker, value_of
from cometmq.protocol.record import RecordParts, split_record
from cometmq.remoting import Supervisor
from cometmq.remoting.slices import SLICE_S
from cometmq.store import NewRecord
from cometmq.system.failure_log import FailureLog

if TYPE_CHECKING:
    from cometmq.broker.core import Core
    from cometmq.broker.pop.config import PopSettings
    from cometmq.broker.pop.revive_log import ReviveLog

log = logging.getLogger(__name__)

DUE_MAX: Final = 32
"""Check points that are revived between two looks at the clock."""
SLOW_MAX: Final = 64
"""Check points that wait for the disk or for a topic at a time; further ones are tried later."""
UNKNOWN_MS: Final = 600_000
"""Messages of a topic or group that is not known are dropped so long after their invisible time."""
BUSY_MS: Final = 200
RETRY_MS: Final = (1_000, 2_000, 5_000, 10_000, 30_000, 60_000)
"""After how long a check point is tried again that could not be revived."""
BATCH_BYTES: Final = 256 * 1024
"""About how much is stored with one write."""
PREREQUISITES_MAX: Final = 8
_FIRST_POP = marker(names.FIRST_POP_TIME.encode())


class Reviver:
    """Revives check points when they are due.

    Args:
        core: of the broker.
        check_points: what is in flight, and its log.
        settings: returns the current settings.
        stored: called when messages were stored, which readers see after the next sync.
    """

    def __init__(
        self,
        core: Core,
        check_points: ReviveLog,
        settings: Callable[[], PopSettings],
        stored: Callable[[], object],
    ) -> None:
        self._store = core.store
        self._topics = core.topics
        self._groups = core.groups
        self._clock = core.clock
        self._cold_reads = core.cold_reads
        self._stats = core.stats
        self._log = check_points
        self._settings = settings
        self._stored = stored
        self._tasks = Supervisor("revive")
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_stopped = False
        self._failures = FailureLog(
            log, fails="cannot revive messages", works="messages are revived again", name="topic"
        )
        self.revived = 0
        """Messages stored again since the start."""
        self.dropped = 0
        """Messages that were gone, or whose topic or group was, since the start."""
        self.late_ms = 0
        """How late the last check point was revived."""
        self._waiting: dict[CheckPoint, None] = {}
        """Check points that are due, and wait for the disk or are tried again, the first first."""

    def schedule(self) -> None:
        """Wake up when the next check point is due; call it after each change of the first."""
        due_ms = self._log.points.next_due_ms() if self._log.is_loaded else None
        if due_ms is None or self._is_stopped:
            return
        if self._timer is None or due_ms < self._timer_ms:
            self._set_timer(due_ms)

    def _set_timer(self, due_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(due_ms - self._clock.now_ms(), 0) / 1000
        self._timer_ms = due_ms
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._run)

    def _run(self) -> None:
        """Revive what is due, for one slice."""
        self._timer = None
        if not self._log.is_loaded or self._is_stopped:
            return
        end_s, now_ms = monotonic() + SLICE_S, self._clock.now_ms()
        while monotonic() < end_s and (due := self._log.points.take_due(now_ms, DUE_MAX)):
            for point in due:
                self._revive(point)
        self.schedule()

    def _revive(self, point: CheckPoint) -> None:
        now_ms = self._clock.now_ms()
        self.late_ms = now_ms - point.due_ms
        try:
            self._revive_now(point)
        except PrerequisiteError as needed:
            self._waiting[point] = None
            if len(self._tasks) >= SLOW_MAX:
                self._log.points.delay(point, now_ms + BUSY_MS, now_ms)
            else:
                self._tasks.spawn(self._revive_later(point, needed), "revive")
        except Exception as problem:
            self._failed(point, problem)
        else:
            self._succeeded(point)

    async def _revive_later(self, point: CheckPoint, needed: PrerequisiteError) -> None:
        """Revive a check point that needs the disk, or its retry topic, first."""
        points = self._log.points
        try:
            for _ in range(PREREQUISITES_MAX + 2 * len(point.offsets)):
                await needed.run()
                if self._log.points is not points or not self._log.is_loaded:
                    return  # the role has changed
                try:
                    self._revive_now(point)
                    self._succeeded(point)
                    return
                except PrerequisiteError as again:
                    needed = again
            raise StoreError("what is needed was gone again")
        except Exception as problem:
            if self._log.points is points:
                self._failed(point, problem)

    def behind_ms(self, now_ms: int) -> int:
        """Return how late the first check point is that is due and not revived; 0 for none."""
        points = self._log.points
        due_ms = points.next_due_ms()
        behind_ms = 0 if due_ms is None else now_ms - due_ms
        for point in list(self._waiting):
            key = point.group, point.topic, point.queue_id
            if points.find(*key, point.start, point.pop_ms) is point:
                return max(behind_ms, now_ms - point.due_ms, 0)
            del self._waiting[point]  # it was acknowledged meanwhile, or the role has changed
        return max(behind_ms, 0)

    def _succeeded(self, point: CheckPoint) -> None:
        self._waiting.pop(point, None)
        self._failures.succeeded(point.topic)

    def _failed(self, point: CheckPoint, problem: Exception) -> None:
        """Try again later; the others go on."""
        self._waiting[point] = None
        if not isinstance(problem, CometError):
            log.exception("cannot revive messages topic=%s", point.topic, exc_info=problem)
        self._failures.failed(point.topic, problem)
        now_ms = self._clock.now_ms()
        pause_ms = RETRY_MS[min(point.failures, len(RETRY_MS) - 1)]
        point.failures += 1
        self._log.points.delay(point, now_ms + pause_ms, now_ms)
        self.schedule()

    def _revive_now(self, point: CheckPoint) -> None:
        """Store the messages of a check point that are left again.

        Raises:
            PrerequisiteError: the disk or a topic is needed first.
            StoreError: the store refuses; what is left is tried again.
        """
        left = point.all_bits() & ~point.acked
        if not left:
            return
        now_ms = self._clock.now_ms()
        if self.is_gone(point):
            self.dropped += left.bit_count()
            self._log.acknowledge({point: left}, now_ms)
            return
        topic = self._retry_topic(point)
        messages: list[NewRecord] = []
        bits = size_bytes = 0
        for offset in point.offsets_of(left):
            bit = point.bit_of(offset)
            if point.acking & bit:  # it is answered in this iteration of the event loop
                continue
            record = self.read(point, offset)
            bits |= bit
            if record is not None:
                messages.append(self._copy(topic, self.popped_again(point, record)))
                size_bytes += record.size_bytes
            if size_bytes >= BATCH_BYTES:
                self._put(messages, point, bits, now_ms)
                messages, bits, size_bytes = [], 0, 0
        if bits:
            self._put(messages, point, bits, now_ms)
        if point.acked != point.all_bits():
            self._log.points.delay(point, now_ms + BUSY_MS, now_ms)

    def is_gone(self, point: CheckPoint) -> bool:
        """Return whether the topic or the group was deleted.

        A new master may not have copied them yet, as it has the log. So that it does not know them
        means that for some minutes only; the first request of a group creates it. A retry topic is
        created again.

        Raises:
            StoreError: it is not certain yet.
        """
        knows_topic = point.topic.startswith(RETRY_PREFIX) or point.topic in self._topics
        if knows_topic and self._groups.get(point.group) is not None:
            return False
        if self._clock.now_ms() - point.due_ms > UNKNOWN_MS:
            return True
        missing = f"group {point.group}" if knows_topic else f"topic {point.topic}"
        raise StoreError(f"{missing[:300]} does not exist")

    def _put(self, messages: list[NewRecord], point: CheckPoint, bits: int, now_ms: int) -> None:
        self._log.store_with_acks(messages, point, bits, now_ms)
        self.revived += len(messages)
        self.dropped += bits.bit_count() - len(messages)
        for message in messages:
            self._stats.put(message.topic, message.queue_id, 1, message.size_bytes)
        if messages:
            self._stored()

    def _retry_topic(self, point: CheckPoint) -> str:
        return self._topics.require_internal(self.retry_name(point), 1).topic_name

    def retry_name(self, point: CheckPoint) -> str:
        """Return the name of the topic through which messages are redelivered."""
        if point.topic.startswith(RETRY_PREFIX):
            return point.topic
        second = self._settings().enable_retry_topic_v2
        return retry_topic_of(point.group, point.topic, is_second_form=second)

    def read(self, point: CheckPoint, offset: int) -> RecordParts | None:
        """Return a message; None if it is gone.

        Raises:
            PrerequisiteError: it has to be read from the disk first.
        """
        units = self._store.written_units(point.topic, point.queue_id, offset, offset + 1)
        for log_offset, size in units:
            self._cold_reads.require_in_memory(self._store.cold_record(log_offset, size))
            data = self._store.written_record_at(log_offset, size)
            try:
                parts = None if data is None else split_record(data)
            except ProtocolError:
                return None
            is_same = parts is not None and parts.queue_offset == offset
            return parts if is_same else None
        return None

    def popped_again(self, point: CheckPoint, record: RecordParts) -> RecordParts:
        """Return a message as it is redelivered."""
        properties = record.properties
        if value_of(properties, _FIRST_POP) is None:
            more = encode_properties({names.FIRST_POP_TIME: str(point.pop_ms)})
            properties = join_properties(properties, more)
        return record._replace(
            properties=properties,
            born_host=self._log.store_host,
            reconsume_times=record.reconsume_times + 1,
        )

    def _copy(self, topic: str, record: RecordParts) -> NewRecord:
        return stored_again(record, topic, 0, store_host=self._log.store_host)

    def close(self) -> None:
        """Begin to revive nothing any more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def stop(self) -> None:
        """Revive nothing any more."""
        self.close()
        await self._tasks.cancel()
