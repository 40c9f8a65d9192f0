"""Looking at a store without changing it: what is there, and does it hang together?

Nothing is locked, written, created or deleted, so the store of a running broker can be looked at
too; it may then seem to end a little earlier than it does. Source: ours.
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
from cometmq.store import recovery
from cometmq.store.checkpoint import Checkpoint, read_checkpoint
from cometmq.store.commit_log import CommitLog
from cometmq.store.config import StoreSettings
from cometmq.store.consume_queue import FILLER_SIZE, ConsumeQueue
from cometmq.store.dispatch import Dispatcher, QueueTable
from cometmq.store.index import Index, IndexFile
from cometmq.store.loading import Loader
from cometmq.store.paths import StorePaths
from cometmq.store.record_scan import RecordFacts, read_facts
from cometmq.store.segment_allocator import SegmentAllocator
from cometmq.system.files import Files, SystemFiles

_CRC_MARKER = b"\x02__CRC32#\x01"
_CRC_PROPERTY_BYTES = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    path: Path
    """The file."""
    position: int
    """The byte in it."""
    text: str
    """What was met and what was expected."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of the commit log."""

    path: Path
    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """One record and where it is."""

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
    """A store that is only looked at.

    Args:
        settings: where it is and how large its files are.
        files: the way to the disk.

    Raises:
        StoreCorruptError: a file has another size or name than its place asks for.

    Example: ``with StoreReader(StoreSettings(root=path)) as reader: findings = reader.verify()``
    """

    def __init__(self, settings: StoreSettings, *, files: Files | None = None) -> None:
        self._files = files or SystemFiles()
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
        """Let go of all files."""
        for queue in self._table.all():
            queue.close()
        self._index.close()
        self._log.segments.close()

    def was_closed(self) -> bool:
        """Return whether the store was closed in order, or is open now in another process."""
        return not self._files.exists(self.paths.abort)

    def checkpoint(self) -> Checkpoint:
        """Return what the checkpoint file says."""
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

    def records(self, start: int | None = None) -> Iterator[RecordPlace]:
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
                yield _place(facts, segment.file.path, position)
                position += facts.total

    def record_bytes(self, place: RecordPlace) -> bytes:
        """Return the record at a place, as it is stored and as it travels."""
        record = self._log.record(place.log_offset, place.size_bytes)
        assert record is not None
        return bytes(record)

    def units(
        self, topic: str, queue_id: int, start: int, count: int
    ) -> list[tuple[int, int, int]]:
        """Return units of a queue: log offset, size, tags code."""
        queue = self._table.find(topic, queue_id)
        if queue is None:
            return []
        first = max(start, queue.min_offset)
        units = [queue.unit(at) for at in range(first, min(first + count, queue.max_offset))]
        return [(place, size, queue.tags_code_of(code)) for place, size, code in units]

    def verify(self) -> Iterator[Finding]:
        """Yield everything that does not hang together; nothing if the store is whole."""
        yield from self._verify_log()
        for place in self.records():
            yield from self._verify_record(place)
        for queue in self._table.all():
            yield from self._verify_queue(queue)

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

    def _verify_record(self, place: RecordPlace) -> Iterator[Finding]:
        kind = transaction_type(place.sys_flag)
        if kind in (SysFlag.TRANSACTION_NONE, SysFlag.TRANSACTION_COMMIT):
            yield from self._verify_unit_of(place)
        if kind != SysFlag.TRANSACTION_ROLLBACK and self._index.items:
            yield from self._verify_keys_of(place)
        if value_of(place.properties, _CRC_MARKER) is not None:
            yield from self._verify_crc_property(place)

    def _verify_unit_of(self, place: RecordPlace) -> Iterator[Finding]:
        queue = self._table.find(place.topic, place.queue_id)
        where = f"{place.topic}-{place.queue_id}"
        if queue is None or not queue.min_offset <= place.queue_offset < queue.max_offset:
            text = f"met a record at {where} offset {place.queue_offset}, expected a unit for it"
            yield Finding(place.path, place.position, text)
            return
        met = queue.unit(place.queue_offset)
        topic = self._table.topic(place.topic)
        code = self._dispatcher.tags_code(topic, place.store_time_ms, place.properties)
        expected = (place.log_offset, place.size_bytes, code)
        if (met[0], met[1], queue.tags_code_of(met[2])) != expected:
            yield _unit_finding(queue, place.queue_offset, f"met {met}, expected {expected}")

    def _verify_keys_of(self, place: RecordPlace) -> Iterator[Finding]:
        seed = java_hash(place.topic + "#")
        for key in index_keys_of(place.properties):
            hashed = index_hash(extend_hash(seed, key))
            if not any(item.has(hashed, place.log_offset) for item in self._index.items):
                text = f"met key {key!r}, expected an index entry that leads here"
                yield Finding(place.path, place.position, text)

    def _verify_crc_property(self, place: RecordPlace) -> Iterator[Finding]:
        record = self.record_bytes(place)
        digits = f"{crc32(record[:-_CRC_PROPERTY_BYTES]) & CRC_MASK:010d}"[::-1]
        if record[-_CRC_PROPERTY_BYTES:] != b"__CRC32#\x01" + digits.encode() + b"\x02":
            met = record[-_CRC_PROPERTY_BYTES:]
            text = f"met checksum property {met!r}, expected {digits!r}"
            yield Finding(place.path, place.position, text)

    def _verify_queue(self, queue: ConsumeQueue) -> Iterator[Finding]:
        for offset in range(queue.min_offset, queue.max_offset):
            log_offset, size, _ = queue.unit(offset)
            if size == FILLER_SIZE:
                continue
            segment = self._log.segments.find(log_offset)
            facts = segment and read_facts(segment, log_offset - segment.base_offset, False)
            if not facts or facts.problem is not None or facts.total != size:
                met = f"met a unit for {size} bytes at log offset {log_offset}"
                yield _unit_finding(queue, offset, f"{met}, expected a record there")
            elif (facts.queue_id, facts.queue_offset) != (queue.queue_id, offset):
                met = f"met a unit for offset {facts.queue_offset} of queue {facts.queue_id}"
                yield _unit_finding(queue, offset, f"{met}, expected its own")


def _place(facts: RecordFacts, path: Path, position: int) -> RecordPlace:
    return RecordPlace(
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


def _unit_finding(queue: ConsumeQueue, offset: int, text: str) -> Finding:
    segment = queue.segments.find(offset * 20)
    assert segment is not None
    return Finding(segment.file.path, offset * 20 - segment.base_offset, text)
