# cython: annotation_typing=False, cdivision=True
"""Copies the log of a master: appends its bytes, and dispatches their records.

The bytes come in pieces of any size. All of them are written to the log at once, at the offsets
that they have in the log of the master. Readers, queues, index and syncs count whole records only:
the log ends behind the last one. The bytes behind it are received again after a start.

Whatever a master sends, only well-formed records at the right offset become part of the log.

Source: DefaultMessageStore.appendToCommitLog and ReputMessageService, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from typing import Any

from cometmq.model.errors import CometError, StoreError
from cometmq.model.flags import SysFlag
from cometmq.protocol.record import MAGIC_AT, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from cometmq.store.appender import Appender
from cometmq.store.errors import StoreUnavailableError
from cometmq.store.index.key_index import Index
from cometmq.store.log import record_layout
from cometmq.store.log.commit_log import CommitLog, room_failure
from cometmq.store.log.record_scan import read_facts
from cometmq.store.log.segments import Segment
from cometmq.store.queues.dispatch import QueueTable, TopicQueues
from cometmq.system.files import is_disk_full

logger = logging.getLogger(__name__)

_KEYS_EXPECTED = 64
_TOPICS_MAX = 20_000
_PREFIX_BYTES = 8
# C numbers once compiled.
_V1, _V2, _BLANK, _BYTES_MIN = MAGIC_V1, MAGIC_V2, MAGIC_BLANK, RECORD_BYTES_MIN
_MAGIC_AT = MAGIC_AT
_INNER_BATCH = int(SysFlag.INNER_BATCH)


class ReplicaError(StoreError):
    """Bytes from a master do not continue the log of this slave; none of them was kept."""


class Replica:
    """Appends what a master sends to the log of an open store.

    Args:
        log: the commit log.
        table: the queues.
        index: the index; None if there is none.
        appender: dispatches to queues and index, and notifies of arrivals.
    """

    def __init__(
        self,
        log: CommitLog,
        table: QueueTable,
        index: Index | None,
        appender: Appender,
    ) -> None:
        self._log = log
        self._table = table
        self._index: Any = index
        self._appender = appender
        self._topics: dict[bytes, TopicQueues] = {}
        self.received_to = 0
        """The log offset behind the last byte received, which may be inside a record."""

    def begin(self) -> int:
        """Begin to receive behind the last whole record; return its end.

        Raises:
            StoreUnavailableError: records wait for space on the disk; call it again.
        """
        appender = self._appender
        if appender.refusal is not None:
            raise StoreUnavailableError(appender.refusal)
        appender.catch_up()
        self.discard_partial()
        return self.received_to

    def discard_partial(self) -> None:
        """Discard the bytes received behind the last whole record."""
        self.received_to = self._log.written_to

    def expect(self, offset: int) -> None:
        """Check where the next bytes begin; an empty log begins there.

        Raises:
            ReplicaError: not where this log ends.
        """
        if offset == self.received_to:
            return
        size_bytes = self._log.segments.size_bytes
        if self.received_to != 0:
            raise ReplicaError(
                f"the master sends from log offset {offset} on, expected {self.received_to},"
                " the end of the log here"
            )
        if offset < 0 or offset % size_bytes:
            raise ReplicaError(
                f"the master sends an empty slave the log from offset {offset} on, expected the"
                f" start of a file of {size_bytes} bytes (mappedFileSizeCommitLog)"
            )
        self._log.segments.drop_from(0)
        self._log.begin_at(offset)
        self.received_to = offset

    def append(self, data: bytes | memoryview) -> None:
        """Write bytes behind those received before, and dispatch the records that are whole now.

        Raises:
            ReplicaError: they are no records, or do not belong here.
            SegmentNotReadyError: the next file is being allocated; nothing of them was written.
            StoreUnavailableError: the disk refused.
        """
        if self._appender.refusal is not None:
            raise StoreUnavailableError(self._appender.refusal)
        if self._appender.backlog_bytes():
            raise StoreUnavailableError("disk full: queues and index lack records of the log")
        size_bytes = self._log.segments.size_bytes
        if self.received_to % size_bytes + len(data) > size_bytes:
            raise ReplicaError(
                f"{len(data)} bytes for log offset {self.received_to} reach beyond the end of a"
                f" file of {size_bytes} bytes, expected the mappedFileSizeCommitLog of the master"
            )
        try:
            self._log.receive(self.received_to, data)
        except OSError as problem:
            if is_disk_full(problem):
                raise StoreUnavailableError(f"disk full: {problem}") from problem
            raise self._appender.on_failure(f"the log cannot be written: {problem}") from problem
        self.received_to += len(data)
        self._dispatch_whole()

    def _dispatch_whole(self) -> None:
        """Dispatch the records that are whole, and move the end of the log behind them."""
        start = at = self._log.written_to
        end = self.received_to
        store_ms = 0
        try:
            while at + _PREFIX_BYTES <= end:
                segment = self._log.segments.find(at)
                assert segment is not None
                position = at - segment.base_offset
                total = self._size_at(segment, position)
                if at + total > end:
                    break
                if record_layout.get_i32(segment.memory, position + _MAGIC_AT) != _BLANK:
                    store_ms = self._dispatch(segment, position)
                at += total
        finally:
            if at > start:
                self._log.advance(at, store_ms)
                self._appender.finish_copied()

    def _size_at(self, segment: Segment, position: int) -> int:
        """Return the size of the record or blank at ``position``, of which 8 bytes are there."""
        total = record_layout.get_i32(segment.memory, position)
        magic = record_layout.get_i32(segment.memory, position + _MAGIC_AT)
        left = segment.size_bytes - position
        if magic == _BLANK and total == left:
            return total
        if magic in (_V1, _V2) and _BYTES_MIN <= total <= left:
            return total
        raise ReplicaError(
            f"the master sent no record for log offset {segment.base_offset + position}: size"
            f" {total}, magic number {magic & 0xFFFFFFFF:#010x}, {left} bytes to the end of the"
            " file; its log differs from the one here before that offset, or its"
            " mappedFileSizeCommitLog does"
        )

    def _dispatch(self, segment: Segment, position: int) -> int:
        """Dispatch the whole record at ``position``; return when it was stored."""
        facts = read_facts(segment, position, False)
        if facts.problem is not None:
            raise ReplicaError(
                f"the master sent a damaged record for log offset {segment.base_offset + position}:"
                f" {facts.problem}"
            )
        store_ms = facts.store_ms
        topic = self._topics.get(facts.topic)
        try:
            if topic is None or topic.name not in self._table.topics:
                topic = self._topic(facts.topic)
            queue = topic.queues.get(facts.queue_id)
            if queue is None or (facts.sys_flag & _INNER_BATCH and not queue.holds_batches):
                if facts.queue_id < 0:
                    raise ReplicaError(f"queue {facts.queue_id}, expected 0 or more")
                queue = self._table.queue_for(topic, facts.queue_id, facts.sys_flag)
        except OSError as problem:
            raise room_failure(problem) from problem
        except (CometError, UnicodeDecodeError) as problem:  # as after a start
            logger.error(
                "record not dispatched physical_offset=%d error=%s", facts.log_offset, problem
            )
            return store_ms
        if self._index is not None:
            try:
                self._index.make_room(_KEYS_EXPECTED)
            except OSError as problem:
                raise room_failure(problem) from problem
        self._appender.dispatch_copied(topic, queue, facts, segment)
        return store_ms

    def _topic(self, name: bytes) -> TopicQueues:
        topic = self._table.topic(name.decode())
        if len(self._topics) >= _TOPICS_MAX:
            self._topics.clear()
        self._topics[name] = topic
        return topic
