"""Recovery: finds the end of the log, and dispatches records that queues and index lack.

    the store was        queues and index are trusted up to
    closed               the end in the checkpoint
    killed (same boot)   the newest record with a sound unit
    without power        the offset in the checkpoint

The log is walked from 16 MiB before that offset on, whatever the size of the store. Without a
usable checkpoint (RocketMQ's does not name offsets) the walk begins with a file known to be whole.
The log ends where no whole record begins. The bytes behind it show why:

    nothing but zeros or garbage          the end, or a record torn by a crash: truncated
    whole records, newer than the last    after a crash, beyond the offset in the checkpoint:
                                          writes that no sync covered: truncated
                                          else damage in the middle: refused, nothing is changed

Records older than the last whole one are left over from an earlier truncation and
are ignored. Truncated bytes are zeroed: no later start takes them for records. Nothing is
written until the end of the log is known. Source: CommitLog.recoverNormally and recoverAbnormally,
RocketMQ 5.3, which truncates always.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from cometmq.model.flags import SysFlag
from cometmq.protocol.record import MAGIC_V1, MAGIC_V2
from cometmq.store.config import StoreSettings
from cometmq.store.errors import StoreCorruptError
from cometmq.store.index.key_index import Index
from cometmq.store.lifecycle.abort_file import AbortFile, Ending
from cometmq.store.lifecycle.checkpoint import Checkpoint, write_checkpoint
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.record_scan import read_facts, walk
from cometmq.store.log.segments import Segment, Segments
from cometmq.store.paths import StorePaths
from cometmq.store.queues.batch_consume_queue import BatchConsumeQueue
from cometmq.store.queues.consume_queue import FILLER_SIZE, ConsumeQueue
from cometmq.store.queues.consume_queue_ext import is_address
from cometmq.store.queues.dispatch import Dispatcher, QueueTable, count_of
from cometmq.store.queues.redispatch import (
    QueueGapError,
    Redispatched,
    code_of,
    redispatch,
    write_buffers_out,
)
from cometmq.store.queues.repair import Repair
from cometmq.system.files import Files, find_in_mapping

logger = logging.getLogger(__name__)

_MAGICS = tuple((magic & 0xFFFFFFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
_WALKED_BYTES = 16 * 1024 * 1024
_CHECKED_QUEUES_MAX = 256
"""With more queues the last unit of each is not compared with its record after a clean stop."""
_SEARCHED_BYTES_MAX = 512 * 1024 * 1024
_UNITS_TRIED_MAX = 100_000
"""Units of one queue that a killed process may have written before their records."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of the log."""

    offset: int
    """The end of the last whole record."""
    last_store_ms: int
    """When that record was stored; 0 if none was met."""
    problem: str
    """The problem there: what was met instead of a record."""


@dataclass(frozen=True, slots=True)
class Follower:
    """A whole record behind the end of the log."""

    log_offset: int
    store_ms: int


