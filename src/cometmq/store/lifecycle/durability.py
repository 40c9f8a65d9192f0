"""Durability: syncs of the parts of a store, and the end of all writes after a failed sync.

    stream            synced by        the checkpoint then means
    the commit log    flush            records are on disk, up to an offset and its store time
    all queues        flush_queues     so are the units of all records up to an offset
    the index         flush_queues     full files, and the entries of the newest up to a number

Each stream has its own lock: no sync of the log, which senders wait for, waits for those of
thousands of queues. A failed sync may have dropped the data, and the next one would not report it.
So no sync is retried: every later call raises the reason of the first failure. A sync whose file
cannot be opened, because too many are open, has not begun: the next call syncs the same bytes.

Any thread may call these functions. Source: FlushRealTimeService, FlushConsumeQueueService and
StoreCheckpoint, RocketMQ 5.3, which retry.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.store.errors import StoreUnavailableError
from cometmq.store.index.key_index import Index
from cometmq.store.lifecycle.checkpoint import Checkpoint, Position, write_checkpoint
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.dispatch import QueueTable
from cometmq.system.failure_log import FailureLog
from cometmq.system.files import Files, is_disk_full, is_out_of_descriptors

if TYPE_CHECKING:
    from cometmq.system.platforms.interface import FileSystem

logger = logging.getLogger(__name__)

_MANY_QUEUES = 256
"""The number of unsynced queues from which on all files of their file system are synced at once."""


class Durability:
    """Syncs the parts of one store.

    Args:
        files: the file system.
        path: the file of the checkpoint.
        log: the commit log.
        table: the queues.
        index: the index; None if there is none.
        dispatched_to: returns the log offset up to which all records have units and keys.
        on_failure: called once with the reason when a sync fails.
    """

    def __init__(
        self,
        files: Files,
        path: Path,
        log: CommitLog,
        table: QueueTable,
        index: Index | None,
        dispatched_to: Callable[[], int],
        on_failure: Callable[[str], None],
    ) -> None:
        self.checkpoint = Checkpoint()
        self.failure: str | None = None
        self.on_flush: Callable[[], object] | None = None
        self.keeps_confirm = False
        """Whether the checkpoint has the confirm offset."""
        self.needed_from = 0
        """The log offset from which a start after a power cut reads, by the checkpoint on disk."""
        self._files = files
        self._path = path
        self._log = log
        self._table = table
        self._index = index
        self._dispatched_to = dispatched_to
        self._on_failure = on_failure
        self._file_system: FileSystem | None = None
        self._index_position = Position()
        self._written = b""
        self._opening = FailureLog(
            logger,
            fails="cannot open a file to sync it, retrying; raise the limit of open files",
            works="files are synced again",
            name="path",
        )
        self._log_lock = threading.Lock()
        self._queues_lock = threading.Lock()
        self._checkpoint_lock = threading.Lock()
        # Each field of the checkpoint is set under one lock only: physic_ms under that of the log,
        # the others under that of the queues.

    def begin(self, checkpoint: Checkpoint) -> None:
        """Begin with the checkpoint of a store that was recovered."""
        self._file_system = self._files.file_system(self._path.parent)
        self.checkpoint = checkpoint
        if checkpoint.position is not None:
            self._index_position = checkpoint.position

    def flush(self, least_pages: int) -> int:
        """Sync the log; see `MessageStore.flush`."""
        with self._log_lock:
            self._raise_failure()
            if least_pages and self._log.due_pages() < least_pages:
                return self._log.flushed_to
            store_ms = self._log.last_store_ms
            self._sync(self._log.flush)
            self.checkpoint.physic_ms = max(self.checkpoint.physic_ms, store_ms)
            flushed_to: int = self._log.flushed_to
        if self.on_flush is not None:
            self.on_flush()
        return flushed_to

    def flush_queues(self, least_pages: int, *, with_index: bool) -> None:
        """Sync queues and index; see `MessageStore.flush_queues`."""
        with self._queues_lock:
            self._raise_failure()
            dispatched_to = self._dispatched_to()
            store_ms = self._log.last_store_ms
            if least_pages == 0 and len(self._table.unsynced) >= _MANY_QUEUES:
                self._sync_file_system()
            for queue in self._table.take_unsynced(least_pages):
                with self._log_lock:  # one queue at most between two syncs of the log
                    pass
                with _listed_again([queue]):
                    self._sync(queue.flush)
            with_index |= least_pages == 0 and self._index_position.index_name == 0
            checkpoint = self.checkpoint
            checkpoint.index_ms = max(checkpoint.index_ms, self._sync_index(newest=with_index))
            if least_pages == 0:
                if dispatched_to == self._log.written_to:
                    checkpoint.logics_ms = max(checkpoint.logics_ms, store_ms)
                checkpoint.position = replace(self._index_position, queues_offset=dispatched_to)

    def _sync_file_system(self) -> None:
        """Sync all queues with one call: one for each queue takes minutes for thousands."""
        if self._file_system is None:
            return
        queues = list(self._table.take_unsynced(0))
        with _listed_again(queues):
            for queue in queues:
                self._sync(queue.begin_sync)
            self._sync(self._file_system.sync)
            for queue in queues:
                self._sync(queue.end_sync)

    def _sync_index(self, *, newest: bool) -> int:
        """Sync the full index files and, if asked for, the newest one.

        Returns:
            The store time up to which full files are on disk, 0 if none was synced now.
        """
        index = self._index
        if index is None:
            return 0
        # In this order: an entry that comes between is indexed again, none is left out; and a file
        # that becomes full meanwhile is the newest one here.
        item = index.newest if newest else None
        offset, entries = (0, 0) if item is None else (item.end_log, item.next_entry)
        index_ms = self._sync(index.flush)
        if item is not None:
            self._sync(item.sync)
            self._index_position = Position(
                index_name=int(item.path.name), index_entries=entries, index_offset=offset
            )
        return index_ms

    def write_checkpoint(self) -> None:
        """Write the checkpoint; see `MessageStore.write_checkpoint`."""
        with self._checkpoint_lock:
            self._raise_failure()
            flushed_to = self._log.flushed_to
            if self.keeps_confirm:
                self.checkpoint.confirm = min(self._log.confirmed_to, flushed_to)
            # Before the first complete sync of the queues the log alone is known to be on disk.
            at = self.checkpoint.position or Position()
            at = replace(at, log_offset=flushed_to, queues_offset=min(at.queues_offset, flushed_to))
            checkpoint = replace(self.checkpoint, position=at)
            content = checkpoint.encode()
            if content == self._written:
                self._opening.succeeded(str(self._path.parent))
                return
            try:
                write_checkpoint(self._files, self._path, checkpoint)
            except OSError as problem:
                if not is_disk_full(problem):
                    raise self._failed(problem) from problem
                logger.warning("cannot write the checkpoint path=%s: %s", self._path, problem)
            else:
                self._opening.succeeded(str(self._path.parent))
                self._written = content
                self.needed_from = at.queues_offset

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let no sync run, and nothing else write the checkpoint, while the block runs.

        Raises:
            StoreUnavailableError: a sync has failed earlier.
        """
        with self._queues_lock, self._log_lock, self._checkpoint_lock:
            self._raise_failure()
            yield

    def truncate(self, offset: int) -> None:
        """Write the checkpoint of a log that ends at ``offset``, while `paused`.

        All before that offset is on the disk, with its units and keys. Other records will be stored
        behind it, so times, which may be later than theirs, count no more.

        Raises:
            OSError: the disk refused.
        """
        at = self._index_position
        if self._index is not None and at.index_offset >= offset:
            name, entries, end_log = self._index.position_before(
                offset, at.index_name, at.index_entries
            )
            at = Position(index_name=name, index_entries=entries, index_offset=end_log)
        self._index_position = at
        old = self.checkpoint
        self.checkpoint = Checkpoint(
            master_flushed=min(old.master_flushed, offset),
            confirm=min(old.confirm, offset),
            position=replace(at, log_offset=offset, queues_offset=offset, queues_end=-1),
        )
        write_checkpoint(self._files, self._path, self.checkpoint)
        self._written = self.checkpoint.encode()
        self.needed_from = offset

    def finish(self) -> None:
        """Sync everything before the store is closed.

        Raises:
            StoreUnavailableError: the disk refused, now or earlier.
        """
        self.flush(0)
        self.flush_queues(0, with_index=True)
        at = self.checkpoint.position
        if at is not None:
            end = max((queue.max_physical for queue in self._table.all()), default=-1)
            self.checkpoint.position = replace(at, queues_end=end)
        self.write_checkpoint()

    def close(self) -> None:
        """Close the file system: nothing is synced any more."""
        self._file_system = None

    def _sync(self, sync: Callable[[], int | bool | None]) -> int:
        """Run one sync; after a failure raise its reason instead."""
        try:
            return int(sync() or 0)
        except OSError as problem:
            raise self._failed(problem) from problem

    def _failed(self, problem: OSError) -> StoreUnavailableError:
        """Return the error to raise for a failed sync."""
        if not is_out_of_descriptors(problem):
            return self.fail(f"a sync has failed: {problem}")
        error = StoreUnavailableError(f"a sync could not begin: {problem}")
        self._opening.failed(str(self._path.parent), error)
        return error

    def fail(self, reason: str) -> StoreUnavailableError:
        """Refuse all further writes; return the error to raise."""
        self.failure = reason
        self._on_failure(reason)
        logger.error("store refuses messages until restart reason=%s", reason)
        return StoreUnavailableError(reason)

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise StoreUnavailableError(self.failure)


@contextmanager
def _listed_again(queues: Sequence[ConsumeQueue]) -> Iterator[None]:
    """Let the next flush sync these queues if this one cannot."""
    try:
        yield
    except StoreUnavailableError:
        for queue in queues:
            queue.mark_unsynced()
        raise
