"""Inputs for tests of consumers: options, stored messages, offsets in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cometmq.client import StartFrom
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import LogOffset, QueueOffset
from cometmq.model.queue import MessageQueue

QUEUE = MessageQueue("t", "a", 0)


def from_the_first(group: str, topic: str, tags: str = "*") -> dict[str, Any]:
    """Options of a consumer that a group has for a topic, from its first message on."""
    return {"group": group, "subscriptions": {topic: tags}, "start_from": StartFrom.FIRST}


def stored_in(queue: MessageQueue, offset: int, **fields: Any) -> StoredMessage:
    """A message at an offset of any queue."""
    known = {
        "topic": queue.topic, "queue_id": queue.queue_id, "broker_name": queue.broker_name,
        "body": b"x", "properties": {}, "flag": 0, "sys_flag": 0, "reconsume_times": 0,
        "born_time_ms": 0, "born_host": "127.0.0.1:1",
        "store_time_ms": 0, "store_host": "127.0.0.1:2",
        "queue_offset": QueueOffset(offset), "log_offset": LogOffset(1000 + offset),
        "prepared_offset": 0, "body_crc": 0, "size_bytes": 100,
        "offset_message_id": f"OFFSET{offset}",
    }  # fmt: skip
    return StoredMessage(**known | fields)  # type: ignore[arg-type]


def stored(
    offset: int, *, body: bytes = b"x", topic: str = QUEUE.topic, **properties: str
) -> StoredMessage:
    """A message at an offset of a queue."""
    properties = {"UNIQ_KEY": f"ID{offset}", **properties}
    return stored_in(QUEUE, offset, topic=topic, body=body, properties=properties)


class MemoryOffsets:
    """An offset store that keeps nothing beyond itself."""

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, QueueOffset] = {}
        self.kept: dict[MessageQueue, QueueOffset] = {}
        """What was persisted."""
        self.failure: BaseException | None = None
        """What `persist` raises."""

    async def load(self) -> None:
        """There is nothing to load."""

    def position(self, queue: MessageQueue) -> QueueOffset | None:
        """Give the offset in memory."""
        return self.offsets.get(queue)

    async def stored(self, queue: MessageQueue) -> QueueOffset | None:
        """Give the offset that was persisted, and take it into memory."""
        if queue in self.kept:
            self.offsets[queue] = self.kept[queue]
        return self.kept.get(queue)

    def update(
        self, queue: MessageQueue, offset: QueueOffset, *, increase_only: bool = False
    ) -> None:
        """Note an offset."""
        if not increase_only or offset > self.offsets.get(queue, -1):
            self.offsets[queue] = offset

    def freeze(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Note an offset."""
        self.offsets[queue] = offset

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Keep what is there."""
        if self.failure is not None:
            raise self.failure
        self.kept |= {queue: self.offsets[queue] for queue in queues if queue in self.offsets}

    def forget(self, queue: MessageQueue) -> None:
        """Drop a queue."""
        self.offsets.pop(queue, None)

    def table(self) -> Mapping[MessageQueue, QueueOffset]:
        """Give a copy of all."""
        return dict(self.offsets)