class Recovery:
    """Makes log, queues and index of one store consistent.

    Args:
        settings, paths, files: the settings, paths and files of the store.
        log, table, index, dispatcher: its parts, loaded; the index is None if there is none.
        checkpoint: as read.
        abort, ending: the file ``abort`` as read, and how the last process ended.
        knows_least_offsets: whether the queues know which of their records are gone.
        buffers_units: whether units may be in memory only until the end of the recovery.
        missing_from: the log offset from which queues may lack units; None if it is not known.
        is_copy: whether the end of the log can be copied from a master again.
    """

    def __init__(
        self,
        settings: StoreSettings,
        paths: StorePaths,
        files: Files,
        log: CommitLog,
        table: QueueTable,
        index: Index | None,
        dispatcher: Dispatcher,
        checkpoint: Checkpoint,
        abort: AbortFile,
        ending: Ending,
        *,
        knows_least_offsets: bool = False,
        buffers_units: bool = False,
        missing_from: int | None = None,
        is_copy: bool = False,
    ) -> None:
        self._settings = settings
        self._paths = paths
        self._files = files
        self._log = log
        self._segments = log.segments
        self._table = table
        self._index = index
        self._dispatcher = dispatcher
        self._checkpoint = checkpoint
        self._abort = abort
        self._ending = ending
        self._knows_least_offsets = knows_least_offsets
        self._missing_from = missing_from
        self._is_copy = is_copy
        self._is_whole_meanwhile = ending is not Ending.POWER_LOST and not buffers_units
        self._crashed = ending is not Ending.CLOSED
        self._queues_end = max((queue.max_physical for queue in table.all()), default=-1)
        self._repair = Repair(log, table, dispatcher)
        self._left_bytes = _SEARCHED_BYTES_MAX
        """How much of the log may still be searched for records of units behind its end."""
        self._damaged: list[ConsumeQueue] = []
        """Queues that had a damaged unit at their end."""
        self.new_topics: frozenset[str] = frozenset()
        """Topics that had no queues before; empty if another program wrote the store last."""

    def run(self) -> Redispatched:
        """Find the end of the log and dispatch it to queues and index.

        Returns:
            The log offsets up to which records have units and keys: the log's end, unless the disk
            is full.

        Raises:
            StoreCorruptError: the log is damaged in the middle; nothing was changed.
            OSError: the disk refused.
        """
        at = self._checkpoint.position
        start = self._exact_start()
        is_exact = start is not None
        walk_from = self._first_whole_file() if start is None else self._record_before(start)
        end = find_end(
            self._segments,
            walk_from,
            check_crc=self._settings.check_crc_on_recover,
            # Behind the last sync of a slave that was closed, a record may have come in part.
            synced_ms=None if at is None and not self._crashed else self._checkpoint.physic_ms,
            synced_to=None if at is None else at.log_offset,
        )
        self._check_end(end)
        # From here on files are changed. Until all is repaired, a kill must not look like one of a
        # process whose files were whole.
        has_unsynced_pages = self._abort.has_unsynced_pages()
        self._abort.mark_open(is_whole=self._is_whole_meanwhile)
        index_ms = self._checkpoint.index_ms
        self._truncate_position(end.offset)
        index_start = self._repair_index(end.offset, index_ms, is_exact=is_exact)
        self._truncate_log(end)
        if has_unsynced_pages:
            self._log.write_again(walk_from if at is None else at.log_offset)
        start = walk_from if start is None else start
        self._truncate_queues(start, end.offset)
        if not is_exact and not self._crashed:
            start = self._end_of_queues(start)
        for other in (index_start, self._missing_from, self._end_of_damaged()):
            if other is not None:
                start = min(start, other)
        done = self._redispatch(start, end.offset)
        if done.problem is not None:
            logger.error(
                "records not dispatched, disk full without_keys_from=%d without_units_from=%d"
                " error=%s",
                *(done.to, done.units_to, done.problem),
            )
        if not self._knows_least_offsets:
            for queue in self._table.all():
                queue.correct_min(self._log.min_offset())
        write_buffers_out(self._table)
        if self._crashed:
            self._mark_unsynced()
        # A start after a kill relies on this: all records have units up to the newest unit.
        is_whole = all(queue.max_physical <= done.units_to for queue in self._table.all())
        self._abort.mark_open(is_whole=is_whole)
        logger.info(
            "store recovered ending=%r end=%d ended_by=%r walked_from=%d dispatched=%d",
            *(self._ending.value, end.offset, end.problem, walk_from, done.count),
        )
        return done

    def _redispatch(self, start: int, end: int) -> Redispatched:
        """Dispatch what follows ``start``; all of the log if a queue lacks more than that."""
        had = set(self._table.topics)
        try:
            done = self._dispatch_from(start, end, finds_gaps=True)
        except QueueGapError as gap:
            logger.error("a queue lacks units, dispatching the whole log: %s", gap)
            start = min(start, self._log.min_offset())
            done = self._dispatch_from(start, end, finds_gaps=False)
        if self._checkpoint.position is not None:
            self.new_topics = frozenset(self._table.topics) - had
        return done

    def _dispatch_from(self, start: int, end: int, *, finds_gaps: bool) -> Redispatched:
        """Dispatch the records between two log offsets; without keys if these have no space."""
        call = partial(redispatch, self._segments, finds_gaps=finds_gaps, repair=self._repair)
        done = call(start, end, self._table, self._dispatcher)
        if done.problem is None:
            return done
        rest = call(done.units_to, end, self._table, self._dispatcher.without_keys())
        return replace(done, units_to=rest.units_to, count=done.count + rest.count)

    # --- where to begin -----------------------------------------------------------------------

    def _exact_start(self) -> int | None:
        """Return the log offset up to which all parts are consistent, if it is known exactly."""
        at = self._checkpoint.position
        if self._ending is Ending.KILLED:
            newest = self._end_of_newest_sound_unit()
            if newest is None or at is None or not self._is_in_log(at.queues_offset):
                return newest
            # Not less than what the checkpoint covers: if the power fails now, it counts.
            return max(newest, at.queues_offset)
        if at is None:
            return None
        if self._ending is Ending.CLOSED:
            agrees = at.queues_end == self._queues_end and at.queues_offset == at.log_offset
            return at.log_offset if agrees and self._is_in_log(at.log_offset) else None
        return at.queues_offset if self._is_in_log(at.queues_offset) else None

    def _record_before(self, offset: int) -> int:
        """Return where a record begins that is up to 16 MiB before a log offset, to walk from."""
        least = self._log.min_offset()
        if offset - least <= _WALKED_BYTES:
            return min(least, offset)
        queue = max(self._table.all(), key=lambda queue: queue.max_physical, default=None)
        if queue is None:
            return offset
        number = queue.first_at_or_after(offset - _WALKED_BYTES)
        if number >= queue.end_unit:
            return offset
        log_offset, size, _ = queue.unit(number)
        is_before = size != FILLER_SIZE and log_offset < offset
        return (
            log_offset if is_before and self._is_sound(queue, log_offset, size, number) else offset
        )

    def _is_in_log(self, offset: int) -> bool:
        first, last = self._segments.first(), self._segments.last()
        if first is None or last is None:
            return False
        return first.base_offset <= offset <= last.end_offset

    def _end_of_newest_sound_unit(self) -> int | None:
        """Return where the newest record ends whose unit and record agree."""
        newest: int | None = None
        queues = sorted(self._table.all(), key=lambda queue: queue.max_physical, reverse=True)
        for queue in queues:
            if newest is not None and queue.max_physical <= newest:
                break
            stop = max(queue.first_unit, queue.end_unit - _UNITS_TRIED_MAX)
            for number in range(queue.end_unit - 1, stop - 1, -1):
                log_offset, size, _ = queue.unit(number)
                if size != FILLER_SIZE and self._is_sound(queue, log_offset, size, number):
                    newest = max(newest or 0, log_offset + size)
                    break
        return newest

    def _is_sound(self, queue: ConsumeQueue, log_offset: int, size: int, number: int) -> bool:
        """Return whether the log has the record of a unit."""
        segment = self._segments.find(log_offset)
        if segment is None or log_offset < 0:
            return False
        facts = read_facts(segment, log_offset - segment.base_offset, True)
        return (
            facts.problem is None
            and facts.total == size
            and facts.queue_id == queue.queue_id
            and facts.queue_offset == queue.offset_of(number)
            and facts.topic == queue.topic.encode()
        )

    def _may_keep(
        self,
        queue: ConsumeQueue,
        trusted_to: int,
        end: int,
        log_offset: int,
        size: int,
        number: int,
    ) -> bool:
        """Return whether a unit may be the last one of its queue; note a queue with a damaged one.

        Args:
            queue: of the unit.
            trusted_to: units of records behind that log offset are made again.
            end: the end of the log.
            log_offset, size, number: the unit, and its number.
        """
        log_min = self._log.min_offset()
        if 0 <= log_offset < log_min and 0 < size <= log_min - log_offset:  # its record is deleted
            return self._repair.follows(queue, number)
        if self._is_sound(queue, log_offset, size, number):
            if log_offset + size > trusted_to:
                return False
            if self._has_its_code(queue, number):
                return True
            self._damaged.append(queue)  # only its first part was written
            return False
        if 0 <= log_offset <= trusted_to - size and self._repair.has_damaged_record(queue, number):
            return True  # readers get an error
        if not (log_offset or size):
            return False
        last = self._segments.last()
        if self._crashed and last is not None and end <= log_offset < last.end_offset:
            # The end of the log may be lost; or else the unit is damaged.
            if self._left_bytes <= 0:
                return False
            self._left_bytes -= self._repair.searched_bytes(queue, number)
            if self._repair.find(queue, number) is None:
                return False
        if self._repair.fill_if_expired(queue, number):
            return True
        self._damaged.append(queue)
        return False

    def _has_its_code(self, queue: ConsumeQueue, number: int) -> bool:
        """Return whether the rest of a sound unit is what its record says."""
        log_offset, _, code = queue.unit(number)
        if queue.ext is None and is_address(code):
            return True  # all extension units are lost, and no more are written
        segment = self._segments.find(log_offset)
        assert segment is not None
        facts = read_facts(segment, log_offset - segment.base_offset, False)
        if isinstance(queue, BatchConsumeQueue):
            is_batch = facts.sys_flag & SysFlag.INNER_BATCH
            count = count_of(facts.properties) if is_batch else 1
            if queue.span_of(number) != (facts.store_ms, facts.queue_offset, count):
                return False
        if self._table.topic(queue.topic).is_delay and code >= facts.store_ms:
            return True  # the levels may have changed since
        return code == code_of(facts, queue, self._table, self._dispatcher, code)

    def _first_whole_file(self) -> int:
        """Return the log offset of the newest file that begins with a whole record."""
        items = self._segments.items
        safe = self._settings.index_enabled and self._settings.index_safe
        whole_until_ms = self._checkpoint.min_index_ms if safe else self._checkpoint.min_ms
        for segment in reversed(items):
            if not self._crashed:
                if segment.base_offset <= self._queues_end:
                    return segment.base_offset
                continue
            facts = read_facts(segment, 0, False)
            if facts.problem is None and facts.total and 0 < facts.store_ms <= whole_until_ms:
                return segment.base_offset
        return items[0].base_offset if items else 0

    def _end_of_queues(self, start: int) -> int:
        """Return the log offset from which a queue may lack units after a clean stop."""
        least = self._log.min_offset()
        is_in_log = least <= self._queues_end <= self._log.written_to
        if not is_in_log or not record_begins(self._segments, self._queues_end):
            return start
        return self._queues_end

    # --- the log --------------------------------------------------------------------------------

    def _check_end(self, end: LogEnd) -> None:
        """Refuse a log that is damaged where it was on disk.

        Raises:
            StoreCorruptError: whole records follow, or known ones are missing.
        """
        at = self._checkpoint.position
        known_to = at.log_offset if at is not None else -1
        if known_to > end.offset:
            if self._is_copy and find_follower(self._segments, end) is None:
                logger.error(
                    "log lacks bytes that were on the disk, copying them again end=%d expected=%d",
                    *(end.offset, known_to),
                )
                return
            self._refuse(end, f"a log up to offset {known_to}, as the checkpoint says")
            return
        segment = self._segments.find(end.offset)
        if segment is None:
            return
        if self._ending is Ending.POWER_LOST and known_to >= 0:
            return  # what follows was never on disk for certain
        if at is None and self._checkpoint.physic_ms == 0:
            # The checkpoint is lost. RocketMQ, which alone leaves records behind the end, writes
            # one; so nothing is a left-over, even if the clock was set back.
            end = replace(end, last_store_ms=0)
        if not self._crashed and 0 <= self._queues_end <= end.offset:
            return
        follower = find_follower(self._segments, end)
        if follower is None:
            return
        if self._ending is Ending.POWER_LOST and follower.store_ms >= self._checkpoint.physic_ms:
            return
        self._refuse(
            end, f"a record, as whole records follow from log offset {follower.log_offset} on"
        )

    def _refuse(self, end: LogEnd, expected: str) -> None:
        """Refuse the log, unless the settings say that it is truncated.

        Raises:
            StoreCorruptError: with what was met at its end.
        """
        last = self._segments.last()
        segment = self._segments.find(end.offset) or last
        path = self._paths.commit_log if segment is None else segment.file.path
        base = 0 if segment is None else segment.base_offset
        error = StoreCorruptError(
            path,
            end.offset - base,
            end.problem if segment is not None else "no file",
            f"{expected} (cutDamagedLog=true truncates the log there and loses what follows)",
        )
        if not self._settings.cut_damaged_log:
            raise error
        logger.error("damaged log truncated error=%s", error)

    def _mark_unsynced(self) -> None:
        """Let the next flushes sync all that the last process may not have synced."""
        at = self._checkpoint.position
        least = self._log.min_offset()
        self._log.flushed_to = least if at is None else min(at.log_offset, self._log.written_to)
        for queue in self._table.all():
            queue.mark_unsynced()
        if self._index is not None:
            self._index.mark_unsynced()

    def _truncate_position(self, end: int) -> None:
        """Remove positions behind the end of the log from the checkpoint.

        Other records will get their offsets, and other keys their entries in the index.
        """
        at = self._checkpoint.position
        is_beyond = at is not None and max(at.log_offset, at.index_offset + 1) > end
        index_ms = self._checkpoint.index_ms
        if not is_beyond and (self._index is None or not self._index.is_beyond(end, index_ms)):
            return
        self._checkpoint.index_ms = 0
        if at is None or at.log_offset > end:
            self._checkpoint.position = None
        elif is_beyond:  # keys may be on disk before their records
            name, entries, offset = 0, 0, 0
            if self._index is not None:
                name, entries, offset = self._index.position_before(
                    end, at.index_name, at.index_entries
                )
            self._checkpoint.position = replace(
                at, index_name=name, index_entries=entries, index_offset=offset
            )
        write_checkpoint(self._files, self._paths.checkpoint, self._checkpoint)

    def _truncate_log(self, end: LogEnd) -> None:
        log = self._log
        erased = self._segments.truncate(end.offset)
        if erased:
            logger.warning(
                "log truncated physical_offset=%d reason=%r erased_bytes=%d ending=%r",
                *(end.offset, end.problem, erased, self._ending.value),
            )
        log.begin_at(end.offset)
        log.last_store_ms = max(end.last_store_ms, self._checkpoint.physic_ms)
        segment = log.segments.find(end.offset)
        if segment is None:
            return
        try:  # RocketMQ leaves its files sparse; for ours this does nothing
            segment.file.reserve(end.offset - segment.base_offset, segment.size_bytes)
        except OSError as problem:
            logger.warning(
                "cannot allocate disk space for the newest log file path=%s error=%s",
                *(segment.file.path, problem),
            )

    # --- queues and index -----------------------------------------------------------------------

    def _truncate_queues(self, trusted_to: int, end: int) -> None:
        """Remove the units of records that end after ``trusted_to``; they are dispatched again."""
        queues = self._table.all()
        checks_ends = len(queues) <= _CHECKED_QUEUES_MAX
        for queue in queues:
            keeps = partial(self._may_keep, queue, trusted_to if self._crashed else end, end)
            if self._crashed or (checks_ends and not self._ends_well(queue, keeps)):
                queue.truncate(trusted_to, keeps)
            elif queue.max_physical > end or not queue.ends_in_last_file():
                queue.truncate(end)

    def _ends_well(self, queue: ConsumeQueue, keeps: Callable[[int, int, int], bool]) -> bool:
        """Return whether the last unit of a queue that was closed is sound."""
        if self._knows_least_offsets or queue.end_unit <= queue.first_unit:
            return True
        log_offset, size, _ = queue.unit(queue.end_unit - 1)
        return size == FILLER_SIZE or keeps(log_offset, size, queue.end_unit - 1)

    def _end_of_damaged(self) -> int | None:
        """Return the log offset from which queues lack units that were damaged; None if none do."""
        if not self._damaged:
            return None
        for queue in self._damaged:
            logger.log(
                logging.WARNING if self._crashed else logging.ERROR,  # a crash tears units
                "damaged unit at the end of a queue, dispatching again topic=%s queue=%d offset=%d",
                *(queue.topic, queue.queue_id, queue.max_offset),
            )
        least = min(queue.max_physical for queue in self._damaged)
        return max(least, self._log.min_offset())

    def _repair_index(self, end: int, index_ms: int, *, is_exact: bool) -> int | None:
        """Remove the entries of the index that may be incomplete.

        Args:
            end: the end of the log.
            index_ms: the store time up to which full files are on disk.
            is_exact: whether the checkpoint names what is on disk of the newest one.

        Returns:
            The log offset from which it may lack keys; None if it lacks none.
        """
        index = self._index
        if index is None:
            return None
        least = self._log.min_offset()
        dropped = 0
        at = self._checkpoint.position
        went_back = False
        if self._ending is Ending.KILLED:
            index.count_unregistered()  # only the process died; its pages are all there
        elif self._ending is Ending.POWER_LOST:
            went_back = (
                is_exact
                and at is not None
                and index.truncate_to(at.index_name, at.index_entries, at.index_offset)
            )
            if not went_back:
                dropped = index.drop_unsynced(index_ms)
        removed = index.truncate(end)
        newest = index.newest
        if newest is None:
            return least
        may_lack = is_exact if self._crashed else (at is not None and not is_exact)
        if dropped or removed or went_back or newest.is_full() or may_lack:
            return max(least, int(newest.end_log))
        return None


