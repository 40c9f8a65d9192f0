"""Retention: deletes expired files, and refuses sends when the disk is nearly full.

    the hour of deletion, or use above disk_used_ratio_max    expired commit-log files are deleted
    use above disk_clean_forcibly_ratio                       the oldest are deleted, expired or not
    use above disk_warning_ratio                              and sends are refused

Sends are accepted again at or below disk_clean_forcibly_ratio. The newest file of a stream stays.
Source: DefaultMessageStore.CleanCommitLogService and CleanConsumeQueueService, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
import time

import msgspec

from cometmq.store.config import StoreSettings
from cometmq.store.segments import Segments
from cometmq.system.files import Files

logger = logging.getLogger(__name__)

_HOUR_MS = 3_600_000


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
        modified_ms = files.modified_ms(oldest.file.path)
        expired = modified_ms + settings.file_reserved_hours * _HOUR_MS < now_ms
        if not (expired or delete_any):
            break
        segments.drop_first()
        logger.info("commit-log file deleted name=%s expired=%s", oldest.file.path.name, expired)
        dropped += 1
    return dropped
