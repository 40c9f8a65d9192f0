"""Finds messages by key.

Source: IndexFile.selectPhyOffset and QueryMessageProcessor, RocketMQ 5.3. Unlike there, a query has
exact times and each message once.
"""

from __future__ import annotations

import msgspec

from cometmq.protocol.hashing import extend_hash, index_hash, java_hash
from cometmq.protocol.properties import index_keys_of
from cometmq.store.index.key_index import Index, IndexFile
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.record_lookup import bring_in, bring_in_facts
from cometmq.store.log.record_scan import read_facts

_INDEX_STEP_MS = 1000
_STEP_ENTRIES = 100
_ENTRIES_PER_RECORD = 20
"""The cost of reading one record, in index entries."""
_FILES_AT_ONCE = 64
ENTRIES_MAX = 2_000_000
"""The limit of index entries that one search reads, the newest first."""


class QueryResult(msgspec.Struct):
    """The messages with a key."""

    records: list[memoryview] = msgspec.field(default_factory=list)
    """In the order of the log."""
    index_last_update_timestamp: int = 0
    """The store time of the newest message in the index."""
    index_last_update_phyoffset: int = 0
    """The log offset of the newest message in the index."""


class KeySearch:
    """Finds the newest messages with a key, some index entries at a time.

    Args:
        log, index: the log and the index of the store.
        topic, key: the topic and the key of the messages.
        max_num: the limit of messages.
        begin_ms, end_ms: the span of store times, ends included.
    """

    def __init__(
        self,
        log: CommitLog,
        index: Index | None,
        topic: str,
        key: str,
        max_num: int,
        begin_ms: int,
        end_ms: int,
    ) -> None:
        self._log = log
        self._topic, self._key = topic.encode(), key.encode()
        self._hashed = index_hash(extend_hash(java_hash(topic + "#"), self._key))
        self._max_num = max_num
        self._begin_ms, self._end_ms = begin_ms, end_ms
        self._found: dict[int, memoryview] = {}
        self._left = ENTRIES_MAX
        self._result = QueryResult()
        self._files: list[IndexFile] = []
        """The files still to be searched, the newest last."""
        self._number = 0
        """The number of the next entry to read in the last of them."""
        if index is None:
            return
        if index.newest is not None:
            self._result.index_last_update_timestamp = index.newest.end_ms
            self._result.index_last_update_phyoffset = index.newest.end_log
        self._files = [
            item
            for item in index.items
            if item.begin_ms <= end_ms and item.end_ms >= begin_ms - _INDEX_STEP_MS
        ]

    def advance(self, entries_max: int) -> bool:
        """Read up to ``entries_max`` index entries; return whether the search is complete."""
        while self._files and self._left > 0 and len(self._found) < self._max_num:
            if entries_max <= 0:
                return False
            item = self._files[-1]
            step = min(entries_max, self._left, _STEP_ENTRIES)
            number = self._number or item.newest_of(self._hashed)
            matches, self._number = item.follow(self._hashed, number, step)
            entries_max -= step + _ENTRIES_PER_RECORD * len(matches)
            self._left -= step
            for log_offset, nearly_ms in matches:
                self._check(log_offset, nearly_ms)
            if self._number == 0:
                self._files.pop()
        return True

    def bring_in(self, entries_max: int) -> None:
        """Read the pages that the next `advance` needs into memory; from any thread.

        Raises:
            OSError: the disk is broken.
        """
        number = self._number
        for item in reversed(self._files[-_FILES_AT_ONCE:]):
            number = number or item.bring_in_newest(self._hashed)
            while number and entries_max > 0:
                item.bring_in_entry(number)
                matches, number = item.follow(self._hashed, number, 1)
                entries_max -= 1 + _ENTRIES_PER_RECORD * len(matches)
                for log_offset, _ in matches:
                    bring_in_facts(self._log.segments.find(log_offset), log_offset)
            if entries_max <= 0:
                return

    def bring_in_found(self, bytes_max: int) -> None:
        """Read the messages found so far into memory, up to ``bytes_max``; from any thread.

        Raises:
            OSError: the disk is broken.
        """
        for log_offset in sorted(self._found):
            size_bytes = len(self._found[log_offset])
            bytes_max -= size_bytes
            if bytes_max < 0:
                return
            bring_in(self._log.segments.find(log_offset), log_offset, size_bytes)

    def _check(self, log_offset: int, nearly_ms: int) -> None:
        if len(self._found) >= self._max_num or log_offset in self._found:
            return
        if not self._begin_ms - _INDEX_STEP_MS <= nearly_ms <= self._end_ms:
            return
        record = _record_with_key(
            self._log, log_offset, self._topic, self._key, self._begin_ms, self._end_ms
        )
        if record is not None:
            self._found[log_offset] = record

    def result(self) -> QueryResult:
        """Return what was found so far, without messages whose bodies are damaged."""
        self._result.records = [
            self._found[log_offset]
            for log_offset in sorted(self._found)
            if self._has_whole_body(log_offset)
        ]
        return self._result

    def _has_whole_body(self, log_offset: int) -> bool:
        segment = self._log.segments.find(log_offset)
        if segment is None:  # deleted meanwhile
            return True
        return read_facts(segment, log_offset - segment.base_offset, True).problem is None


def _record_with_key(
    log: CommitLog, log_offset: int, topic: bytes, key: bytes, begin_ms: int, end_ms: int
) -> memoryview | None:
    """Return the record at an offset if it has the topic, the key and a time in the span."""
    segment = log.segments.find(log_offset)
    if segment is None:
        return None
    facts = read_facts(segment, log_offset - segment.base_offset, False)
    if facts.problem is not None or not begin_ms <= facts.store_ms <= end_ms:
        return None
    if facts.topic != topic or key not in index_keys_of(facts.properties):
        return None
    return log.record(log_offset, facts.total)
