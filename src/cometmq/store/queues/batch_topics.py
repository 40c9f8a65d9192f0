"""Topics whose queues hold batches, and queues that are found to be of the other type.

    batchconsumequeue/<topic>/<queue>/<20 digits>     in topics.json: "queue.type": "BatchCQ"

The attribute of a topic decides about the type of its queues. A slave may get messages before the
attribute: then a queue of single messages is replaced, see `UnitMove`.

Source: QueueTypeUtils, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from cometmq.model.errors import StoreError
from cometmq.protocol.bodies.topic import TopicConfigSerializeWrapper
from cometmq.protocol.fastjson import FastJsonError
from cometmq.protocol.lenient import read_struct
from cometmq.store.config_files import JsonFile
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.record_scan import record_size, store_time
from cometmq.store.paths import StorePaths
from cometmq.store.queues.batch_consume_queue import BatchConsumeQueue
from cometmq.store.queues.consume_queue import FILLER_SIZE, ConsumeQueue
from cometmq.system.files import Files

logger = logging.getLogger(__name__)

QUEUE_TYPE: Final = "queue.type"
BATCH_QUEUE: Final = "BatchCQ"


def holds_batches(attributes: Mapping[str, str]) -> bool:
    """Return whether the queues of a topic with these attributes hold batches."""
    return attributes.get(QUEUE_TYPE) == BATCH_QUEUE


def batch_topics_in(files: Files, paths: StorePaths) -> frozenset[str]:
    """Return the topics of a store whose queues hold batches, as its table of topics says.

    Raises:
        StoreError: the table cannot be read.
        OSError: the disk is broken.
    """
    path = paths.topics
    backup = path.with_name(path.name + ".bak")
    if not any(BATCH_QUEUE.encode() in (files.read(each) or b"") for each in (path, backup)):
        return frozenset()  # mostly: the file may be long, and is parsed later
    content = JsonFile(path, files).load()
    if content is None:
        return frozenset()
    try:
        table = read_struct(content, TopicConfigSerializeWrapper).topic_config_table
    except FastJsonError as problem:
        raise StoreError(f"{path} has no topicConfigTable: {problem}") from problem
    return frozenset(name for name, config in table.items() if holds_batches(config.attributes))


class UnitMove:
    """Moves the units of queues of single messages to queues that hold batches.

    The new files are on the disk before the old ones are deleted. If both are there at a start, a
    move was interrupted, and the old ones count.

    Args:
        files, paths, log: of the store.
    """

    def __init__(self, files: Files, paths: StorePaths, log: CommitLog) -> None:
        self._files = files
        self._paths = paths
        self._log = log

    def move(self, single: ConsumeQueue, batches: BatchConsumeQueue) -> None:
        """Move all units.

        Raises:
            OSError: the disk refused; the queue of single messages is as it was.
        """
        topic, queue_id = single.topic, single.queue_id
        self._files.remove_tree(self._paths.batch_queue(topic, queue_id))
        single.write_and_release_buffer()
        for number in range(single.first_unit, single.end_unit):
            log_offset, size, code = single.unit(number)
            segment = self._log.segments.find(log_offset)
            if size == FILLER_SIZE or segment is None:
                continue
            position = log_offset - segment.base_offset
            if record_size(segment, position) == size:
                store_ms = store_time(segment, position)
                code = single.tags_code_of(code)
                batches.put_batch(number, log_offset, size, code, store_ms, 1)
        batches.flush()
        single.delete()
        for path in (self._paths.queue_ext(topic, queue_id), self._paths.queue(topic, queue_id)):
            self._files.remove_tree(path)
            if not self._files.entries(path.parent):
                self._files.remove_tree(path.parent)
        logger.warning(
            "queue holds batches now, its units were moved topic=%s queue=%d units=%d",
            *(topic, queue_id, batches.end_unit),
        )
