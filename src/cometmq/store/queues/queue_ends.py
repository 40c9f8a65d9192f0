"""Stores the bounds of all queues when a store is closed, so that a start opens no queue file.

    file  := mark:8 checkpoint_crc:u32 modified_ms:i64 log_min:i64 topic ... crc:u32
    topic := name_bytes:u16 queues:u32 modified_ms:i64 name queue ...
    queue := queue_id:i32 files:i32 first_base:i64 min:i64 max:i64 max_physical:i64

The file is valid only if the store has not changed since: it was closed, and the checkpoint, the
oldest record and the times of the directories are the same. Otherwise a start reads each queue's
files. RocketMQ ignores the file, and changes the checkpoint when it changes the store.
Queues that hold batches are few: a start always reads their files.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from zlib import crc32

from cometmq.store.paths import StorePaths
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.dispatch import TopicQueues
from cometmq.system.files import Files

_MARK = b"COMETQE1"
_HEAD = Struct(">8sIqq")
_TOPIC = Struct(">HIq")
_QUEUE = Struct(">iiqqqq")
_CRC = Struct(">I")

QUEUES_MIN = 256
"""With fewer queues a start reads all of them, which is quick and verifies them."""

QueueEnds = tuple[int, int, int, int, int, int]
"""Queue id, number of files, offset of the first, then min, max and max_physical of the queue."""


def write_queue_ends(
    files: Files,
    paths: StorePaths,
    topics: Iterable[TopicQueues],
    *,
    log_min: int,
) -> None:
    """Write the file if there are many queues; it is on disk when this returns.

    Args:
        files, paths: of the store.
        topics: all topics, whose units are all in their files.
        log_min: the log offset of the oldest record.

    Raises:
        OSError: the disk refused.
    """
    parts = [_head(files, paths, log_min)]
    count = 0
    for topic in topics:
        queues = [
            queue
            for queue in topic.queues.values()
            if queue.segments.count and not queue.holds_batches
        ]
        count += len(queues)
        if queues:
            name = topic.name.encode()
            modified_ms = files.modified_ms(paths.topic(topic.name))
            parts += [_TOPIC.pack(len(name), len(queues), modified_ms), name]
            parts += [_ends_of(queue) for queue in queues]
    if count < QUEUES_MIN:
        return
    data = b"".join(parts)
    files.write(paths.queue_ends, data + _CRC.pack(crc32(data)))


def _head(files: Files, paths: StorePaths, log_min: int) -> bytes:
    checkpoint = files.read(paths.checkpoint) or b""
    directory = paths.consume_queues
    modified_ms = files.modified_ms(directory) if files.exists(directory) else 0
    return _HEAD.pack(_MARK, crc32(checkpoint), modified_ms, log_min)


def _ends_of(queue: ConsumeQueue) -> bytes:
    first_base, count, *bounds = queue.ends()
    return _QUEUE.pack(queue.queue_id, count, first_base, *bounds)


def read_queue_ends(
    files: Files, paths: StorePaths, *, log_min: int
) -> list[tuple[str, list[QueueEnds]]] | None:
    """Return all topics with the ends of their queues, or None if the file is invalid.

    Args:
        files, paths, log_min: as for `write_queue_ends`.
    """
    data = files.read(paths.queue_ends)
    if data is None or len(data) < _HEAD.size + _CRC.size:
        return None
    (crc,) = _CRC.unpack_from(data, len(data) - _CRC.size)
    if crc != crc32(memoryview(data)[: -_CRC.size]):
        return None
    if not data.startswith(_head(files, paths, log_min)):
        return None
    topics = []
    at, stop = _HEAD.size, len(data) - _CRC.size
    while at < stop:
        name_bytes, count, modified_ms = _TOPIC.unpack_from(data, at)
        at += _TOPIC.size
        name = data[at : at + name_bytes].decode()
        at += name_bytes
        end = at + count * _QUEUE.size
        directory = paths.topic(name)
        if not files.exists(directory) or files.modified_ms(directory) != modified_ms:
            return None
        topics.append((name, list(_QUEUE.iter_unpack(memoryview(data)[at:end]))))
        at = end
    return topics
