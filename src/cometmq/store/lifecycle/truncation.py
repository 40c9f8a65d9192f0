"""Truncates the log of an open store, and all that was made from its end.

A slave does that when its master has other records behind their common point. All is synced first,
so no flush waits for what is truncated. Then, in this order:

    abort         says that files may not be whole: a kill in between is recovered like a power cut
    checkpoint    ends at the offset, which is true before and after it
    index, queues, log
    abort         says that all files are whole again

So whatever happens in between, the next start finds the records before the offset with their units
and keys, and of those behind it the first few or none.

Source: DefaultMessageStore.truncateFiles, RocketMQ 5.3, which leaves the truncated bytes.
"""

from __future__ import annotations

import logging

from cometmq.store.errors import NoRecordBeginsError
from cometmq.store.index.key_index import Index
from cometmq.store.lifecycle.abort_file import AbortFile, Ending
from cometmq.store.lifecycle.durability import Durability
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.record_scan import read_facts
from cometmq.store.queues.dispatch import QueueTable

logger = logging.getLogger(__name__)


def check_border(log: CommitLog, offset: int) -> None:
    """Refuse to truncate the log where no record begins.

    Raises:
        NoRecordBeginsError: with what is there.
    """
    first, end = log.min_offset(), log.written_to
    problem = None
    if not first <= offset <= end:
        problem = f"a log from {first} to {end}"
    elif offset < end:
        segment = log.segments.find(offset)
        assert segment is not None
        problem = read_facts(segment, offset - segment.base_offset, True).problem
    if problem is not None:
        raise NoRecordBeginsError(
            f"cannot truncate the log at offset {offset}: met {problem}, expected the beginning of"
            " a whole record; empty the store, so that it is copied from the master again"
        )


def truncate(
    offset: int,
    log: CommitLog,
    table: QueueTable,
    index: Index | None,
    durability: Durability,
    abort: AbortFile,
) -> None:
    """Truncate a store whose parts are all synced, from its thread.

    Args:
        offset: where the log ends then; a record begins there.
        log, table, index, durability, abort: the parts of the store.

    Raises:
        StoreUnavailableError: the disk refused; the store must be opened again.
    """
    was, queues = log.written_to, 0
    with durability.paused():
        try:
            is_whole = abort.read() is Ending.KILLED  # which says so of the process that runs
            abort.close()
            abort.mark_open(is_whole=False)
            durability.truncate(offset)
            if index is not None:
                index.drop_unlogged(offset)
            for queue in table.all():
                if queue.max_physical > offset:
                    queue.truncate(offset)
                    queue.correct_min(log.min_offset())
                    queues += 1
            log.segments.truncate(offset)
            log.begin_at(offset)
            log.last_store_ms = 0  # of the last record that is left: not worth a walk
            if is_whole:
                abort.mark_open(is_whole=True)
                abort.map()
        except OSError as problem:
            raise durability.fail(f"the log cannot be truncated: {problem}") from problem
    logger.warning(
        "log truncated physical_offset=%d from=%d queues=%d, the master has other records there",
        *(offset, was, queues),
    )
