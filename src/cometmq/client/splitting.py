"""Cuts a long list of messages into batches that fit.

Source: ours; the estimate of a message's size is that of RocketMQ's example for batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cometmq.model.message import Message
from cometmq.model.topic import RETRY_PREFIX

ITEM_BYTES = 20
"""What a message of a batch takes beside its topic, body and properties."""


def split(messages: Iterable[Message], bytes_max: int) -> Iterator[list[Message]]:
    """Yield messages that follow each other and go together, in order.

    Args:
        messages: any messages.
        bytes_max: the estimated size of a part; a message that alone is larger comes alone.
    """
    part: list[Message] = []
    part_bytes = 0
    for message in messages:
        size = estimated_bytes(message)
        if part and (part_bytes + size > bytes_max or not _go_together(part[-1], message)):
            yield part
            part, part_bytes = [], 0
        part.append(message)
        part_bytes += size
    if part:
        yield part


def estimated_bytes(message: Message) -> int:
    """Give about how many bytes a message takes in a batch."""
    size = ITEM_BYTES + len(message.topic) + len(message.body) + len(message.tags or "")
    size += sum(len(key) for key in message.keys)
    return size + sum(len(name) + len(value) for name, value in message.properties.items())


def goes_alone(message: Message) -> bool:
    """Whether a message may not be part of a batch."""
    return message.is_delayed or message.topic.startswith(RETRY_PREFIX)


def _go_together(one: Message, other: Message) -> bool:
    return (
        one.topic == other.topic
        and one.wait_store == other.wait_store
        and not goes_alone(one)
        and not goes_alone(other)
    )
