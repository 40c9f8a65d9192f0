"""Retention: which files have had their time, and is there room for more?

    the hour of deletion, or use above disk_used_ratio_max    expired commit-log files go
    use above disk_clean_forcibly_ratio                       the oldest go, expired or not
    use above disk_warning_ratio                              and sends are refused

Sends are taken again at or below disk_clean_forcibly_ratio. The newest file of anything stays.
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
    """What the use of the disk asks for."""

    used_ratio: float
    delete_expired: bool
    delete_any: bool
    refuse: bool
    accept: bool


def look_at_disk(files: Files, settings: StoreSettings) -> DiskState:
    """Return what the fuller of the partitions of log and queues asks for."""
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
    """Return whether the local hour is one of those in which expired files go."""
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
        files: where they are.
        segments: the commit log.
        settings: how long files are kept.
        now_ms: the wall clock.
        delete_any: delete files that have not expired as well.
        needed_from: what a start after a power cut would read stays, from this log offset on.
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
