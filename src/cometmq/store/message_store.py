"""The message store: appends, reads, looks up, flushes and deletes messages.

One thread appends, reads and cleans; `flush`, `flush_queues` and `write_checkpoint` may run in
another one. A message is in its queue before `append` returns, and stays there over a kill; keys
that find the disk full follow as soon as it is not, and no message is stored before that. After a
sync has failed nothing more is stored, because what the disk then holds is unknown.
Source: DefaultMessageStore, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from struct import error as StructError  # noqa: N812 (an error by name)
from typing import TYPE_CHECKING

from cometmq.model.errors import InvalidMessageError, StoreError
from cometmq.store.appender import Appended, AppendedBatch, Appender, Arrival
from cometmq.store.config import StoreSettings
from cometmq.store.errors import StoreLockedError, StoreUnavailableError
from cometmq.store.index.key_index import Index
from cometmq.store.lifecycle.abort_file import AbortFile, Ending
from cometmq.store.lifecycle.checkpoint import read_checkpoint
from cometmq.store.lifecycle.cleaner import DISK_FULL, Cleaner
from cometmq.store.lifecycle.durability import Durability
from cometmq.store.lifecycle.loader import Loader
from cometmq.store.lifecycle.recovery import Recovery
from cometmq.store.lifecycle.remover import Remover
from cometmq.store.lifecycle.topic_deletion import TopicDeletion
from cometmq.store.log.commit_log import CommitLog, segment_failure
from cometmq.store.log.new_record import NewRecord
from cometmq.store.log.record_lookup import cold_record, facts_from, place_at, record_at
from cometmq.store.log.record_scan import RecordFacts
from cometmq.store.log.segment_allocator import SegmentAllocator
from cometmq.store.paths import StorePaths
from cometmq.store.queues.batch_topics import UnitMove, batch_topics_in
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.consume_queue_ext import ExtUnit
from cometmq.store.queues.dispatch import BitmapOf, Dispatcher, QueueTable
from cometmq.store.queues.queue_ends import read_queue_ends, write_queue_ends
from cometmq.store.queues.queue_reader import (
    RESPONSE_BYTES_MAX,
    ColdPart,
    GetResult,
    Matcher,
    QueueReader,
    ReadLimits,
    cold_search,
)
from cometmq.store.queues.redispatch import dispatch_again
from cometmq.store.queues.repair import Repair
from cometmq.store.queues.time_search import (
    TimeSearchPages,
    cold_store_time,
    offset_at_time,
    store_time_of_unit,
)
from cometmq.store.queues.unit_buffers import unwritten_units
from cometmq.store.replica import Replica
from cometmq.system.clock import Clock
from cometmq.system.files import FileLock, Files
from cometmq.system.platforms import SERVERS

if TYPE_CHECKING:
    from cometmq.store.index.key_search import KeySearch, QueryResult

logger = logging.getLogger(__name__)

_NOT_OPEN = "the store is not open"
_SEARCH_ENTRIES = 1_000_000
_BULK_MESSAGES = 1_024
_BULK_BYTES = 512 * 1024
"""The limits of a read of a backlog, unless those of reads from memory are higher; also if the
messages are on the disk."""
_REQUESTED_RECORD_BYTES = 16 * 1024 * 1024
"""The least limit of a record that a client requests by its offset; no client takes more."""
_RECORD_REST_BYTES = 128 * 1024
"""The limit of what a record contains beside its body."""


class MessageStore:
    """The store of one broker.

    Args:
        settings: where it is and how it behaves.
        clock: that store times come from.
        files: the way to the disk.
        threaded: whether log files are allocated and files are deleted in threads; then an append
            may be refused with `SegmentNotReadyError` until `wait_for_segment` returns.
        is_copy: whether it is the store of a slave, which opens without the end of its log: the
            master has that.
        confirms: see the attribute.

    Example: ``store = MessageStore(StoreSettings(root=Path("/srv/store"))); store.open()``
    """

    def __init__(
        self,
        settings: StoreSettings,
        *,
        clock: Clock | None = None,
        files: Files | None = None,
        threaded: bool = False,
        is_copy: bool = False,
        confirms: bool = False,
    ) -> None:
        self.settings = settings
        self.paths = StorePaths(settings)
        self._clock = clock or Clock()
        self._files = files or Files()
        self._abort = AbortFile(self._files, self.paths)
        self._lock: FileLock | None = None
        self._threaded = threaded
        self._is_copy = is_copy
        self.confirms = confirms
        """Whether readers see only what `confirm` says that all replicas have."""
        self._on_readable: Callable[[], object] | None = None
        self._held: str | None = None
        """The reason why messages are refused until `release`."""
        self.continues_rocketmq = False
        """Whether RocketMQ wrote the store last, before `open`; also if there was none."""
        self.was_closed = False
        """Whether the process that wrote the store last closed it, before `open`."""
        self.was_missing = False
        """Whether there was no store before `open`: neither a checkpoint, which a stop leaves, nor
        a file ``abort``, which a crash leaves."""
        self._remover = Remover(self._files, in_thread=threaded)
        self._build()

    def _build(self) -> None:
        """Make the parts; they have no files yet."""
        settings = self.settings
        loader = Loader(
            settings, self.paths, self._files, self._clock.now_ms, remove=self._remover.remove
        )
        segments = loader.log_segments()
        self._loader = loader
        self._allocator = SegmentAllocator(
            segments, ahead=self._threaded, wait_ms=settings.segment_wait_ms
        )
        self._log = CommitLog(segments, self._allocator, shows_unsynced=not settings.sync_flush)
        self._index: Index | None = loader.index() if settings.index_enabled else None
        units = UnitMove(self._files, self.paths, self._log)
        self._table = QueueTable(loader.queue, units.move)
        self._dispatcher = Dispatcher(self._index, settings.delay_levels)
        self._appender = Appender(
            self._log,
            self._table,
            self._index,
            self._dispatcher,
            self._clock.now_ms,
            settings.message_bytes_max,
            settings.long_topic_records,
        )
        self._appender.refusal = _NOT_OPEN
        self._durability = Durability(
            self._files,
            self.paths.checkpoint,
            self._log,
            self._table,
            self._index,
            self._appender.dispatched_to,
            self._refuse,
        )
        self._appender.on_failure = self._durability.fail
        self._cleaner = Cleaner(
            lambda: self.settings,
            self._files,
            self._log,
            self._table,
            self._index,
            self._appender,
            self._durability,
            self._remover,
        )
        self._topic_deletion = TopicDeletion(
            self._table, self._files, self.paths, self._remover, self._clock.now_ms
        )
        self._limits = ReadLimits(
            _memory_bytes(settings.memory_ratio),
            settings.transfer_bytes_memory_max,
            settings.transfer_count_memory_max,
            settings.transfer_bytes_disk_max,
            settings.transfer_count_disk_max,
            settings.filter_units_bytes_max // 20,
        )
        self._repair = Repair(self._log, self._table, self._dispatcher)
        self._reader = QueueReader(self._table, self._log, self._limits, self._repair)
        bulk_bytes = max(settings.transfer_bytes_memory_max, _BULK_BYTES)
        self._bulk_limits = ReadLimits(
            self._limits.memory_bytes,
            bulk_bytes,
            max(settings.transfer_count_memory_max, _BULK_MESSAGES),
            bulk_bytes,
            max(settings.transfer_count_disk_max, _BULK_MESSAGES),
            self._limits.units,
        )
        self._bulk_reader = QueueReader(self._table, self._log, self._bulk_limits, self._repair)
        self.replica = Replica(self._log, self._table, self._index, self._appender)
        """Appends what a master sends, if this is the store of a slave."""

    @property
    def disk_full(self) -> bool:
        """Whether messages are refused because the disk is nearly full."""
        return self._cleaner.disk_full

    # --- opening and closing ------------------------------------------------------------------

    def open(self) -> None:
        """Load the files, find the end of the log and dispatch it to queues and index.

        Raises:
            StoreLockedError: another process has the store open.
            StoreCorruptError: a file is damaged; nothing was changed.
            StoreError: the disk refused.
        """
        try:
            self._files.make_dirs(self.paths.root)
            self._lock = self._files.lock(self.paths.lock, b"lock")
        except BlockingIOError as problem:
            raise StoreLockedError(
                f"{self.paths.lock} is held by another process; stop it, or name another store"
            ) from problem
        except OSError as problem:
            raise StoreError(f"cannot open the store: {problem}") from problem
        try:
            self._recover()
        except OSError as problem:
            self._close_files()
            raise StoreError(f"cannot open the store: {problem}") from problem
        except BaseException:
            self._close_files()
            raise
        self._appender.refusal = None

    def _recover(self) -> None:
        self._loader.holds_batches = batch_topics_in(self._files, self.paths).__contains__
        for entry in self._files.entries(self.paths.deleted):
            self._remover.remove_tree(self.paths.deleted / entry.name)
        checkpoint = read_checkpoint(self._files, self.paths.checkpoint)
        self.continues_rocketmq = checkpoint.position is None
        ending = self._abort.read()
        self.was_closed = ending is Ending.CLOSED
        self.was_missing = self.was_closed and not self._files.exists(self.paths.checkpoint)
        self._log.segments.load()
        knows_queues = ending is Ending.CLOSED and self._load_from_ends()
        if not knows_queues:
            may_be_torn = ending is Ending.POWER_LOST
            self._loader.load_queues(
                self._table,
                may_be_torn=may_be_torn,
                is_zero_behind=not may_be_torn and checkpoint.position is not None,
            )
        if self._index is not None:
            self._index.load()
        buffers = self._loader.buffers
        buffers.is_usable = len(self._table.all()) > self._loader.limit.files_max
        had_topics = set(self._table.topics)
        missing_from = None
        if ending is Ending.KILLED:
            units = unwritten_units(self._files, self.paths.unit_buffers)
            # Their keys are in the index already.
            keyless = Dispatcher(None, self.settings.delay_levels)
            missing_from = dispatch_again(self._log.segments, units, self._table, keyless)
        else:
            self._files.remove(self.paths.unit_buffers)
        new_topics = set(self._table.topics) - had_topics
        recovery = Recovery(
            self.settings,
            self.paths,
            self._files,
            self._log,
            self._table,
            self._index,
            self._dispatcher,
            checkpoint,
            self._abort,
            ending,
            knows_least_offsets=knows_queues,
            buffers_units=buffers.is_usable,
            missing_from=missing_from,
            is_copy=self._is_copy,
        )
        self._appender.resume_at(recovery.run())
        self._hold_batches()
        self._loader.drop_unused_ext(self._table)
        self._files.remove(self.paths.queue_ends)
        buffers.begin()
        self._abort.map()
        self._durability.begin(checkpoint)
        if self.confirms:
            self._durability.keeps_confirm = True
            self._log.confirmed_to = min(checkpoint.confirm, self._log.written_to)
        if self.settings.sync_flush:  # a killed process may have left records that readers wait for
            self.flush()
        self._appender.on_new_topics = None
        if checkpoint.position is not None:  # a store of ours, whose topics are in our table
            self._topic_deletion.check_new(sorted(recovery.new_topics | new_topics))
            self._appender.on_new_topics = self._topic_deletion.check_new

    def _load_from_ends(self) -> bool:
        """Load the queues from the file that the last stop wrote, if it counts."""
        if self._loader.has_ext:
            return False
        topics = read_queue_ends(
            self._files,
            self.paths,
            log_min=self._log.min_offset(),
        )
        if topics is None:
            return False
        self._loader.load_from_ends(self._table, topics)
        for queue in self._loader.load_batch_queues(self._table, is_zero_behind=True):
            queue.correct_min(self._log.min_offset())
        self._cleaner.cleaned_before = self._log.min_offset()
        return True

    def _write_queue_ends(self) -> None:
        """Let the next start know the queues without a look at their files."""
        if self._loader.has_ext or self._cleaner.cleaned_before != self._log.min_offset():
            return
        try:
            write_queue_ends(
                self._files,
                self.paths,
                self._table.topics.values(),
                log_min=self._log.min_offset(),
            )
        except OSError as problem:
            logger.warning(
                "cannot write the ends of the queues path=%s: %s", self.paths.queue_ends, problem
            )

    def expect_topics(
        self,
        exists: Callable[[str], bool],
        holds_batches: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Delete the queues of topics that were deleted just before a crash.

        A start, or the redispatch after a full disk, creates them again from the log.

        Args:
            exists: returns whether a topic exists; called until the store is closed.
            holds_batches: returns whether the queues of a topic hold batches; also called for each
                new queue.
        """
        self._loader.holds_batches = holds_batches
        self._topic_deletion.expect(exists)
        # RocketMQ does not open a store with such queues of a topic that was deleted.
        self._topic_deletion.check_new(filter(self.holds_batches, list(self._table.topics)))

    def _hold_batches(self) -> None:
        """Replace the queues of single messages of topics that hold batches.

        RocketMQ does not open a store with such a queue. A slave has one if messages of a new topic
        came before the attributes of the topic.

        Raises:
            OSError: the disk refused.
        """
        for topic in list(self._table.topics.values()):
            if self._loader.holds_batches(topic.name):
                for queue in list(topic.queues.values()):
                    if not queue.holds_batches:
                        self._table.hold_batches(topic, queue)

    def allocate_first_segment(self) -> None:
        """Request the first commit-log file, if there is none."""
        self._log.allocate_first()

    def wait_for_segment(self) -> None:
        """Return when no commit-log file is being allocated; from any thread but the store's.

        An append that was refused with `SegmentNotReadyError` can be repeated then.

        Raises:
            SegmentNotReadyError: it is not allocated within the time of the settings.
            StoreUnavailableError: the disk is full.
            SegmentCreateError: the file cannot be created for another reason.
        """
        try:
            self._allocator.wait()
        except OSError as problem:
            raise segment_failure(problem) from problem

    def close(self) -> None:
        """Flush everything and close all files; a second call does nothing.

        Raises:
            StoreUnavailableError: the disk refused; the next start recovers as after a crash.
        """
        if self._lock is None:
            return
        self._appender.refusal = "the store is shut"
        is_complete = False
        try:
            self._allocator.stop()
            if self._durability.failure is None:
                self._end_with_batches()
                self._durability.finish()
                self._write_queue_ends()
                try:
                    self._abort.remove()
                except OSError as problem:
                    raise StoreUnavailableError(
                        f"cannot mark the store as closed: {problem}"
                    ) from problem
                is_complete = True
            else:
                self._abort.mark_unsynced()
        finally:
            self._close_files(keeps_buffers=not is_complete)

    def _end_with_batches(self) -> None:
        """Leave no queue of single messages that RocketMQ would refuse."""
        try:
            self._hold_batches()
        except OSError as problem:
            logger.warning("cannot replace queues by queues that hold batches: %s", problem)

    def abandon(self) -> None:
        """Close all files without a flush, as a crash does; for tests."""
        self._appender.refusal = "the store is shut"
        self._allocator.stop(keep=True)
        self._close_files()

    def _close_files(self, *, keeps_buffers: bool = True) -> None:
        self._abort.close()
        self._allocator.stop()
        self._remover.stop()
        for queue in self._table.all():
            queue.close()
        self._loader.buffers.close(keep_file=keeps_buffers)
        if self._index is not None:
            self._index.close()
        self._log.close()
        self._durability.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def reconfigure(self, settings: StoreSettings) -> None:
        """Apply the settings that may change at run time; ignore all others."""
        self.settings = settings
        self._appender.message_bytes_max = settings.message_bytes_max

    def assume_in_memory(self, percent: int) -> None:
        """Set the share of physical memory in which the newest messages are assumed to be."""
        self._limits.memory_bytes = self._bulk_limits.memory_bytes = _memory_bytes(percent)

    # --- appending ----------------------------------------------------------------------------

    def hold(self, reason: str) -> None:
        """Refuse messages, for a reason, until `release`; a copy refuses them anyway."""
        if self._appender.is_copy:  # what the master sends must still be taken
            return
        if self._appender.refusal in (None, DISK_FULL, self._held):
            self._appender.refusal = self._held = reason

    def release(self) -> None:
        """Accept messages again after `hold`, unless the disk is full; else do nothing."""
        if self._held is not None and self._appender.refusal == self._held:
            self._appender.refusal = DISK_FULL if self.disk_full else None
        self._held = None

    def copy_only(self, is_copy: bool) -> None:
        """Refuse all messages but the messages that `replica` receives, or accept others again."""
        self._appender.is_copy = is_copy

    @property
    def failure(self) -> str | None:
        """The reason why the store refuses everything until a restart; None while it works."""
        return self._durability.failure

    @property
    def appender(self) -> Appender:
        """The appender behind `append`, for hot paths; its arguments are not checked."""
        return self._appender

    def append(self, record: NewRecord) -> Appended:
        """Append one message to log, queue and index, and notify of its arrival.

        Raises:
            InvalidMessageError: it breaks a limit; not stored.
            StoreUnavailableError: shut, disk full, or a sync has failed; not stored.
            SegmentCreateError: the next file could not be made; not stored.
        """
        try:
            return self._appender.append(record)
        except StructError as problem:
            raise InvalidMessageError(f"a number does not fit its field: {problem}") from problem

    def append_all(self, records: list[NewRecord]) -> list[Appended]:
        """Append several messages one behind the other in one log file, with one write.

        A power cut keeps some of the first ones. All of them are stored, or none; see `append`.
        """
        try:
            return self._appender.append_all(records)
        except StructError as problem:
            raise InvalidMessageError(f"a number does not fit its field: {problem}") from problem

    def append_batch(self, record: NewRecord) -> AppendedBatch:
        """Append the messages of a batch one after the other, all or none; see `append`."""
        try:
            return self._appender.append_batch(record)
        except StructError as problem:
            raise InvalidMessageError(f"a number does not fit its field: {problem}") from problem

    def append_as_one(self, record: NewRecord) -> Appended:
        """Append a batch as one record to a queue that holds batches; see `append`.

        The flags and the properties of the record then say that it is a batch.
        """
        try:
            return self._appender.append_as_one(record)
        except StructError as problem:
            raise InvalidMessageError(f"a number does not fit its field: {problem}") from problem

    def compute_bitmaps(self, bitmap_of: BitmapOf) -> None:
        """Call a function for the bit map of each message that gets an extension unit.

        Call it before `open`, which may dispatch messages again.
        """
        self._dispatcher.bitmap_of = bitmap_of

    def notify_of_arrivals(self, arrival: Arrival, topics: dict[str, int] | None = None) -> None:
        """Call ``arrival`` for each message that is appended to a queue; not during `open`.

        Args:
            arrival: the function.
            topics: it is called for these only, as the dict is at each append; None for all.
        """
        self._appender.on_arrival = arrival
        self._appender.awaited = topics

    # --- reading ------------------------------------------------------------------------------

    @property
    def shows_unsynced(self) -> bool:
        """Whether readers see messages that are not on disk yet: with asynchronous flush."""
        return self._log.shows_unsynced

    @property
    def shows_at_once(self) -> bool:
        """Whether readers see messages as soon as they are written, and wait for nothing."""
        return self._log.shows_unsynced and not self.confirms

    @property
    def readable_to(self) -> int:
        """The log offset up to which readers see records."""
        return self._log.readable_to()

    @property
    def confirmed_to(self) -> int:
        """The confirm offset; the end of the log if readers wait for no replica."""
        return min(self._log.confirmed_to, self._log.written_to)

    def confirm(self, log_offset: int) -> None:
        """Let readers see the records before an offset; they never see less than before.

        Without effect unless the store was made to wait for that.

        Args:
            log_offset: the confirm offset, or `CONFIRMS_ALL` for all that is written from now on.
        """
        if not self.confirms or log_offset == self._log.confirmed_to:
            return
        before = self._log.readable_to()
        self._log.confirmed_to = max(log_offset, before)
        if self._on_readable is not None and self._log.readable_to() > before:
            self._on_readable()

    @property
    def reader(self) -> QueueReader:
        """The reader behind `get`, for hot paths."""
        return self._reader

    @property
    def bulk_reader(self) -> QueueReader:
        """A reader for clients that read a backlog: it returns more messages at once."""
        return self._bulk_reader

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        matcher: Matcher | None = None,
        max_bytes: int | None = None,
    ) -> GetResult:
        """Return messages of a queue as slices of the log.

        Args:
            topic: its name.
            queue_id: the queue.
            offset: the first queue offset wanted.
            max_count: messages at most; the settings may allow fewer.
            matcher: which of them are wanted; None for all.
            max_bytes: bytes at most, though one message always fits.

        Returns:
            A status in RocketMQ's names and where to read on. Slices stay readable as long as
            they are held.
        """
        limit = RESPONSE_BYTES_MAX if max_bytes is None else max_bytes
        return self._reader.get(topic, queue_id, offset, max_count, matcher, limit)

    def record_at(self, log_offset: int, size_bytes: int | None = None) -> bytes | None:
        """Return the record that begins at a log offset, or None if none does, or it is damaged.

        Args:
            log_offset: from anywhere, an id that a client sent included.
            size_bytes: what its size must be, as a unit says; None if the offset is all that is
                known. Then its queue must have it: the body of any message may imitate a record.
        """
        record = record_at(self._log, log_offset, size_bytes, self._record_bytes_max())
        if record is None or (
            size_bytes is None and not self._is_in_queue(log_offset, len(record))
        ):
            return None
        return bytes(record)

    def _is_in_queue(self, log_offset: int, size_bytes: int) -> bool:
        """Return whether what looks like a record has a unit in the queue that it names."""
        place = place_at(self._log, log_offset, size_bytes)
        if place is None:
            return False
        topic, queue_id, queue_offset = place
        queue = self._table.find(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return False
        number = queue.number_of(queue_offset)
        return self._sound_unit(queue, number)[:2] == (log_offset, size_bytes)

    def facts_from(self, log_offset: int) -> Iterator[RecordFacts]:
        """Yield the fields of each record from a log offset on, where a record begins.

        It ends where no record begins, at the end of the log at the latest.
        """
        return facts_from(self._log, log_offset)

    # What a broker that becomes a master, or truncates its log, reads whether readers see it or
    # not: other replicas may have to confirm it first.

    def written_facts_from(self, log_offset: int) -> Iterator[RecordFacts]:
        """Yield the fields of each record from a log offset on, to the end of what is written."""
        return facts_from(self._log, log_offset, self._log.written_to)

    def written_record_at(self, log_offset: int, size_bytes: int) -> bytes | None:
        """Return a record that is written, or None if none begins there, or it is damaged."""
        limit = self._record_bytes_max()
        record = record_at(self._log, log_offset, size_bytes, limit, self._log.written_to)
        return None if record is None else bytes(record)

    def written_units(
        self, topic: str, queue_id: int, start: int, stop: int | None = None
    ) -> Iterator[tuple[int, int]]:
        """Yield log offset and size of the messages of a queue that are written.

        Args:
            topic: its name.
            queue_id: the queue.
            start, stop: queue offsets; None for the end of the queue.
        """
        queue = self._table.find(topic, queue_id)
        if queue is None:
            return
        at = start
        while (at := max(at, queue.min_offset)) < queue.max_offset and (stop is None or at < stop):
            number = queue.number_of(at)
            log_offset, size, _ = self._sound_unit(queue, number)
            yield log_offset, size
            at = queue.offset_behind(number)

    def written_behind(self, topic: str, log_offset: int) -> Iterator[tuple[int, int]]:
        """Yield log offset and size of the messages of a topic that end behind a log offset."""
        for queue in list(self._table.all()):
            if queue.topic == topic and queue.max_physical > log_offset:
                yield from self.written_units(topic, queue.queue_id, queue.end_at(log_offset))

    def end_at(self, topic: str, queue_id: int, log_end: int) -> int:
        """Return where a queue ends if the log ends at an offset; 0 if there is no queue."""
        queue = self._table.find(topic, queue_id)
        return 0 if queue is None else queue.end_at(log_end)

    def cold_record(
        self, log_offset: int, size_bytes: int | None = None
    ) -> Callable[[], None] | None:
        """Return a function that reads a record into memory, for any thread; None if it is there.

        The function raises an `OSError` if the disk is broken. The arguments are those of
        `record_at`. Without a size the record is read first, and the next call returns a function
        that reads its unit.
        """
        size_max = self._record_bytes_max()
        read = cold_record(self._log, log_offset, size_bytes, size_max)
        if read is not None or size_bytes is not None:
            return read
        place = place_at(self._log, log_offset, size_max)
        units = self.reader.cold_units(*place, 1, None) if place is not None else []
        return partial(bring_in, units) if units else None

    def _record_bytes_max(self) -> int:
        """Return the limit of a record that is found by nothing but an offset."""
        return max(_REQUESTED_RECORD_BYTES, self.settings.message_bytes_max + _RECORD_REST_BYTES)

    def last_record(self) -> bytes | None:
        """Return the record at the end of the log, or None if none with a queue ends there.

        Readers may not see it yet.
        """
        end = self._log.written_to
        for queue in self._table.all():
            if queue.max_physical == end and queue.end_unit > queue.first_unit:
                log_offset, size, _ = queue.unit(queue.end_unit - 1)
                return bytes(self._log.slice(log_offset, log_offset + size))
        return None

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset and the one behind the last that readers see.

        Both are 0 if there is no such queue.
        """
        return self.reader.bounds(topic, queue_id)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset that the next message of a queue gets; 0 if there is no queue."""
        queue = self._table.find(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def offset_at_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: str = "LOWER"
    ) -> int:
        """Return the queue offset of the message stored at a time.

        Args:
            topic: its name.
            queue_id: the queue.
            timestamp_ms: a store time.
            boundary: ``LOWER`` for the first message not stored before it, the next offset if all
                were; ``UPPER`` for the last message not stored after it, the first if all were.
        """
        queue = self._table.find(topic, queue_id)
        if queue is None:
            return 0
        return offset_at_time(
            self._log, queue, timestamp_ms, self._repair, upper=boundary == "UPPER"
        )

    def pages_for_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: str = "LOWER"
    ) -> TimeSearchPages | None:
        """Return a call that reads what `offset_at_time` needs into memory, in any thread.

        Returns:
            None if there is no such queue.
        """
        queue = self._table.find(topic, queue_id)
        if queue is None:
            return None
        return TimeSearchPages(self._log, queue, timestamp_ms, upper=boundary == "UPPER")

    def store_time_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Return when the message at a queue offset was stored, in ms; -1 if there is none."""
        queue = self._table.find(topic, queue_id)
        if queue is None:
            return -1
        return store_time_of_unit(self._log, queue, offset, self._repair)

    def cold_store_time(
        self, topic: str, queue_id: int, offset: int
    ) -> Callable[[], object] | None:
        """Return a function that reads what `store_time_at` needs; None if it is in memory.

        It may be called in any thread, and raises an `OSError` if the disk is broken.
        """
        queue = self._table.find(topic, queue_id)
        if queue is None:
            return None
        if searched := cold_search(queue, offset):
            return partial(bring_in, searched)
        return cold_store_time(self._log, queue, offset)

    def query(self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int) -> QueryResult:
        """Return the newest messages with a key or a unique id.

        Args:
            topic: its name.
            key: one key.
            max_num: messages at most; the settings may allow fewer.
            begin_ms, end_ms: the span of store times, ends included.
        """
        search = self.search(topic, key, max_num, begin_ms, end_ms)
        while not search.advance(_SEARCH_ENTRIES):
            pass
        return search.result()

    def search(self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int) -> KeySearch:
        """Begin a `query` whose work is done in steps."""
        from cometmq.store.index.key_search import KeySearch

        count = min(max_num, self.settings.query_count_max)
        return KeySearch(self._log, self._index, topic, key, count, begin_ms, end_ms)

    def consume_queue_units(
        self, topic: str, queue_id: int, index: int, count: int
    ) -> list[tuple[int, int, int]]:
        """Return up to ``count`` units from a queue offset on: log offset, size, tags code."""
        queue = self._table.find(topic, queue_id)
        end = 0 if queue is None else queue.end_at(self._log.readable_to())
        if queue is None or not queue.min_offset <= index < end:
            return []
        first = queue.number_of(index)
        stop = min(first + count, queue.number_of(end - 1) + 1)
        units = [self._sound_unit(queue, number) for number in range(first, stop)]
        return [(log_offset, size, queue.tags_code_of(code)) for log_offset, size, code in units]

    def _sound_unit(self, queue: ConsumeQueue, number: int) -> tuple[int, int, int]:
        """Return a unit, repaired if its record would be outside the log."""
        unit = queue.unit(number)
        if unit[0] < self._log.min_offset() or not 0 < unit[1] <= self._log.written_to - unit[0]:
            self._repair.repair(queue, number)
            unit = queue.unit(number)
        return unit

    def offset_behind(self, topic: str, queue_id: int, index: int, count: int) -> int:
        """Return the queue offset behind the units that `consume_queue_units` has returned."""
        queue = self._table.find(topic, queue_id)
        if queue is None or count == 0:
            return index
        return queue.offset_behind(queue.number_of(index) + count - 1)

    def ext_units(self, topic: str, queue_id: int, index: int, count: int) -> list[ExtUnit | None]:
        """Return the extension unit of each of ``count`` existing units; None if it has none."""
        queue = self._table.find(topic, queue_id)
        if queue is None or queue.ext is None:
            return [None] * count
        return [queue.ext.get(queue.unit(at)[2]) for at in range(index, index + count)]

    @property
    def topic_count(self) -> int:
        """How many topics have queues."""
        return len(self._table.topics)

    def queue_keys(self) -> list[tuple[str, int]]:
        """Return topic and number of every queue."""
        return [(queue.topic, queue.queue_id) for queue in self._table.all()]

    # --- replication ----------------------------------------------------------------------------

    def notify_of_writes(self, written: Callable[[], object] | None) -> None:
        """Call ``written`` after each write of records to the log; None to stop."""
        self._appender.on_written = written

    @property
    def log_file_bytes(self) -> int:
        """The size of a file of the log."""
        return self._log.segments.size_bytes

    def file_start(self, log_offset: int) -> int:
        """Return where the file of the log with this offset begins."""
        return log_offset - log_offset % self._log.segments.size_bytes

    def log_bytes(self, start: int, limit: int) -> memoryview | None:
        """Return up to ``limit`` bytes of the log from an offset on, inside one file.

        Returns:
            A slice that stays readable; None if the log has no byte there.
        """
        segment = self._log.segments.find(start)
        stop = min(self._log.written_to, start + limit)
        if segment is None or start >= stop:
            return None
        return segment.view[start - segment.base_offset : stop - segment.base_offset]

    def cold_log_bytes(self, start: int, stop: int) -> Callable[[], None] | None:
        """Return a function that reads bytes of one file into memory; None if they are there.

        It may be called in any thread, and raises an `OSError` if the disk is broken.
        """
        segment = self._log.segments.find(start)
        if segment is None or self._log.is_recent(start):
            return None
        first, last = start - segment.base_offset, min(stop, segment.end_offset)
        last -= segment.base_offset
        if segment.is_resident(first, last):
            return None
        return partial(segment.bring_in_cold, first, last)

    def truncate_log(self, offset: int, prepare: Callable[[int], object] = lambda _: None) -> None:
        """Remove all records from a log offset on, and what was received behind the last one.

        It syncs the store first: call `write_out` in a thread before to keep that short. Slices of
        removed records that a reader still holds become zero.

        Args:
            offset: the new end of the log.
            prepare: called with it while the log still has what is removed, once it is known that
                a record ends there. What it raises ends the call; nothing was removed.

        Raises:
            NoRecordBeginsError: no whole record begins there; nothing was changed.
            SegmentNotReadyError: a log file is being allocated; call it again after
                `wait_for_segment`.
            SetAsideError: confirmed records cannot be kept; nothing was removed.
            StoreUnavailableError: the store is shut, records wait for space on the disk, or the
                disk refused. In the last case the store must be opened again.
        """
        # Most stores are never truncated.
        from cometmq.store.lifecycle.set_aside import set_aside
        from cometmq.store.lifecycle.truncation import check_border, truncate

        if self._lock is None:
            raise StoreUnavailableError(_NOT_OPEN)
        self._appender.finish_deferred()
        if self._appender.backlog_bytes():
            raise StoreUnavailableError("disk full: queues and index lack records of the log")
        check_border(self._log, offset)
        self._allocator.discard_ahead()
        self.write_out()
        if self.confirms and offset < self.confirmed_to:
            set_aside(
                self._files,
                self.paths,
                self._log,
                offset,
                confirmed_to=self.confirmed_to,
                now_ms=self._clock.now_ms(),
            )
        prepare(offset)
        if self.confirms:
            self._log.confirmed_to = min(self._log.confirmed_to, offset)
        truncate(offset, self._log, self._table, self._index, self._durability, self._abort)
        self.replica.discard_partial()

    # --- flushing -----------------------------------------------------------------------------

    @property
    def folders_aside(self) -> list[str]:
        """The folders with confirmed records that a master lacked, by their names."""
        from cometmq.store.lifecycle.set_aside import folders_aside

        return folders_aside(self._files, self.paths)

    @property
    def written_to(self) -> int:
        """The log offset that the next record gets, unless it needs a new file."""
        return self._log.written_to

    @property
    def flushed_to(self) -> int:
        """The log offset up to which all records are on the disk."""
        return self._log.flushed_to

    def flush(self, least_pages: int = 0) -> int:
        """Sync the log and return up to where it is on the disk; from any thread.

        Args:
            least_pages: do nothing while fewer pages of 4 KiB are waiting; 0 for any byte.

        Raises:
            StoreUnavailableError: the disk refused, now or earlier; nothing more is stored.
        """
        return self._durability.flush(least_pages)

    @property
    def unsynced_queues(self) -> int:
        """The number of queues with units that are not synced."""
        return len(self._table.unsynced)

    def flush_queues(self, least_pages: int = 0, *, with_index: bool = True) -> None:
        """Sync the queues and the index files that have become full; from any thread.

        Args:
            least_pages: leave out queues with fewer unsynced pages of 4 KiB; 0 for none.
            with_index: also sync the newest index file.

        Raises:
            StoreUnavailableError: as for `flush`.
        """
        self._durability.flush_queues(least_pages, with_index=with_index)

    def notify_of_readable(self, changed: Callable[[], object]) -> None:
        """Call ``changed`` when readers may see more of the log.

        That is after each flush, in the thread that flushes, and after `confirm`.
        """
        self._durability.on_flush = self._on_readable = changed

    def bring_in_index_slots(self) -> None:
        """Read what the keys of the next messages change into memory; from any thread.

        Raises:
            OSError: the disk is broken.
        """
        if self._index is not None:
            self._index.bring_in_slots()

    def write_checkpoint(self) -> None:
        """Write the checkpoint; from any thread.

        Raises:
            StoreUnavailableError: as for `flush`.
        """
        self._durability.write_checkpoint()

    def write_out(self) -> None:
        """Flush log, queues and index, and write the checkpoint; from any thread.

        Raises:
            StoreUnavailableError: as for `flush`.
        """
        self.flush()
        self.flush_queues()
        self.write_checkpoint()

    def _refuse(self, reason: str) -> None:
        """Refuse messages: a sync has failed."""
        self._appender.refusal = reason
        self._abort.mark_unsynced()

    # --- cleaning -----------------------------------------------------------------------------

    def clean(self, now_ms: int | None = None, *, expired_at_any_hour: bool = False) -> int:
        """Delete expired files, and refuse or accept messages by the space on the disk.

        Args:
            now_ms: the wall clock; None to read it.
            expired_at_any_hour: do not wait for the hour of deletion.

        Returns:
            How many commit-log files were deleted.
        """
        return sum(self.clean_in_steps(now_ms, expired_at_any_hour=expired_at_any_hour))

    def clean_in_steps(
        self, now_ms: int | None = None, *, expired_at_any_hour: bool = False
    ) -> Iterator[int]:
        """Clean in short steps, as `clean`; yield how many commit-log files each has deleted."""
        if self._lock is None:
            return
        now_ms = self._clock.now_ms() if now_ms is None else now_ms
        yield from self._cleaner.steps(now_ms, expired_at_any_hour=expired_at_any_hour)

    def delete_topic(self, topic: str) -> bool:
        """Delete the queues of a topic; its records stay until their files expire.

        Returns:
            Whether it had any.

        Raises:
            StoreUnavailableError: the disk refused; the topic keeps its queues.
        """
        return self._topic_deletion.delete(topic)

    def topics(self) -> list[str]:
        """Return the topics that have queues."""
        return list(self._table.topics)

    def holds_batches(self, topic: str) -> bool:
        """Return whether a queue of a topic holds batches."""
        found = self._table.topics.get(topic)
        return found is not None and any(each.holds_batches for each in found.queues.values())

    def has_queues(self, topic: str) -> bool:
        """Return whether a topic has queues."""
        found = self._table.topics.get(topic)
        return found is not None and bool(found.queues)

    def queue_counts_behind(self, log_offset: int) -> dict[str, int]:
        """Return the topics with messages behind a log offset, and the largest queue id plus 1."""
        counts: dict[str, int] = {}
        for queue in self._table.all():
            if queue.max_physical > log_offset:
                counts[queue.topic] = max(counts.get(queue.topic, 0), queue.queue_id + 1)
        return counts

    # --- figures ------------------------------------------------------------------------------

    @property
    def min_log_offset(self) -> int:
        """The log offset of the oldest record."""
        return self._log.min_offset()

    @property
    def dispatch_backlog_bytes(self) -> int:
        """The bytes of the log that are not in queues and index: 0 unless the disk is full."""
        return self._appender.backlog_bytes()

    def runtime_figures(self) -> dict[str, str]:
        """Return the figures of the store for the runtime information, by RocketMQ's names."""
        from cometmq.store.lifecycle.set_aside import SET_ASIDE

        aside = self.folders_aside
        return {
            **({SET_ASIDE: ";".join(aside)} if aside else {}),
            "commitLogMinOffset": str(self.min_log_offset),
            "commitLogMaxOffset": str(self.written_to),
            "dispatchBehindBytes": str(self.dispatch_backlog_bytes),
            "earliestMessageTimeStamp": str(self.earliest_store_ms()),
        }

    def earliest_store_ms(self) -> int:
        """Return the store time of the oldest message, in ms; -1 if there is none."""
        return self._loader.earliest_store_ms(self._log)


def bring_in(parts: Sequence[ColdPart]) -> None:
    """Read parts of files into memory; from any thread."""
    for part in parts:
        part.file.bring_in(part.start, part.stop)


def _memory_bytes(percent: int) -> int:
    """Return so much of the physical memory of this machine."""
    return SERVERS.memory_bytes() * percent // 100
