"""Refuses a store with queues of batches, a kind of queue that only RocketMQ 5 reads and writes.

    batchconsumequeue/<topic>/<queue>/<20 digits>     in topics.json: "queue.type": "BatchCQ"

Such a queue counts the messages of a batch that is one record. A consume queue counts records: its
offsets would be others, and the next message would be stored at the offset of one inside a batch.

Source: BatchConsumeQueue and QueueTypeUtils, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cometmq.model.errors import StoreError
from cometmq.protocol.bodies.topic import TopicConfigSerializeWrapper
from cometmq.protocol.fastjson import FastJsonError
from cometmq.protocol.lenient import read_struct
from cometmq.store.config_files import JsonFile
from cometmq.store.paths import StorePaths
from cometmq.system.files import Files

QUEUE_TYPE: Final = "queue.type"
BATCH_QUEUE: Final = "BatchCQ"
_NAMES_MAX = 10


def refuse_batch_queues(files: Files, paths: StorePaths) -> None:
    """Check that no topic of a store has queues of batches.

    Raises:
        StoreError: one has; names the topics.
        OSError: the disk is broken.
    """
    refuse_topics(sorted({*_with_settings(files, paths), *_with_files(files, paths)}))


def refuse_topics(topics: list[str]) -> None:
    """Refuse topics with queues of batches.

    Raises:
        StoreError: there is one.
    """
    if not topics:
        return
    more = f" and {len(topics) - _NAMES_MAX} more" if len(topics) > _NAMES_MAX else ""
    raise StoreError(
        f"the queues of topic {', '.join(topics[:_NAMES_MAX])}{more} hold batches"
        f" ({QUEUE_TYPE}={BATCH_QUEUE}), expected queues of single messages: only RocketMQ 5 can"
        " serve such a topic; consume its messages there, delete it with `mqadmin deleteTopic`, and"
        " create it again without that attribute"
    )


def batch_topics(topics: Iterable[tuple[str, dict[str, str]]]) -> list[str]:
    """Return the topics with queues of batches; ``topics`` gives each with its attributes."""
    return sorted(name for name, attributes in topics if attributes.get(QUEUE_TYPE) == BATCH_QUEUE)


def _with_settings(files: Files, paths: StorePaths) -> list[str]:
    path = paths.topics
    backup = path.with_name(path.name + ".bak")
    if not any(BATCH_QUEUE.encode() in (files.read(each) or b"") for each in (path, backup)):
        return []  # mostly: the file may be long, and is parsed later
    content = JsonFile(path, files).load()
    if content is None:
        return []
    try:
        table = read_struct(content, TopicConfigSerializeWrapper).topic_config_table
    except FastJsonError as problem:
        raise StoreError(f"{path} has no topicConfigTable: {problem}") from problem
    return batch_topics((name, config.attributes) for name, config in table.items())


def _with_files(files: Files, paths: StorePaths) -> list[str]:
    root = paths.batch_queues
    return [
        topic.name
        for topic in files.entries(root)
        if topic.is_dir and any(_has_content(files, root / topic.name))
    ]


def _has_content(files: Files, topic: Path) -> Iterable[bool]:
    for queue in files.entries(topic):
        if queue.is_dir:
            yield any(entry.size_bytes > 0 for entry in files.entries(topic / queue.name))
