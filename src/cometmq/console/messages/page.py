"""The search for messages, and one message."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from cometmq.client import StoredMessage
from cometmq.client.admin.messages import is_offset_id
from cometmq.client.errors import QueueNotFoundError, TopicNotFoundError
from cometmq.console.messages.body import Body, body_of
from cometmq.console.pages import Name, NotFoundError, Page, Query
from cometmq.console.reads import Reads
from cometmq.model.errors import ConfigError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.lazy_record import body_or_stored
from cometmq.protocol.message_id import decode_offset_id

FOUND_SHOWN = 128
PROPERTIES_SHOWN = 200
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class SearchQuery(Query):
    """An id or a key, of a topic."""

    topic: Name = ""
    id: Name = ""
    key: Name = ""


class MessageRow(msgspec.Struct):
    """A message that was found."""

    topic: str
    broker: str
    queue: int
    offset: int
    id: str
    tag: str | None
    keys: list[str]
    stored_time_ms: int
    body_bytes: int


class Messages(msgspec.Struct):
    """What was found."""

    messages: list[MessageRow]
    total: int


class MessageQuery(Query):
    """The queue and queue offset of a message, and how its body is shown."""

    topic: Name
    broker: Name
    queue: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    offset: Offset
    format: Literal["", "json", "text", "hex"] = ""


class FoundMessage(msgspec.Struct):
    """One message."""

    row: MessageRow
    offset_message_id: str
    born_time_ms: int
    born_host: str
    store_host: str
    retries: int
    log_offset: int
    record_bytes: int
    properties: dict[str, str]
    properties_total: int
    body: Body


async def search(reads: Reads, query: SearchQuery) -> Messages:
    """Return the messages with an id or a key; none if neither is given."""
    if query.id and query.key:
        raise ConfigError("id and key are given: expected one of them")
    if not (query.id or query.key):
        return Messages([], 0)
    if query.id and is_offset_id(query.id):
        await _check_broker(reads, query.id)
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


async def _check_broker(reads: Reads, message_id: str) -> None:
    """Check that an id names a broker of the cluster: the console connects to no other address."""
    address = decode_offset_id(message_id).address
    if address not in {each.address for each in await reads.brokers()}:
        raise NotFoundError(
            f"the id names the broker {address}, which is not registered: search for"
            " the unique id or the key instead"
        )


async def message(reads: Reads, query: MessageQuery) -> FoundMessage:
    """Return the message at a queue offset."""
    queue = MessageQueue(query.topic, query.broker, query.queue)
    try:
        found = await reads.admin.message_in_queue(queue, query.offset)
    except (TopicNotFoundError, QueueNotFoundError) as error:
        raise NotFoundError(str(error)) from None
    if found is None:
        raise NotFoundError(
            f"queue {query.queue} of {query.topic} on {query.broker} has no message at offset"
            f" {query.offset}: it is deleted, or not stored yet"
        )
    properties = dict(sorted(found.properties.items()))
    shown = dict(list(properties.items())[:PROPERTIES_SHOWN])
    return FoundMessage(
        row=row_of(found),
        offset_message_id=found.offset_message_id,
        born_time_ms=found.born_time_ms,
        born_host=found.born_host,
        store_host=found.store_host,
        retries=found.reconsume_times,
        log_offset=int(found.log_offset),
        record_bytes=found.size_bytes,
        properties=shown,
        properties_total=len(properties),
        body=body_of(body_or_stored(found), query.format),
    )


def row_of(found: StoredMessage) -> MessageRow:
    """Return a message as lists show it."""
    return MessageRow(
        *(found.topic, found.broker_name, found.queue_id, int(found.queue_offset)),
        *(found.message_id, found.tags, found.keys, found.store_time_ms),
        body_bytes=len(body_or_stored(found)),
    )


PAGES = (
    Page(
        "/messages", "Messages", "messages/messages.html", SearchQuery, Messages, search,
        is_tab=True,
    ),
    Page(
        "/messages/message", "Message", "messages/message.html", MessageQuery, FoundMessage,
        message,
    ),
)  # fmt: skip
