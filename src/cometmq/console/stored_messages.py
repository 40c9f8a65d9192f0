"""Messages in lists, ranges of queue offsets in addresses, and times that a visitor types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

from cometmq.client import StoredMessage
from cometmq.client.admin.messages import is_offset_id
from cometmq.console.pages import NotFoundError
from cometmq.console.reads import Reads
from cometmq.model.errors import ConfigError
from cometmq.model.queue import MessageQueue
from cometmq.model.times import now_ms, time_of
from cometmq.protocol.lazy_record import body_or_stored
from cometmq.protocol.message_id import decode_offset_id

MESSAGES_SHOWN = 50
"""Messages of a page."""
QUEUES_MAX = 64
"""Queues that a page of messages goes through; its address has a range for each of them."""
FOREVER_MS = 2**63 - 1
_RANGE = re.compile(r"([^/;]{1,255})/(\d{1,9})/(\d{1,18})-(\d{1,18})")
Rest = Annotated[
    str,
    msgspec.Meta(
        max_length=8192, description="Where to go on: rest of the part before; empty for the first."
    ),
]
Since = Annotated[
    str,
    msgspec.Meta(
        max_length=40, description="Not before: 2h for two hours ago, ISO 8601, or ms since 1970."
    ),
]
Until = Annotated[
    str,
    msgspec.Meta(
        max_length=40, description="Before: 2h for two hours ago, ISO 8601, or ms since 1970."
    ),
]
QueueNumber = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class MessageRow(msgspec.Struct):
    """A message in a list."""

    topic: str
    broker: str
    queue: int
    offset: int
    id: str
    tag: str | None
    keys: list[str]
    stored_time_ms: int
    body_bytes: int


def row_of(message: StoredMessage) -> MessageRow:
    """Return a message as lists show it."""
    return MessageRow(
        *(message.topic, message.broker_name, message.queue_id, int(message.queue_offset)),
        *(message.message_id, message.tags, message.keys, message.store_time_ms),
        body_bytes=len(body_or_stored(message)),
    )


def times_of(since: str, until: str) -> tuple[int, int]:
    """Return a range of time, in ms since 1970, without its end; an empty text is no bound.

    Raises:
        ConfigError: a text is no time, or the range ends before it begins.
    """
    now = now_ms()
    begin = time_of(since, now=now) if since else 0
    end = time_of(until, now=now) if until else FOREVER_MS
    if begin > end:
        raise ConfigError(f"since={since} is after until={until}: expected an earlier time")
    return begin, end


def text_of(ranges: Mapping[MessageQueue, range]) -> str:
    """Return ranges of queue offsets as a parameter: ``broker/queue/start-stop;…``."""
    return ";".join(
        f"{queue.broker_name}/{queue.queue_id}/{offsets.start}-{offsets.stop}"
        for queue, offsets in sorted(ranges.items())[:QUEUES_MAX]
    )


def ranges_of(text: str, topic: str) -> dict[MessageQueue, range]:
    """Return the ranges of a parameter.

    Raises:
        ConfigError: it is malformed.
    """
    parts = text.split(";")
    found = [_RANGE.fullmatch(part) for part in parts]
    if len(parts) > QUEUES_MAX or not all(found):
        raise ConfigError(
            "rest: expected the text that the page before has as rest, broker/queue/start-stop with"
            f" ';' in between, {QUEUES_MAX} queues at most"
        )
    return {
        MessageQueue(topic, each[1], int(each[2])): range(int(each[3]), int(each[4]))
        for each in found
        if each
    }


async def check_broker_of(reads: Reads, message_id: str) -> None:
    """Check that a broker's id names a broker of the cluster, and no other address.

    Raises:
        ConfigError: it is no such id.
        NotFoundError: it names an address that is not registered.
    """
    if not is_offset_id(message_id):
        raise ConfigError(
            f"id={message_id}: expected a broker's id of a message, 32 hexadecimal digits with an"
            " address"
        )
    address = decode_offset_id(message_id).address
    if address not in {each.address for each in await reads.brokers()}:
        raise NotFoundError(
            f"the id names the broker {address}, which is not registered: search for"
            " the unique id or the key instead"
        )
