"""Opens the files of a store and makes its parts.

Source: DefaultMessageStore.load, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cometmq.store.config import LOG_FILE_BYTES, SMALL_LOG_FILE_BYTES, StoreSettings
from cometmq.store.index.key_index import Index
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.record_scan import read_facts
from cometmq.store.log.segments import MappingLimit, Segments
from cometmq.store.paths import StorePaths, directory_name
from cometmq.store.queues.batch_consume_queue import BatchConsumeQueue
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.consume_queue_ext import ConsumeQueueExt
from cometmq.store.queues.dispatch import QueueTable
from cometmq.store.queues.queue_ends import QueueEnds
from cometmq.store.queues.unit_buffers import BUFFERS_MAX, UnitBuffers
from cometmq.system.files import Files, mapped_files_max

logger = logging.getLogger(__name__)


def kept_log_file_bytes(settings: StoreSettings, files: Files) -> int:
    """Return the size of log files: the existing size if it is a default, else the setting.

    A file of any other size may be one that an interrupted copy has cut off, so such a store opens
    only with the settings that name the size.
    """
    sizes = (entry.size_bytes for entry in files.entries(settings.commit_log) if not entry.is_dir)
    first = next(sizes, 0)
    is_default = first in (LOG_FILE_BYTES, SMALL_LOG_FILE_BYTES)
    return first if is_default else settings.commit_log_file_bytes


class Loader:
    """Makes the parts of one store and loads them.

    Args:
        settings: the settings of the store.
        paths: the paths of the store.
        files: the file system.
        now_ms: the wall clock.
        read_only: whether no file may be written, created or deleted.
        remove: deletes an expired file; None to delete it at once.
    """

    def __init__(
        self,
        settings: StoreSettings,
        paths: StorePaths,
        files: Files,
        now_ms: Callable[[], int],
        *,
        read_only: bool = False,
        remove: Callable[[Path], None] | None = None,
    ) -> None:
        self._remove = remove
        self._settings = settings
        self._paths = paths
        self._files = files
        self._now_ms = now_ms
        self._read_only = read_only
        self.limit = MappingLimit(settings.mapped_queue_files_max or mapped_files_max())
        self.buffers = UnitBuffers(files, paths.unit_buffers, buffers_max=BUFFERS_MAX)
        self.holds_batches: Callable[[str], bool] = lambda _: False
        """Returns whether a new queue of a topic holds batches."""
        self.has_ext = settings.consume_queue_ext_enabled or files.exists(paths.consume_queues_ext)
        """Whether queues have extension units: the setting is on, or was on for messages that
        are still there."""

    def log_segments(self) -> Segments:
        """Return the commit log's files, not yet loaded."""
        return Segments(
            self._files,
            self._paths.commit_log,
            self._settings.commit_log_file_bytes,
            read_only=self._read_only,
            keep_open=True,
            remove=self._remove,
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
            remove=self._remove,
        )

    def queue(
        self,
        topic: str,
        queue_id: int,
        unsynced: deque[ConsumeQueue] | None = None,
        holds_batches: bool | None = None,
    ) -> ConsumeQueue:
        """Return a queue, not yet loaded.

        Args:
            topic, queue_id: its name.
            unsynced: the list that gets the queue when it has unsynced units.
            holds_batches: whether it holds batches; None if its topic decides.

        Raises:
            InvalidNameError: the topic cannot name a directory.
        """
        if self.holds_batches(topic) if holds_batches is None else holds_batches:
            directory = f"{self._paths.batch_queues}/{directory_name(topic)}/{queue_id}"
            segments = self._queue_segments(directory, self._settings.batch_queue_file_bytes)
            return BatchConsumeQueue(topic, queue_id, segments, unsynced)
        ext = self._ext(topic, queue_id) if self.has_ext else None
        directory = f"{self._paths.consume_queues}/{directory_name(topic)}/{queue_id}"
        size_bytes = self._settings.queue_file_bytes
        limit = None if ext is not None else self.limit
        segments = self._queue_segments(directory, size_bytes, limit)
        buffers = None if ext is not None or self._read_only else self.buffers
        return ConsumeQueue(topic, queue_id, segments, ext, unsynced, buffers)

    def _ext(self, topic: str, queue_id: int) -> ConsumeQueueExt | None:
        """Return a queue's extension units; None if it has none and gets none."""
        directory = self._paths.queue_ext(topic, queue_id)
        writing = self._settings.consume_queue_ext_enabled
        if not writing and not self._files.exists(directory):
            return None
        size_bytes = self._settings.consume_queue_ext_file_bytes
        return ConsumeQueueExt(self._queue_segments(directory, size_bytes), writing=writing)

    def _queue_segments(
        self, directory: Path | str, size_bytes: int, limit: MappingLimit | None = None
    ) -> Segments:
        return Segments(
            self._files,
            directory,
            size_bytes,
            read_only=self._read_only,
            remove=self._remove,
            limit=limit,
            sync_names_later=True,
        )

    def load_from_ends(
        self, table: QueueTable, topics: Iterable[tuple[str, list[QueueEnds]]]
    ) -> None:
        """Load all queues without a look at their files.

        Args:
            table: where they go.
            topics: what `read_queue_ends` returned.
        """
        for name, queues in topics:
            topic = table.topic(name)
            for queue_id, files, first_base, least, end, max_physical in queues:
                queue = table.queue(topic, queue_id)
                queue.load_from_ends(first_base, files, least, end, max_physical)

    def load_queues(
        self, table: QueueTable, *, may_be_torn: bool = False, is_zero_behind: bool = False
    ) -> None:
        """Map all queue files that are there.

        Args:
            table: where they go.
            may_be_torn: whether there may be queue files that were never synced.
            is_zero_behind: whether nothing but zeros follows the last unit of each queue.

        Raises:
            StoreCorruptError: the size of a file does not fit its name.
        """
        for topic, queue_id in self._queues_in(self._paths.consume_queues):
            queue = table.add(table.topic(topic), queue_id, False)
            queue.load(may_be_torn=may_be_torn, is_zero_behind=is_zero_behind)
        self.load_batch_queues(table, may_be_torn=may_be_torn, is_zero_behind=is_zero_behind)

    def load_batch_queues(
        self, table: QueueTable, *, may_be_torn: bool = False, is_zero_behind: bool = False
    ) -> list[ConsumeQueue]:
        """Map all files of queues that hold batches, as `load_queues` does; return the queues."""
        loaded = []
        for topic, queue_id in self._queues_in(self._paths.batch_queues):
            directory = self._paths.batch_queue(topic, queue_id)
            if table.find(topic, queue_id) is not None:  # its units are about to be moved there
                if not self._read_only:
                    self._files.remove_tree(directory)
            elif any(entry.size_bytes for entry in self._files.entries(directory)):
                queue = table.add(table.topic(topic), queue_id, True)
                queue.load(may_be_torn=may_be_torn, is_zero_behind=is_zero_behind)
                loaded.append(queue)
        return loaded

    def drop_unused_ext(self, table: QueueTable) -> None:
        """Delete the extension units that no message has any more, if the setting is off."""
        if not self.has_ext or self._settings.consume_queue_ext_enabled:
            return
        for queue in table.all():
            queue.drop_unused_ext()
        self.has_ext = any(queue.ext is not None for queue in table.all())
        if not self.has_ext:
            self._files.remove_tree(self._paths.consume_queues_ext)
            logger.info("extension units deleted: no message has one any more")

    def _queues_in(self, directory: Path) -> Iterator[tuple[str, int]]:
        """Yield topic and number of the queues of which a directory has directories."""
        for topic in self._files.entries(directory):
            for entry in self._files.entries(directory / topic.name) if topic.is_dir else ():
                if entry.is_dir and entry.name.isascii() and entry.name.isdigit():
                    yield topic.name, int(entry.name)

    @staticmethod
    def earliest_store_ms(log: CommitLog) -> int:
        """Return the store time of the oldest record, in ms; -1 if there is none."""
        first = log.segments.first()
        if first is None or log.written_to == first.base_offset:
            return -1
        facts = read_facts(first, 0, False)
        return facts.store_ms if facts.problem is None and facts.total else -1
