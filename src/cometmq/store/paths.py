"""The paths of all files of a store.

    commitlog/<20 digits>                               consumequeue/<topic>/<queue>/<20 digits>
    consumequeue_ext/<topic>/<queue>/<20 digits>        index/<yyyyMMddHHmmssSSS>
    checkpoint   abort   lock   unitbuffers   queueends   config/<name>
    deleted/<any name>: directories that are being deleted
    aside/<time>-<from>-<to>/commitlog/<20 digits>: confirmed records that a master lacked
    batchconsumequeue/<topic>/<queue>/<20 digits>: queues that hold batches, of RocketMQ 5

A name of 20 digits is the offset of the file's first byte in its own stream.
Source: StorePathConfigHelper and UtilAll.offset2FileName, RocketMQ 5.3.
"""

from __future__ import annotations

import time
from pathlib import Path

from cometmq.model.errors import InvalidNameError
from cometmq.store.config import StoreSettings

_NAME_BYTES_MAX = 255


class StorePaths:
    """The paths of one store."""

    def __init__(self, settings: StoreSettings) -> None:
        root = settings.root
        self.root = root
        self.commit_log = settings.commit_log
        self.consume_queues = root / "consumequeue"
        self.consume_queues_ext = root / "consumequeue_ext"
        self.batch_queues = root / "batchconsumequeue"
        self.index = root / "index"
        self.checkpoint = root / "checkpoint"
        self.abort = root / "abort"
        self.lock = root / "lock"
        self.unit_buffers = root / "unitbuffers"
        self.queue_ends = root / "queueends"
        self.epochs = root / "epochFileCheckpoint"
        self.config = root / "config"
        self.topics = self.config / "topics.json"
        self.deleted = root / "deleted"
        self.aside = root / "aside"

    def topic(self, topic: str) -> Path:
        """Return the directory of a topic's queues."""
        return self.consume_queues / directory_name(topic)

    def queue(self, topic: str, queue_id: int) -> Path:
        """Return the directory of a queue."""
        return self.topic(topic) / str(queue_id)

    def topic_batches(self, topic: str) -> Path:
        """Return the directory of a topic's queues if these hold batches."""
        return self.batch_queues / directory_name(topic)

    def batch_queue(self, topic: str, queue_id: int) -> Path:
        """Return the directory of a queue that holds batches."""
        return self.topic_batches(topic) / str(queue_id)

    def topic_ext(self, topic: str) -> Path:
        """Return the directory of the extension units of a topic's queues."""
        return self.consume_queues_ext / directory_name(topic)

    def queue_ext(self, topic: str, queue_id: int) -> Path:
        """Return the directory of a queue's extension units."""
        return self.topic_ext(topic) / str(queue_id)


def directory_name(topic: str) -> str:
    """Return the topic as a directory name: itself.

    Raises:
        InvalidNameError: it would name another directory, or none.
    """
    if topic in ("", ".", "..") or "/" in topic or "\0" in topic:
        raise InvalidNameError(f"topic {topic!r} cannot name a directory")
    if len(topic.encode()) > _NAME_BYTES_MAX:
        raise InvalidNameError(f"topic {topic[:32]!r}... is over {_NAME_BYTES_MAX} bytes")
    return topic


def segment_name(base_offset: int) -> str:
    """Return the name of the file that begins at ``base_offset``."""
    return f"{base_offset:020d}"


def index_name(now_ms: int) -> str:
    """Return the name of an index file made at ``now_ms``: local time with milliseconds."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms / 1000)) + f"{now_ms % 1000:03d}"
