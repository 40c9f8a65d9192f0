"""Reads and verifies a store without changing it.

Nothing is locked, written, created or deleted, so the store of a running broker can be read too; it
may then seem to end a little earlier than it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from zlib import crc32

from cometmq.model.flags import SysFlag, transaction_type
from cometmq.protocol.hashing import extend_hash, index_hash, java_hash
from cometmq.protocol.properties import index_keys_of, value_of
from cometmq.protocol.record import CRC_MASK
from cometmq.store.config import StoreSettings
from cometmq.store.index.key_index import Index, IndexFile
from cometmq.store.lifecycle import recovery
from cometmq.store.lifecycle.checkpoint import Checkpoint, read_checkpoint
from cometmq.store.lifecycle.loader import Loader
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.record_scan import RecordFacts, read_facts
from cometmq.store.log.segment_allocator import SegmentAllocator
from cometmq.store.paths import StorePaths
from cometmq.store.queues.batch_consume_queue import BatchConsumeQueue
from cometmq.store.queues.consume_queue import FILLER_SIZE, ConsumeQueue
from cometmq.store.queues.dispatch import Dispatcher, QueueTable, count_of
from cometmq.system.files import Files

_CRC_MARKER = b"\x02__CRC32#\x01"
_CRC_PROPERTY_BYTES = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One inconsistency."""

    path: Path
    """The file."""
    position: int
    """The byte in it."""
    text: str
    """The problem: what was met, and what was expected."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of the commit log."""

    path: Path
    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RecordLocation:
    """One record, with its file and its offsets."""

    path: Path
    position: int
    log_offset: int
    size_bytes: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_time_ms: int
    properties: bytes


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """One consume queue."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    files: int


class StoreReader:
    """A store that is opened for reading only.

    Args:
        settings: its directory and the sizes of its files.
        files: the file system.

    Raises:
        StoreCorruptError: a file has another size or name than expected.

    Example: ``with StoreReader(StoreSettings(root=path)) as reader: findings = reader.verify()``
    """

    def __init__(self, settings: StoreSettings, *, files: Files | None = None) -> None:
        self._files = files or Files()
        self.paths = StorePaths(settings)
        loader = Loader(settings, self.paths, self._files, lambda: 0, read_only=True)
        segments = loader.log_segments()
        self._log = CommitLog(segments, SegmentAllocator(segments, ahead=False, wait_ms=0))
        self._index: Index = loader.index()
        self._table = QueueTable(loader.queue)
        self._dispatcher = Dispatcher(None, settings.delay_levels)
        segments.load()
        loader.load_queues(self._table)
        self._index.load()
        first = segments.first()
        start = 0 if first is None else first.base_offset
        self.end = recovery.find_end(segments, start, check_crc=True)
        self._log.begin_at(self.end.offset)
        for queue in self._table.all():
            queue.correct_min(self._log.min_offset())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all files."""
        for queue in self._table.all():
            queue.close()
        self._index.close()
        self._log.segments.close()

    def was_closed(self) -> bool:
        """Return whether the store was closed in order, or is open now in another process."""
        return not self._files.exists(self.paths.abort)

    def checkpoint(self) -> Checkpoint:
        """Return the content of the checkpoint file."""
        return read_checkpoint(self._files, self.paths.checkpoint)

    def log_files(self) -> list[LogFile]:
        """Return the files of the commit log, oldest first."""
        return [
            LogFile(segment.file.path, segment.base_offset, segment.size_bytes)
            for segment in self._log.segments.items
        ]

    def index_files(self) -> list[IndexFile]:
        """Return the index files, oldest first."""
        return list(self._index.items)

    def queues(self) -> list[QueueSummary]:
        """Return the consume queues, by topic and number."""
        summaries = [
            QueueSummary(
                queue.topic,
                queue.queue_id,
                queue.min_offset,
                queue.max_offset,
                len(queue.segments.items),
            )
            for queue in self._table.all()
        ]
        return sorted(summaries, key=lambda summary: (summary.topic, summary.queue_id))

    def records(self, start: int | None = None) -> Iterator[RecordLocation]:
        """Yield the whole records in log order.

        Args:
            start: the log offset of a record to begin with; None for the first one.
        """
        least = self._log.min_offset() if start is None else start
        for segment in self._log.segments.items:
            position = max(0, least - segment.base_offset)
            while position < segment.size_bytes:
                facts = read_facts(segment, position, False)
                if facts.problem is not None or facts.total == 0:
                    break
                if facts.log_offset >= self.end.offset:
                    return
                yield _location(facts, segment.file.path, position)
                position += facts.total

    def record_bytes(self, location: RecordLocation) -> bytes:
        """Return the bytes of a record, as they are stored and as brokers send them."""
        record = self._log.record(location.log_offset, location.size_bytes)
        assert record is not None
        return bytes(record)

    def units(
        self, topic: str, queue_id: int, start: int, count: int
    ) -> list[tuple[int, int, int]]:
        """Return units of a queue: log offset, size, tags code."""
        queue = self._table.find(topic, queue_id)
        if queue is None:
            return []
        first = queue.number_of(max(start, queue.min_offset))
        units = [queue.unit(at) for at in range(first, min(first + count, queue.end_unit))]
        return [(location, size, queue.tags_code_of(code)) for location, size, code in units]

    def verify(self) -> Iterator[Finding]:
        """Yield every inconsistency; nothing if the store is whole."""
        yield from self._verify_log()
        for location in self.records():
            yield from self._verify_record(location)
        for queue in self._table.all():
            yield from self._verify_queue(queue)
        for item in self._index.items:
            yield from self._verify_entries(item)

    def _verify_log(self) -> Iterator[Finding]:
        follower = recovery.find_follower(self._log.segments, self.end)
        segment = self._log.segments.find(self.end.offset)
        if follower is not None and segment is not None:
            yield Finding(
                segment.file.path,
                self.end.offset - segment.base_offset,
                f"met {self.end.problem}, expected a record, as whole records follow from"
                f" log offset {follower.log_offset} on",
            )

    def _verify_record(self, location: RecordLocation) -> Iterator[Finding]:
        kind = transaction_type(location.sys_flag)
        if kind in (SysFlag.TRANSACTION_NONE, SysFlag.TRANSACTION_COMMIT):
            yield from self._verify_unit_of(location)
        if kind != SysFlag.TRANSACTION_ROLLBACK and self._index.items:
            yield from self._verify_keys_of(location)
        if value_of(location.properties, _CRC_MARKER) is not None:
            yield from self._verify_crc_property(location)

    def _verify_unit_of(self, location: RecordLocation) -> Iterator[Finding]:
        queue = self._table.find(location.topic, location.queue_id)
        where = f"{location.topic}-{location.queue_id}"
        if queue is None or not queue.min_offset <= location.queue_offset < queue.max_offset:
            text = f"met a record at {where} offset {location.queue_offset}, expected a unit for it"
            yield Finding(location.path, location.position, text)
            return
        number = queue.number_of(location.queue_offset)
        met = queue.unit(number)
        topic = self._table.topic(location.topic)
        code = self._dispatcher.tags_code(topic, location.store_time_ms, location.properties)
        expected = (location.log_offset, location.size_bytes, code)
        if (met[0], met[1], queue.tags_code_of(met[2])) != expected:
            yield _unit_finding(queue, number, f"met {met}, expected {expected}")
        elif isinstance(queue, BatchConsumeQueue):
            is_batch = location.sys_flag & SysFlag.INNER_BATCH
            count = count_of(location.properties) if is_batch else 1
            span = queue.span_of(number)
            if span != (location.store_time_ms, location.queue_offset, count):
                text = f"met store time, offset and messages {span}, expected"
                right = (location.store_time_ms, location.queue_offset, count)
                yield _unit_finding(queue, number, f"{text} {right}")

    def _verify_keys_of(self, location: RecordLocation) -> Iterator[Finding]:
        for key, hashed in _hashed_keys(location.topic, location.properties):
            if not any(item.has(hashed, location.log_offset) for item in self._index.items):
                text = f"met key {key!r}, expected an index entry that leads here"
                yield Finding(location.path, location.position, text)

    def _verify_crc_property(self, location: RecordLocation) -> Iterator[Finding]:
        record = self.record_bytes(location)
        digits = f"{crc32(record[:-_CRC_PROPERTY_BYTES]) & CRC_MASK:010d}"[::-1]
        if record[-_CRC_PROPERTY_BYTES:] != b"__CRC32#\x01" + digits.encode() + b"\x02":
            met = record[-_CRC_PROPERTY_BYTES:]
            text = f"met checksum property {met!r}, expected {digits!r}"
            yield Finding(location.path, location.position, text)

    def _verify_queue(self, queue: ConsumeQueue) -> Iterator[Finding]:
        for number in range(queue.first_unit, queue.end_unit):
            log_offset, size, _ = queue.unit(number)
            if size == FILLER_SIZE:
                continue
            facts = self._facts_at(log_offset)
            if facts is None or facts.total != size:
                met = f"met a unit for {size} bytes at log offset {log_offset}"
                yield _unit_finding(queue, number, f"{met}, expected a record there")
                continue
            topic = facts.topic.decode(errors="replace")
            led_to = (topic, facts.queue_id, facts.queue_offset)
            if led_to != (queue.topic, queue.queue_id, queue.offset_of(number)):
                met = f"met a unit for offset {led_to[2]} of queue {led_to[1]} of topic {topic}"
                yield _unit_finding(queue, number, f"{met}, expected its own")

    def _verify_entries(self, item: IndexFile) -> Iterator[Finding]:
        known, hashes = -1, frozenset[int]()
        for number in range(1, item.next_entry):
            hashed, log_offset = item.entry(number)
            if log_offset < self._log.min_offset():
                continue
            if log_offset != known:
                known, hashes = log_offset, self._hashes_at(log_offset)
            if hashed not in hashes:
                met = f"met an entry for the hash {hashed} and log offset {log_offset}"
                text = f"{met}, expected a record with such a key there"
                yield Finding(item.path, item.position_of(number), text)

    def _hashes_at(self, log_offset: int) -> frozenset[int]:
        """Return the hashes of the keys of the record at a log offset."""
        facts = self._facts_at(log_offset)
        if facts is None or transaction_type(facts.sys_flag) == SysFlag.TRANSACTION_ROLLBACK:
            return frozenset()
        topic = facts.topic.decode(errors="replace")
        return frozenset(hashed for _, hashed in _hashed_keys(topic, facts.properties))

    def _facts_at(self, log_offset: int) -> RecordFacts | None:
        """Return the fields of the record at a log offset, None if no whole record is there.

        The checksums of the records before the end of the log have been compared to find it.
        """
        segment = self._log.segments.find(log_offset)
        if segment is None:
            return None
        beyond = log_offset >= self.end.offset
        facts = read_facts(segment, log_offset - segment.base_offset, beyond)
        return facts if facts.problem is None and facts.total else None


def _location(facts: RecordFacts, path: Path, position: int) -> RecordLocation:
    return RecordLocation(
        path,
        position,
        facts.log_offset,
        facts.total,
        facts.topic.decode(errors="replace"),
        facts.queue_id,
        facts.queue_offset,
        facts.sys_flag,
        facts.store_ms,
        facts.properties,
    )


def _hashed_keys(topic: str, properties: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the keys of a record, each with its hash in the index."""
    seed = java_hash(topic + "#")
    for key in index_keys_of(properties):
        yield key, index_hash(extend_hash(seed, key))


def _unit_finding(queue: ConsumeQueue, number: int, text: str) -> Finding:
    at = number * queue.unit_bytes
    segment = queue.segments.find(at)
    assert segment is not None
    return Finding(segment.file.path, at - segment.base_offset, text)
