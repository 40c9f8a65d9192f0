"""Topics of the messages that a slave has received since it copied the topics of its master.

The log of a slave is as new as that of its master, its topics are older: a topic may be created and
used between two copies. If the slave is elected then, consumers of that topic would find nothing,
and its delayed messages would count as those of a deleted topic. So an elected master

- creates a topic for messages behind its last copy that have none, with as many queues as it finds
  there, but not fewer than a topic gets by default;
- creates the topics for which delayed and half messages behind that copy wait;
- gives a topic of the table the further queues that such messages are in, or wait for;
- does all this before its table has the epoch of its election, so that no slave copies less: a
  slave waits for a table with the epoch of its master.

If too many messages wait, the topics of the others are created when these are delivered, or when a
half message is stored again for a check.

A message in front of the copy whose topic is missing is one of a topic that was deleted. The
offsets are in a file, because a broker may be elected before it has copied anything:

    topics-known.json := {"knownTo": offset, "gapStart": offset, "gapEnd": offset}

RocketMQ has nothing like it: its brokers lack such topics until a producer creates them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from itertools import chain
from typing import Any, Final

import msgspec

from cometmq.broker.config import BrokerSettings
from cometmq.broker.failover.epochs.epoch_file import NO_EPOCH, OFFSET_MAX
from cometmq.broker.targets import waiting_target
from cometmq.broker.topics.table import TopicTable, internal_topic
from cometmq.model.errors import (
    CometError,
    InvalidMessageError,
    InvalidNameError,
    ProtocolError,
    StoreError,
)
from cometmq.model.topic import (
    DELAY_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    TIMER_TOPIC,
    TRANSACTION_DISCARD_TOPIC,
    TopicConfig,
)
from cometmq.protocol.fastjson import FastJsonError
from cometmq.protocol.lenient import read_struct
from cometmq.protocol.record import split_record
from cometmq.remoting import Supervisor
from cometmq.remoting.slices import Slices
from cometmq.store import MessageStore
from cometmq.store.config_files import JsonFile
from cometmq.store.queues.batch_topics import BATCH_QUEUE, QUEUE_TYPE

log = logging.getLogger(__name__)

FILE_NAME: Final = "topics-known.json"
SAVE_INTERVAL_S: Final = 60.0
"""A copy is noted in the file so often; after a restart a somewhat older one counts."""
NAMES_LOGGED_MAX: Final = 100
WAITING_MAX: Final = 500_000
"""Delayed and half messages that are read before this broker is a master: some seconds."""

_WAITING_TOPICS: Final = (DELAY_TOPIC, HALF_TOPIC, TIMER_TOPIC, TRANSACTION_DISCARD_TOPIC)


class _Known(msgspec.Struct, rename="camel"):
    """The content of the file."""

    known_to: int = 0
    """The topics of all messages in front of this log offset are known, or were deleted."""
    gap_start: int = 0
    gap_end: int = 0
    """The log between the two was received behind the last copy before this broker was elected."""


class TopicGap:
    """Knows for which messages a topic may be missing, and creates it.

    Args:
        topics: the topics of this broker; they use it from now on.
        store: the log and the queues.
        file: topics-known.json.
        settings: returns the current settings of the broker.

    Raises:
        StoreError: the file cannot be read or written.
    """

    def __init__(
        self,
        topics: TopicTable,
        store: MessageStore,
        file: JsonFile,
        settings: Callable[[], BrokerSettings],
    ) -> None:
        self._topics = topics
        self._store = store
        self._file = file
        self._settings = settings
        self._tasks = Supervisor("topic-gap")
        self._creating: set[str] = set()
        self._is_closed = False
        self._saved_s: float | None = None
        self._saving_lead: asyncio.Task[None] | None = None
        self._truncated_to = OFFSET_MAX
        """The log's end after truncations since the last copy: a copy under way ends there."""
        self._saving = threading.Lock()
        content = file.load()
        if content is None:  # a new store, or one that had no controller and has its topics
            self._known = _Known(known_to=store.written_to)
            file.save(self._known)
        else:
            self._known = self._read(content)
            # Other messages may come where a power cut took the end of the log.
            self._know_to_at_most(store.written_to)
        self.copying = asyncio.Lock()
        """Held while topics are copied, and while missing topics are created."""
        self.epoch = NO_EPOCH
        """The epoch of the master whose table a slave copies, or of this master."""
        self.before_fill: Callable[[], Awaitable[None]] = _nothing
        """Creates the topics whose settings are in the log, before the others are created."""
        topics.gap = self

    def _read(self, content: Mapping[str, Any]) -> _Known:
        try:
            return read_struct(content, _Known)
        except FastJsonError as problem:
            raise StoreError(f"{self._file.path}: {problem}") from problem

    async def copied(self, log_end: int) -> None:
        """Note that the topics of the master were copied.

        Args:
            log_end: an end of the log here from before they were requested.

        Raises:
            StoreError: the file cannot be written.
        """
        self._known.known_to = min(log_end, self._truncated_to)
        self._truncated_to = OFFSET_MAX
        await self._save_at_intervals()

    async def _save_at_intervals(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._is_closed or (
            self._saved_s is not None and now_s - self._saved_s < SAVE_INTERVAL_S
        ):
            return
        self._saved_s = now_s
        await self._save()

    def truncated(self, log_end: int) -> None:
        """Note that the log was truncated: other messages may come behind its end."""
        self._truncated_to = min(self._truncated_to, log_end)
        self._know_to_at_most(log_end)

    def _know_to_at_most(self, log_end: int) -> None:
        if self._known.known_to <= log_end:
            return
        self._known.known_to = log_end
        try:
            self._write()
        except StoreError as problem:
            log.error("after a restart topics may be missing until producers use them: %s", problem)

    def note_lead(self) -> None:
        """Note that this broker is the master: it knows the topics of its whole log.

        Without that it would read all delayed messages of its mastership again after a restart,
        and create topics that were deleted meanwhile. The file is written in the background: a
        disk that hangs must not keep this broker from the next decision.
        """
        self._known.known_to = self._store.written_to
        if self._saving_lead is None or self._saving_lead.done():
            self._saving_lead = self._tasks.spawn(self._save_lead(), "save-topics-known")

    async def _save_lead(self) -> None:
        try:
            await self._save_at_intervals()
        except StoreError as problem:
            log.warning("after a restart topics that were deleted may exist again: %s", problem)

    def ended_lead(self) -> None:
        """Note that this broker is no longer the master: it knows the topics of its whole log."""
        self._known.known_to = self._store.written_to

    async def begin_epoch(self, epoch: int, *, fills: bool = True) -> None:
        """Put the epoch of this master into the table, after the topics that may be missing.

        Args:
            epoch: its number.
            fills: whether this broker was a slave before.

        Raises:
            StoreError: the disk refused.
        """
        async with self.copying:
            self.epoch = epoch
            if fills:
                await self.before_fill()
                await self._fill()
            await self._topics.begin_epoch(epoch)

    async def _fill(self) -> None:
        """Create the topics and queues that messages are in, or wait for."""
        known, end = self._known, self._store.written_to
        if known.known_to >= end:
            return
        missing = {}
        counts = self._store.queue_counts_behind(known.known_to)
        await self._count_waiting(known.known_to, counts)
        for name, count in counts.items():
            config = self._topics.get(name)
            if config is None and self._topics.is_system(name):
                continue  # such as the records of features, which have no settings
            if config is None:
                with contextlib.suppress(InvalidNameError):  # no producer can have created it
                    missing[name] = self._new(name, count)
            elif count > config.read_queue_nums:
                missing[name] = msgspec.structs.replace(
                    config,
                    read_queue_nums=count,
                    write_queue_nums=max(count, config.write_queue_nums),
                )
        # The file first: it counts for the delayed messages, whatever happens then.
        still = known.gap_end > self._store.min_log_offset
        known.gap_start = min(known.gap_start, known.known_to) if still else known.known_to
        known.gap_end = end
        await self._save()
        if missing:
            log.warning(
                "topics were not copied before the election, created from their queues count=%d"
                " topics=%s",
                *(len(missing), ",".join(sorted(missing)[:NAMES_LOGGED_MAX])),
            )
            await self._topics.put(missing.values())
        known.known_to = end

    async def _count_waiting(self, log_offset: int, counts: dict[str, int]) -> None:
        """Add the target queues of the delayed and half messages behind a log offset."""
        slices, count, unread = Slices(), 0, 0
        waiting = (self._store.written_behind(topic, log_offset) for topic in _WAITING_TOPICS)
        async for unit in slices.each(chain.from_iterable(waiting)):
            count += 1
            if count > WAITING_MAX:
                log.warning(
                    "only %d delayed and half messages were read, others may wait for topics that"
                    " were not copied",
                    WAITING_MAX,
                )
                break
            read = self._store.cold_record(*unit)
            try:
                if read is not None:
                    await asyncio.get_running_loop().run_in_executor(None, read)
                target = _target_of(self._store.written_record_at(*unit))
            except OSError as problem:
                log.debug("cannot read the log log_offset=%d: %s", unit[0], problem)
                target = None
            if target is None:
                unread += 1
                continue
            name, queue_id = target
            counts[name] = max(counts.get(name, 0), queue_id + 1)
        if unread:
            log.error("delayed or half messages have no target that can be read count=%d", unread)

    def covers(self, log_offset: int) -> bool:
        """Return whether a message was received behind the last copy before an election."""
        return self._known.gap_start <= log_offset < self._known.gap_end

    def restore(self, name: str, queue_id: int, log_offset: int) -> bool:
        """Create the topic of a delayed or half message, in the background.

        Args:
            name, queue_id: the target queue.
            log_offset: where the message waits.

        Returns:
            Whether it is being created.
        """
        if name in self._creating:
            return True
        if name in self._topics or not self.covers(log_offset):
            return False
        try:
            config = self._new(name, queue_id + 1)
        except InvalidNameError:  # no producer can have created it
            return False
        if not self._is_closed:
            self._creating.add(name)
            self._tasks.spawn(self._create(config), name)
        return True

    async def _create(self, config: TopicConfig) -> None:
        name = config.topic_name
        try:
            await self._topics.create_all([config])
            log.warning("topic was not copied before the election, created topic=%s", name)
        except CometError as problem:  # the next message of the topic tries again
            log.error("cannot create a topic topic=%s: %s", name, problem)
        finally:
            self._creating.discard(name)

    def _new(self, name: str, count: int) -> TopicConfig:
        """Return the settings of a topic of which only queues are known.

        Raises:
            InvalidNameError: no topic may have this name.
        """
        is_internal = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        least = 1 if is_internal else self._settings().default_topic_queue_nums
        topic = internal_topic(name, max(count, least))
        if self._store.holds_batches(name):
            topic = msgspec.structs.replace(topic, attributes={QUEUE_TYPE: BATCH_QUEUE})
        return topic

    async def _save(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._write)

    def _write(self) -> None:
        """Write the file, from any thread; what is written last is the newest."""
        with self._saving:
            self._file.save(msgspec.structs.replace(self._known))

    async def close(self) -> None:
        """Stop; the file is not written any more."""
        self._is_closed = True
        await self._tasks.cancel()
        self._file.close()


async def _nothing() -> None:
    """Create nothing."""


def _target_of(record: bytes | None) -> tuple[str, int] | None:
    """Return the target queue of a delayed or half message; None if it has none."""
    if record is None:
        return None
    try:
        return waiting_target(split_record(record).properties)
    except (InvalidMessageError, ProtocolError):
        return None
