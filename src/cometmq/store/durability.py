"""Durability: what is on the disk, and the end of everything once a sync has failed.

    a sync of            vouches in the checkpoint for
    the commit log       records, up to the store time of the newest one before it began
    all queues           units, likewise
    a full index file    entries, up to its last one

A failed sync may have dropped what it was for, and the next one would not say so. So it is never
tried again: whoever asks from then on gets the reason of the first failure.
Any thread may sync, one at a time. Source: FlushRealTimeService, FlushConsumeQueueService and
StoreCheckpoint, RocketMQ 5.3; giving up after a failure is ours.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cometmq.store.checkpoint import Checkpoint, write_checkpoint
from cometmq.store.commit_log import CommitLog
from cometmq.store.dispatch import QueueTable
from cometmq.store.errors import StoreUnavailableError
from cometmq.store.index import Index
from cometmq.system.files import Files

logger = logging.getLogger(__name__)


class Durability:
    """Syncs the parts of one store.

    Args:
        files: the way to the disk.
        path: of the checkpoint.
        log: the records.
        table: the queues.
        index: the keys; None where there is no index.
        on_failure: told the reason when a sync fails, once.
    """

    def __init__(
        self,
        files: Files,
        path: Path,
        log: CommitLog,
        table: QueueTable,
        index: Index | None,
        on_failure: Callable[[str], None],
    ) -> None:
        self.checkpoint = Checkpoint()
        self.failure: str | None = None
        self._files = files
        self._path = path
        self._log = log
        self._table = table
        self._index = index
        self._on_failure = on_failure
        self._one_at_a_time = threading.Lock()

    def flush(self, least_pages: int) -> int:
        """Sync the log; see `MessageStore.flush`."""
        with self._one_at_a_time:
            self._raise_failure()
            if least_pages and self._log.due_pages() < least_pages:
                return self._log.flushed_to
            store_ms = self._log.last_store_ms
            self._sync(self._log.flush)
            self.checkpoint.physic_ms = max(self.checkpoint.physic_ms, store_ms)
            return self._log.flushed_to

    def flush_queues(self, least_pages: int) -> None:
        """Sync queues and full index files; see `MessageStore.flush_queues`."""
        with self._one_at_a_time:
            self._raise_failure()
            store_ms = self._log.last_store_ms
            for queue in self._table.all():
                self._sync(partial(queue.flush, least_pages))
            if least_pages == 0:
                self.checkpoint.logics_ms = max(self.checkpoint.logics_ms, store_ms)
            if self._index is not None:
                synced_ms = self._sync(self._index.flush)
                self.checkpoint.index_ms = max(self.checkpoint.index_ms, synced_ms)

    def write_checkpoint(self) -> None:
        """Write the checkpoint; see `MessageStore.write_checkpoint`."""
        with self._one_at_a_time:
            self._raise_failure()
            self._sync(lambda: write_checkpoint(self._files, self._path, self.checkpoint))

    def finish(self) -> None:
        """Sync everything, as when the store is closed.

        Raises:
            StoreUnavailableError: the disk refused, now or earlier.
        """
        self.flush(0)
        self.flush_queues(0)
        if self._index is not None:
            with self._one_at_a_time:
                self._sync(self._index.sync_newest)
        self.write_checkpoint()

    def _sync(self, sync: Callable[[], int | bool | None]) -> int:
        """Run one sync; if it fails, let it be the last."""
        try:
            return int(sync() or 0)
        except OSError as problem:
            raise self.fail(f"a sync has failed: {problem}") from problem

    def fail(self, reason: str) -> StoreUnavailableError:
        """Let nothing more be stored; returns the error to raise."""
        self.failure = reason
        logger.error("store refuses messages until restart reason=%s", reason)
        self._on_failure(reason)
        return StoreUnavailableError(reason)

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise StoreUnavailableError(self.failure)
