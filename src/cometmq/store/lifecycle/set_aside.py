"""Keeps the end of a log that is about to be truncated, though its messages were confirmed.

    aside/<time>-<from>-<to>/commitlog/<20 digits>

The log of a slave is truncated where its elected master has other records. Below the confirm offset
that is a loss: the records may be nowhere else. So their files are kept in a folder of the store
that is a store by itself: every tool reads it, and a broker that is started on it alone serves its
messages. The file in which the log is truncated is copied from its first record on, because readers
begin there; `from` in the name says which offset is the first one that the master lacks. Files
behind it get a second name.

All of it is on the disk before the log is truncated. A crash before that leaves the log, and maybe
a folder `aside/unfinished`, which the next call removes.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final

from cometmq.store.errors import StoreUnavailableError
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.segments import Segment
from cometmq.store.paths import StorePaths
from cometmq.system.files import Files

logger = logging.getLogger(__name__)

UNFINISHED: Final = "unfinished"
SET_ASIDE: Final = "confirmedMessagesSetAside"
"""The figure of the runtime information with the names of the folders; not RocketMQ's."""
_PART_BYTES: Final = 1024 * 1024


class SetAsideError(StoreUnavailableError):
    """Confirmed records cannot be kept, so the log is not truncated."""


def set_aside(
    files: Files, paths: StorePaths, log: CommitLog, offset: int, *, confirmed_to: int, now_ms: int
) -> Path:
    """Keep the records from a log offset on; return their folder.

    Args:
        files: the file system.
        paths: the paths of the store.
        log: the commit log, which is synced.
        offset: where the log is about to be truncated.
        confirmed_to: the confirm offset, for messages.
        now_ms: the time for the name of the folder.

    Raises:
        SetAsideError: the disk refused, for instance because it is full.
    """
    end = log.written_to
    moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now_ms / 1000))
    folder = paths.aside / f"{moment}{now_ms % 1000:03d}-{offset}-{end}"
    unfinished = paths.aside / UNFINISHED
    try:
        files.remove_tree(unfinished)
        target = unfinished / "commitlog"
        files.make_dirs(target)
        for segment in log.segments.items:
            if segment.base_offset <= offset < segment.end_offset:
                _copy(files, segment, target, min(end, segment.end_offset) - segment.base_offset)
            elif offset < segment.base_offset < end:
                _link(files, segment, target)
        files.sync_dir(target)
        files.sync_dir(unfinished)
        files.rename(unfinished, folder)
        files.sync_dir(paths.aside)
        files.sync_dir(paths.root)
    except OSError as problem:
        try:
            files.remove_tree(unfinished)
        except OSError as other:
            logger.warning("cannot remove path=%s: %s", unfinished, other)
        raise SetAsideError(
            f"the master lacks the records from {offset} on, of which those up to {confirmed_to}"
            f" were confirmed, and they cannot be copied to {paths.aside}: {problem}; the log is"
            " not truncated, and the master not followed; make room on the disk"
        ) from problem
    logger.error(
        "the master lacks confirmed records, they are set aside path=%s physical_offset=%d"
        " confirmed=%d; see the how-to page about failover",
        *(folder, offset, confirmed_to),
    )
    return folder


def folders_aside(files: Files, paths: StorePaths) -> list[str]:
    """Return the names of the folders that are kept, the oldest first."""
    return [one.name for one in files.entries(paths.aside) if one.name != UNFINISHED]


def _copy(files: Files, segment: Segment, target: Path, size_bytes: int) -> None:
    """Copy the first bytes of a file into a new one of its size."""
    path = target / segment.file.path.name
    copy = files.open_mapped(path, segment.size_bytes, create=True)
    try:
        copy.reserve(0, size_bytes)
        for start in range(0, size_bytes, _PART_BYTES):
            copy.write(start, segment.view[start : min(start + _PART_BYTES, size_bytes)])
        copy.sync()
    finally:
        copy.close()


def _link(files: Files, segment: Segment, target: Path) -> None:
    """Give a file a second name, or copy it where the file system has no such names."""
    try:
        files.link(segment.file.path, target / segment.file.path.name)
    except OSError:
        _copy(files, segment, target, segment.size_bytes)
