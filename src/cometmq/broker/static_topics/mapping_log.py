"""The changes of mappings in the log, so that every copy of the log has the static topics.

    record := zlib(settings of the topic, with its mapping on this broker), as GET_TOPIC_CONFIG
              (351) shows them; a mapping without queues says that the topic was deleted

A slave copies the tables of its master every ten seconds, and the log at once. A master that lacked
the newest mapping would take the topic for an ordinary one, or lead queues that have moved. So the
broker stores each change in a system topic before it changes its table, and responds when the
change is as durable as a message. All messages that are stored under the mapping follow it. A slave
makes the changes within a second; a start and a new master do so before they accept messages.

Not in the log is what a new master would find again: the newer mappings of other brokers, and the
items that have expired.

RocketMQ has nothing like it.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.broker.core import Core
from cometmq.broker.prerequisites import PrerequisiteError, after_prerequisites
from cometmq.broker.static_topics.table import with_queues
from cometmq.broker.thread_calls import SharedCall
from cometmq.model.errors import ProtocolError, StoreError
from cometmq.model.topic import MAPPING_QUEUE as QUEUE
from cometmq.model.topic import MAPPING_TOPIC, TopicConfig
from cometmq.protocol.bodies.route import TopicQueueMappingDetail
from cometmq.protocol.bodies.topic import TopicConfigAndQueueMapping, detail_of
from cometmq.protocol.logical_queues import MAPPING_BYTES_MAX, InvalidMappingError
from cometmq.protocol.record import body_crc, encode_host, split_record
from cometmq.remoting.slices import Slices, decode, encode, off_loop
from cometmq.store import Appended, NewRecord, SegmentNotReadyError

log = logging.getLogger(__name__)

RECORD_BYTES_MAX: Final = 2 * MAPPING_BYTES_MAX
"""The size of a record that is decompressed: the settings of the topic are small."""
LEVEL: Final = 1
"""Compression: names of brokers and members repeat."""


class MappingLog:
    """Stores changes of mappings in the log, and makes those that the table lacks.

    Args:
        core: of the broker.
        begin_sync: begins the sync of what is stored.
        store_host: the address of this broker as records contain it.
    """

    def __init__(self, core: Core, begin_sync: Callable[[], object], *, store_host: bytes) -> None:
        self._begin_sync = begin_sync
        self._store = core.store
        self._topics = core.topics
        self._mappings = core.static_topics
        self._clock = core.clock
        self._cold_reads = core.cold_reads
        self._segment = SharedCall(core.store.wait_for_segment)
        self._making = asyncio.Lock()
        self._store_host = store_host or encode_host("127.0.0.1", 0)

    async def append(self, detail: TopicQueueMappingDetail, config: TopicConfig) -> tuple[int, int]:
        """Store a change; return the number of changes, and the log offset behind it.

        Raises:
            InvalidMappingError: the mapping is too large.
            StoreError, ResponseError: the store refuses.
        """
        part = TopicConfigAndQueueMapping(**msgspec.structs.asdict(config), mapping_detail=detail)
        data = b"".join(await encode(part))
        if len(data) > MAPPING_BYTES_MAX:
            raise InvalidMappingError(
                f"the mapping of topic {detail.topic} has {len(data)} bytes, expected at most"
                f" {MAPPING_BYTES_MAX}: spread its queues over more brokers"
            )
        body = await off_loop(lambda: zlib.compress(data, LEVEL))

        def store() -> Appended:
            record = NewRecord(
                MAPPING_TOPIC,
                QUEUE,
                body,
                born_time_ms=self._clock.now_ms(),
                born_host=self._store_host,
                store_host=self._store_host,
            )
            try:
                return self._store.append(record)
            except SegmentNotReadyError:
                raise PrerequisiteError(self._segment) from None

        stored = await after_prerequisites(store)
        self._begin_sync()  # while the table is written
        return stored.queue_offset + 1, stored.log_offset_end

    async def make(self) -> None:
        """Make the changes in the log that the table lacks, and the topics for them.

        Raises:
            StoreError: the disk refuses; the next call tries again.
        """
        async with self._making:
            if self._store.dispatch_backlog_bytes:
                raise StoreError("mappings: queues lack records of the log, the disk is full")
            end = self._store.next_offset(MAPPING_TOPIC, QUEUE)
            if end <= self._mappings.changes_known:
                return
            parts = await self._read(self._mappings.changes_known, end)
            lacking = [part for part in parts if self._mappings.lacks(detail_of(part))]
            # The topics first: the mapping of a topic that is missing counts as left over.
            for part in lacking:
                await self._put_topic(part)
            await self._mappings.make(map(detail_of, lacking), end)
            if lacking:
                await self._topics.touch()  # name servers compare the version of the topics only
                log.info("static topics changed by the log of the master topics=%d", len(lacking))

    async def _put_topic(self, part: TopicConfigAndQueueMapping) -> None:
        """Create the topic of a mapping, or give it the queues that it has at the master.

        A slave has the messages of a deleted topic until it copies the topics.
        """
        name = part.topic_name
        if detail_of(part).total_queues == 0:
            await self._topics.delete(name, _nothing)
            return

        def changed(present: TopicConfig | None) -> TopicConfig:
            if present is not None:
                return with_queues(present, part.write_queue_nums)
            values = msgspec.structs.asdict(part)
            del values["mapping_detail"]
            return TopicConfig(**values)

        await self._topics.change({name: changed})

    async def _read(self, start: int, end: int) -> list[TopicConfigAndQueueMapping]:
        """Return the newest part of each topic in some changes."""
        found: dict[str, TopicConfigAndQueueMapping] = {}
        slices, damaged = Slices(), 0
        for log_offset, size in self._store.written_units(MAPPING_TOPIC, QUEUE, start, end):
            await self._cold_reads.run(self._store.cold_record(log_offset, size))
            part = await _part_of(self._store.written_record_at(log_offset, size))
            detail = None if part is None else part.mapping_detail
            if part is None or detail is None or detail.topic != part.topic_name:
                damaged += 1
            elif detail.bname == self._mappings.broker_name:
                found[detail.topic] = part
            await slices.pause()
        if damaged:
            log.error("passed over damaged changes of static topics count=%d", damaged)
        return list(found.values())


async def _part_of(data: bytes | None) -> TopicConfigAndQueueMapping | None:
    """Return what a record says; None if the disk has damaged it."""
    if data is None:
        return None
    try:
        record = split_record(data)
        if body_crc(record.body) != record.body_crc:
            return None
        text = await off_loop(
            lambda: zlib.decompressobj().decompress(record.body, RECORD_BYTES_MAX)
        )
        return await decode(TopicConfigAndQueueMapping, text)
    except (ProtocolError, zlib.error):
        return None


async def _nothing(_: str) -> None:
    """Forget nothing else of a topic."""
