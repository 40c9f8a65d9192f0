"""The search for messages, and one message."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal

import msgspec

from cometmq.client import StoredMessage
from cometmq.client.admin import DeadLetter
from cometmq.client.admin.messages import is_offset_id
from cometmq.client.errors import QueueNotFoundError, TopicNotFoundError
from cometmq.console.downloads import File
from cometmq.console.messages.body import Body, body_of
from cometmq.console.pages import Name, NotFoundError, Query
from cometmq.console.reads import Reads
from cometmq.console.stored_messages import (
    MESSAGES_SHOWN,
    QUEUES_MAX,
    MessageRow,
    Offset,
    QueueNumber,
    Rest,
    Since,
    Until,
    check_broker_of,
    ranges_of,
    row_of,
    text_of,
    times_of,
)
from cometmq.model.errors import ConfigError
from cometmq.model.flags import SysFlag
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import DLQ_PREFIX, RETRY_PREFIX
from cometmq.protocol.compression import CompressionError
from cometmq.protocol.lazy_record import body_or_stored, stored_body

FOUND_SHOWN = 128
PROPERTIES_SHOWN = 200
COMPRESSIONS = {SysFlag.LZ4: "LZ4", SysFlag.ZSTD: "zstd"}


class SearchQuery(Query):
    """An id or a key, of a topic."""

    topic: Name = ""
    id: Name = ""
    key: Name = ""


class Messages(msgspec.Struct):
    """The messages that were found."""

    messages: list[MessageRow]
    total: int


class TimeQuery(Query):
    """A topic, a range of time and queues, and which part of their messages."""

    topic: Name
    since: Since = ""
    until: Until = ""
    broker: Name = ""
    queue: QueueNumber | None = None
    rest: Rest = ""


class MessagesByTime(msgspec.Struct):
    """A part of the messages of a topic, the oldest first."""

    topic: str
    messages: list[MessageRow]
    rest: str
    """The beginning of the next page; empty at the end."""
    rest_messages: int
    """Messages of later pages, at most."""
    deleted: int
    """Messages that expired meanwhile."""


class PlaceQuery(Query):
    """The queue and queue offset of a message."""

    topic: Name
    broker: Name
    queue: QueueNumber
    offset: Offset


class MessageQuery(PlaceQuery):
    """The queue and queue offset of a message, and how its body is shown."""

    format: Literal["", "json", "text", "hex"] = ""


class FoundMessage(msgspec.Struct):
    """One message."""

    row: MessageRow
    unique_id: str | None
    offset_message_id: str
    born_time_ms: int
    born_host: str
    store_host: str
    retries: int
    log_offset: int
    record_bytes: int
    group: str | None
    """The group of a retry or a dead letter."""
    original_topic: str | None
    """The topic to which a retry or a dead letter was first sent."""
    properties: dict[str, str]
    properties_total: int
    compression: str
    """How the body is stored compressed; empty if it is not."""
    stored_body_bytes: int
    body_error: str
    """Why a compressed body is shown as it is stored; else empty."""
    body: Body


async def search(reads: Reads, query: SearchQuery) -> Messages:
    """Return the messages with an id or a key; none if neither is given."""
    if query.id and query.key:
        raise ConfigError("id and key are given: expected one of them")
    if not (query.id or query.key):
        return Messages([], 0)
    if query.id and is_offset_id(query.id):
        await check_broker_of(reads, query.id)
        found = [await reads.admin.message_at(query.id)]
    elif not query.topic:
        raise ConfigError(
            "topic is missing: expected the topic of the key or unique id; only a broker's id needs"
            " none"
        )
    else:
        try:
            found = await reads.admin.messages_by_key(
                query.topic, query.id or query.key, unique_id=bool(query.id)
            )
        except TopicNotFoundError:
            raise NotFoundError(f"there is no topic {query.topic}") from None
    return Messages([row_of(each) for each in found[:FOUND_SHOWN]], len(found))


async def by_time(reads: Reads, query: TimeQuery) -> MessagesByTime:
    """Return a part of the messages of a topic that were stored in a range of time."""
    since, until = times_of(query.since, query.until)
    ranges = ranges_of(query.rest, query.topic) if query.rest else None
    page = await reads.admin.messages_by_time(
        query.topic, since=since, until=until, limit=MESSAGES_SHOWN, ranges=ranges,
        queues=None if ranges else await _queues(reads, query),
    )  # fmt: skip
    return MessagesByTime(
        topic=query.topic,
        messages=list(map(row_of, page.messages)),
        rest=text_of(page.rest),
        rest_messages=sum(map(len, page.rest.values())),
        deleted=page.deleted,
    )


async def _queues(reads: Reads, query: TimeQuery) -> list[MessageQueue]:
    """Return the queues of a query that have messages.

    Raises:
        NotFoundError: it has no such queue.
        ConfigError: it has too many.
    """
    stats = await reads.admin.topic_stats(query.topic)
    chosen = [
        queue
        for queue in stats
        if query.broker in ("", queue.broker_name) and query.queue in (None, queue.queue_id)
    ]
    if not chosen:
        number = "" if query.queue is None else f" {query.queue}"
        where = f" on {query.broker}" if query.broker else ""
        raise NotFoundError(f"{query.topic} has no queue{number}{where}")
    filled = [queue for queue in chosen if stats[queue].max_offset > stats[queue].min_offset]
    if len(filled) > QUEUES_MAX:
        raise ConfigError(
            f"{len(filled)} queues of {query.topic} have messages: expected {QUEUES_MAX} at most;"
            " choose a broker or a queue"
        )
    return filled


async def find(reads: Reads, topic: str, broker: str, queue: int, offset: int) -> StoredMessage:
    """Return the message at a queue offset.

    Raises:
        NotFoundError: there is none.
    """
    try:
        found = await reads.admin.message_in_queue(MessageQueue(topic, broker, queue), offset)
    except (TopicNotFoundError, QueueNotFoundError) as error:
        raise NotFoundError(str(error)) from None
    if found is None:
        raise NotFoundError(
            f"queue {queue} of {topic} on {broker} has no message at offset"
            f" {offset}: it is deleted, or not stored yet"
        )
    return found


async def message(reads: Reads, query: MessageQuery) -> FoundMessage:
    """Return the message at a queue offset, with its properties and its body."""
    found = await find(reads, query.topic, query.broker, query.queue, query.offset)
    group = _group_of(found.topic)
    properties = dict(sorted(found.properties.items()))
    shown = dict(list(properties.items())[:PROPERTIES_SHOWN])
    compression, error = _compression(found)
    return FoundMessage(
        row=row_of(found),
        unique_id=found.unique_id,
        offset_message_id=found.offset_message_id,
        born_time_ms=found.born_time_ms,
        born_host=found.born_host,
        store_host=found.store_host,
        retries=found.reconsume_times,
        log_offset=int(found.log_offset),
        record_bytes=found.size_bytes,
        group=group,
        original_topic=DeadLetter(found).original_topic if group else None,
        properties=shown,
        properties_total=len(properties),
        compression=compression,
        stored_body_bytes=len(stored_body(found)),
        body_error=error,
        body=body_of(body_or_stored(found), query.format),
    )


async def body_file(reads: Reads, query: PlaceQuery) -> File:
    """Return the whole body of a message as a file."""
    found = await find(reads, query.topic, query.broker, query.queue, query.offset)

    async def parts() -> AsyncIterator[bytes]:
        yield body_or_stored(found)

    return File(f"{found.message_id}.bin", parts())


def _compression(message: StoredMessage) -> tuple[str, str]:
    """Return the compression of a body, and why it cannot be decompressed."""
    name = COMPRESSIONS.get(message.sys_flag & SysFlag.COMPRESSION_MASK, "zlib")
    try:
        body = message.body
    except CompressionError as error:
        return name, str(error)
    return (name if body != stored_body(message) else ""), ""


def _group_of(topic: str) -> str | None:
    for prefix in (DLQ_PREFIX, RETRY_PREFIX):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return None
