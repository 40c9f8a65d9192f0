"""Loading: from the files of a store to its parts, with everything in step.

Source: DefaultMessageStore.load and recover, RocketMQ 5.3; that nothing is written before the log
has been judged, and that a missing index is made again, is ours.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from cometmq.store import recovery
from cometmq.store.checkpoint import Checkpoint
from cometmq.store.commit_log import CommitLog
from cometmq.store.config import StoreSettings
from cometmq.store.consume_queue import ConsumeQueue
from cometmq.store.consume_queue_ext import ConsumeQueueExt
from cometmq.store.dispatch import Dispatcher, QueueTable
from cometmq.store.index import Index
from cometmq.store.paths import StorePaths
from cometmq.store.records import read_facts
from cometmq.store.segments import Segments
from cometmq.system.files import Files

logger = logging.getLogger(__name__)


class Loader:
    """Makes the parts of one store and loads them.

    Args:
        settings: of the store.
        paths: of the store.
        files: the way to the disk.
        now_ms: the wall clock.
        read_only: never write, create or delete any file.
    """

    def __init__(
        self,
        settings: StoreSettings,
        paths: StorePaths,
        files: Files,
        now_ms: Callable[[], int],
        *,
        read_only: bool = False,
    ) -> None:
        self._settings = settings
        self._paths = paths
        self._files = files
        self._now_ms = now_ms
        self._read_only = read_only
        self._has_ext = settings.consume_queue_ext_enabled or files.exists(paths.consume_queues_ext)

    def log_segments(self) -> Segments:
        """Return the commit log's files, not yet loaded."""
        return Segments(
            self._files,
            self._paths.commit_log,
            self._settings.commit_log_file_bytes,
            read_only=self._read_only,
            keep_open=True,
        )

    def index(self) -> Index:
        """Return the index, not yet loaded."""
        return Index(
            self._files,
            self._paths.index,
            self._settings.index_slots,
            self._settings.index_entries,
            self._now_ms,
            read_only=self._read_only,
        )

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue, not yet loaded.

        Raises:
            InvalidNameError: the topic cannot name a directory.
        """
        ext = None
        if self._has_ext:
            directory = self._paths.queue_ext(topic, queue_id)
            size_bytes = self._settings.consume_queue_ext_file_bytes
            segments = Segments(self._files, directory, size_bytes, read_only=self._read_only)
            ext = ConsumeQueueExt(segments, writing=self._settings.consume_queue_ext_enabled)
        directory = self._paths.queue(topic, queue_id)
        size_bytes = self._settings.queue_file_bytes
        segments = Segments(self._files, directory, size_bytes, read_only=self._read_only)
        return ConsumeQueue(topic, queue_id, segments, ext)

    def load(self, log: CommitLog, table: QueueTable, index: Index | None) -> None:
        """Map all files that are there.

        Raises:
            StoreCorruptError: a file is not what its name says.
        """
        log.segments.load()
        for topic in self._files.entries(self._paths.consume_queues):
            if topic.is_dir:
                self._load_topic(topic.name, table)
        if index is not None:
            index.load()

    def _load_topic(self, name: str, table: QueueTable) -> None:
        for entry in self._files.entries(self._paths.topic(name)):
            if entry.is_dir and entry.name.isascii() and entry.name.isdigit():
                queue = table.queue(table.topic(name), int(entry.name))
                queue.load()

    def recover(
        self,
        log: CommitLog,
        table: QueueTable,
        index: Index | None,
        dispatcher: Dispatcher,
        checkpoint: Checkpoint,
        crash: bytes | None,
    ) -> None:
        """Find the log's end and bring queues and index up to it.

        Args:
            log, table, index, dispatcher, checkpoint: of the store.
            crash: what the file ``abort`` says; None where the store was closed.

        Raises:
            StoreCorruptError: the log is damaged in the middle; nothing was changed.
            OSError: the disk refused.
        """
        crashed = crash is not None
        segments = log.segments
        queues = table.all()
        max_physical = max((queue.max_physical for queue in queues), default=-1)
        first = self._first_segment(segments, checkpoint, max_physical, crashed=crashed)
        check_crc = self._settings.check_crc_on_recover
        synced_ms = checkpoint.physic_ms if crashed else None
        end = recovery.find_end(segments, first, check_crc=check_crc, synced_ms=synced_ms)
        recovery.check_end(
            segments,
            end,
            checkpoint,
            crashed=crashed,
            max_physical=max_physical,
            cut_damaged=self._settings.cut_damaged_log,
        )
        # From here on files are changed; a crash on the way is met like any other.
        self._files.write(self._paths.abort, self._mark())
        self._files.sync_dir(self._paths.root)
        dropped = self._repair_index(index, checkpoint, crash, end) if index is not None else 0
        self._cut(log, end, crashed=crashed)
        log.last_store_ms = max(end.last_store_ms, checkpoint.physic_ms)
        for queue in queues:
            if crashed or queue.max_physical > end.offset or not queue.ends_in_last_file():
                queue.cut(end.offset)
        start = segments.items[first].base_offset if segments.items else 0
        start = self._dispatch_start(segments, start, max_physical, crashed=crashed)
        if index is not None:
            start = self._index_start(segments, index, start, dropped=dropped)
        count = recovery.redispatch(segments, start, end.offset, table, dispatcher)
        for queue in table.all():
            queue.correct_min(log.min_offset())
        logger.info(
            "store recovered crashed=%s end=%d ended_by=%r dispatched=%d",
            *(crashed, end.offset, end.problem, count),
        )

    def _first_segment(
        self, segments: Segments, checkpoint: Checkpoint, max_physical: int, *, crashed: bool
    ) -> int:
        if not crashed:
            return recovery.start_after_clean_stop(segments, max_physical)
        safe = self._settings.index_enabled and self._settings.index_safe
        whole_until_ms = checkpoint.min_index_ms if safe else checkpoint.min_ms
        return recovery.start_after_crash(segments, whole_until_ms)

    @staticmethod
    def _cut(log: CommitLog, end: recovery.LogEnd, *, crashed: bool) -> None:
        erased = log.segments.cut(end.offset)
        if erased:
            logger.warning(
                "log truncated physical_offset=%d reason=%r erased_bytes=%d crashed=%s",
                *(end.offset, end.problem, erased, crashed),
            )
        log.begin_at(end.offset)
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

    @staticmethod
    def _dispatch_start(segments: Segments, start: int, max_physical: int, *, crashed: bool) -> int:
        """Return the log offset from which a queue may lack units."""
        first = segments.first()
        least = first.base_offset if first is not None else 0
        if crashed or max_physical < least or not recovery.record_begins(segments, max_physical):
            return start
        return max_physical

    @staticmethod
    def _index_start(segments: Segments, index: Index, start: int, *, dropped: int) -> int:
        """Return the log offset, at most ``start``, from which the index may lack keys."""
        first = segments.first()
        least = first.base_offset if first is not None else 0
        newest = index.newest
        if newest is None:
            return least
        if dropped or newest.is_full():
            return max(least, min(start, int(newest.end_log)))
        return start

    def _repair_index(
        self, index: Index, checkpoint: Checkpoint, crash: bytes | None, end: recovery.LogEnd
    ) -> int:
        """Keep what is whole of the index; return how many files were deleted."""
        dropped = 0
        boot_id = self._files.boot_id().encode()
        if crash is not None and boot_id and crash.endswith(b"\n" + boot_id):
            index.count_unregistered()  # only the process died; its pages are all there
        elif crash is not None:
            dropped = index.keep_whole(checkpoint.index_ms)
        return dropped + index.drop_beyond(end.offset)

    def _mark(self) -> bytes:
        """What the file ``abort`` says while the store is open: which process, since which boot."""
        return f"{os.getpid()}\n{self._files.boot_id()}".encode()

    @staticmethod
    def earliest_store_ms(log: CommitLog) -> int:
        """Return when the oldest record kept was stored, in ms; -1 if there is none."""
        first = log.segments.first()
        if first is None or log.written_to == first.base_offset:
            return -1
        facts = read_facts(first, 0, False)
        return facts.store_ms if facts.problem is None and facts.total else -1