def find_end(
    segments: Segments,
    start: int,
    *,
    check_crc: bool,
    synced_ms: int | None = None,
    synced_to: int | None = None,
) -> LogEnd:
    """Walk the records of the log to their end.

    Args:
        segments: the log.
        start: the log offset of the record to begin with.
        check_crc: whether the checksum of each body must match.
        synced_ms: the store time before which records are whole; a later one may lack the end of
            its properties, which no checksum covers. None if all are whole.
        synced_to: the same as a log offset, which counts instead if it is known.
    """
    if synced_ms is not None and synced_to is not None:
        synced_ms = 0
    last_store_ms = 0
    for segment in segments.items:
        if segment.end_offset <= start:
            continue
        position = max(0, start - segment.base_offset)
        synced = 0 if synced_to is None else synced_to - segment.base_offset
        position, store_ms, problem = walk(segment, check_crc, synced_ms, position, synced)
        last_store_ms = store_ms or last_store_ms
        if problem is not None:
            return LogEnd(segment.base_offset + position, last_store_ms, problem)
    last = segments.last()
    return LogEnd(last.end_offset if last is not None else 0, last_store_ms, "the last file's end")


def find_follower(segments: Segments, end: LogEnd) -> Follower | None:
    """Return the first newer whole record behind the end of the log, if any."""
    for segment in segments.items:
        if segment.end_offset <= end.offset:
            continue
        start = max(0, end.offset + 5 - segment.base_offset)  # behind the magic at the end itself
        for first, stop in segment.file.data_ranges(start, segment.size_bytes):
            found = _follower_in(segment, first, stop, end.last_store_ms)
            if found is not None:
                return found
    return None


def _follower_in(segment: Segment, start: int, stop: int, newer_than_ms: int) -> Follower | None:
    mapping = segment.file.map
    for magic in _MAGICS:
        at = find_in_mapping(mapping, magic, start, stop)
        while at >= 0:
            if at >= 4:
                facts = read_facts(segment, at - 4, True)
                if facts.problem is None and facts.total and facts.store_ms >= newer_than_ms:
                    return Follower(facts.log_offset, facts.store_ms)
            at = find_in_mapping(mapping, magic, at + 1, stop)
    return None


def record_begins(segments: Segments, offset: int) -> bool:
    """Return whether a record, a blank or nothing yet begins at ``offset``."""
    segment = segments.find(offset)
    if segment is None:
        return True
    facts = read_facts(segment, offset - segment.base_offset, False)
    return facts.problem is None or facts.problem == "zeros"
