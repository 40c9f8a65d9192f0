"""Cleans the store: deletes expired files, and refuses sends when the disk is nearly full.

    the hour of deletion, or use above disk_used_ratio_max    expired commit-log files are deleted
    use above disk_clean_forcibly_ratio                       the oldest are deleted, expired or not
    use above disk_warning_ratio                              and sends are refused

Sends are accepted again at or below disk_clean_forcibly_ratio. The newest file of a stream stays.
Source: DefaultMessageStore.CleanCommitLogService and CleanConsumeQueueService, RocketMQ 5.3.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from cometmq.store.appender import Appender
from cometmq.store.config import StoreSettings
from cometmq.store.errors import StoreUnavailableError
from cometmq.store.index.key_index import Index
from cometmq.store.lifecycle.durability import Durability
from cometmq.store.lifecycle.remover import Remover
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.segments import Segments
from cometmq.store.queues.dispatch import QueueTable
from cometmq.system.files import Files

logger = logging.getLogger(__name__)

_HOUR_MS = 3_600_000
DISK_FULL = "the disk is full"
_QUEUES_PER_STEP = 50


class Cleaner:
    """Deletes what has expired, and refuses or accepts messages by the space on the disk.

    Args:
        settings: returns the retention.
        files: the file system.
        log, table, index: what is cleaned; the index is None if there is none.
        appender: refuses messages, and catches up after a full disk.
        durability: knows which log files a start needs.
        remover: deletes the files.
    """

    def __init__(
        self,
        settings: Callable[[], StoreSettings],
        files: Files,
        log: CommitLog,
        table: QueueTable,
        index: Index | None,
        appender: Appender,
        durability: Durability,
        remover: Remover,
    ) -> None:
        self._settings = settings
        self._files = files
        self._log = log
        self._table = table
        self._index = index
        self._appender = appender
        self._durability = durability
        self._remover = remover
        self.disk_full = False
        self.cleaned_before = 0
        """The log offset before which queues and index have no entries any more."""

    def steps(self, now_ms: int, *, expired_at_any_hour: bool) -> Iterator[int]:
        """Clean in short steps; yield how many commit-log files each has deleted."""
        self._remover.retry()
        for _ in self._catch_up():
            yield 0
        settings = self._settings()
        disk = disk_state(self._files, settings)
        self._apply_disk_state(disk)
        due = expired_at_any_hour or is_hour_of_deletion(settings, now_ms)
        if due or disk.delete_expired or disk.delete_any:
            yield drop_log_files(
                self._files,
                self._log.segments,
                settings,
                now_ms,
                delete_any=disk.delete_any,
                needed_from=self._durability.needed_from,
            )
        if self.cleaned_before != self._log.min_offset():
            for _ in self._delete_before_log_min():
                yield 0

    def _catch_up(self) -> Iterator[None]:
        """Dispatch records that a full disk has kept out of queues and index, some at a time."""
        appender = self._appender
        left = appender.backlog_bytes(), appender.unreadable_bytes()
        while left[0] > 0:
            with contextlib.suppress(StoreUnavailableError):
                appender.catch_up()
            left, before = (appender.backlog_bytes(), appender.unreadable_bytes()), left
            if left >= before:  # the disk is still full
                return
            yield

    def _apply_disk_state(self, disk: DiskState) -> None:
        if disk.refuse and not self.disk_full:
            logger.error("disk full, messages refused used=%.2f", disk.used_ratio)
            self.disk_full = True
            self._appender.refusal = self._appender.refusal or DISK_FULL
        elif disk.accept and self.disk_full:
            logger.info("disk has free space again, messages accepted used=%.2f", disk.used_ratio)
            self.disk_full = False
            if self._appender.refusal == DISK_FULL:
                self._appender.refusal = None

    def _delete_before_log_min(self) -> Iterator[None]:
        """Delete units and index files of deleted records, some queues at a time."""
        log_min = self._log.min_offset()
        # A power cut must not bring records back whose units and keys are gone.
        self._remover.run(partial(self._files.sync_dir, self._settings().commit_log))
        for number, queue in enumerate(self._table.all(), 1):
            queue.drop_before(log_min)
            queue.correct_min(log_min)
            if number % _QUEUES_PER_STEP == 0:
                yield
        if self._index is not None:
            self._index.drop_before(log_min)
        self.cleaned_before = log_min


class DiskState(msgspec.Struct, frozen=True):
    """The actions that the use of the disk requires."""

    used_ratio: float
    delete_expired: bool
    delete_any: bool
    refuse: bool
    accept: bool


def disk_state(files: Files, settings: StoreSettings) -> DiskState:
    """Return the actions for the fuller of the partitions of log and queues."""
    ratio = max(
        files.usage(settings.commit_log).ratio,
        files.usage(settings.root).ratio,
    )
    percent = ratio * 100
    return DiskState(
        used_ratio=ratio,
        delete_expired=percent > settings.disk_used_ratio_max,
        delete_any=settings.clean_forcibly_enabled and percent > settings.disk_clean_forcibly_ratio,
        refuse=percent > settings.disk_warning_ratio,
        accept=percent <= settings.disk_clean_forcibly_ratio,
    )


def is_hour_of_deletion(settings: StoreSettings, now_ms: int) -> bool:
    """Return whether the local hour is one of those at which expired files are deleted."""
    hour = time.localtime(now_ms / 1000).tm_hour
    return any(int(text) == hour for text in settings.delete_when)


def drop_log_files(
    files: Files,
    segments: Segments,
    settings: StoreSettings,
    now_ms: int,
    *,
    delete_any: bool,
    needed_from: int,
) -> int:
    """Delete old commit-log files, the oldest first; return how many.

    Args:
        files: the file system.
        segments: the commit log.
        settings: the retention.
        now_ms: the wall clock.
        delete_any: delete files that have not expired as well.
        needed_from: files beyond this log offset stay: a start after a power cut reads them.
    """
    dropped = 0
    while len(segments.items) > 1 and dropped < settings.delete_files_batch_max:
        oldest = segments.items[0]
        if oldest.end_offset > needed_from:
            break
        name = oldest.file.path.name
        try:
            modified_ms = files.modified_ms(oldest.file.path)
        except FileNotFoundError:  # its space is free only when it is out of use
            logger.warning("commit-log file was deleted by another program name=%s", name)
            segments.drop_first()
            dropped += 1
            continue
        expired = modified_ms + settings.file_reserved_hours * _HOUR_MS < now_ms
        if not (expired or delete_any):
            break
        segments.drop_first()
        level = logging.INFO if expired else logging.WARNING
        logger.log(level, "commit-log file deleted name=%s expired=%s", name, expired)
        dropped += 1
    return dropped
