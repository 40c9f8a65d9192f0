"""Makes the message of a send that names a topic and a body instead of a `Message`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, TypedDict

from cometmq.model.errors import InvalidMessageError
from cometmq.model.message import Message


class MessageOptions(TypedDict, total=False):
    """The fields of a `Message` that a send takes by name."""

    topic: str
    tags: str | None
    keys: Iterable[str]
    flag: int
    properties: dict[str, str]
    delay_level: int
    wait_store: bool
    delay: float | timedelta
    deliver_at: datetime | int | None


_MEANT = {
    "key": 'order_key="..." for the order of messages, or keys=["..."] to find them',
    "partition": "queue=",
    "partition_key": "order_key=",
    "headers": "properties=",
    "header": "properties=",
    "tag": "tags=",
    "subject": "topic=",
    "channel": "topic=",
    "routing_key": "topic=",
    "value": "body=",
    "data": "body=",
    "payload": "body=",
    "message_body": "body=",
    "countdown": "delay=",
    "eta": "deliver_at=",
    "defer_by": "delay=",
    "delay_seconds": "delay=",
    "delay_s": "delay=",
    "reply": "request() instead of a send",
}
"""What other libraries call what a send takes."""


def new_message(
    call: str, message: object, body: bytes | None, options: MessageOptions | dict[str, Any]
) -> Message:
    """Return the message of a send.

    Args:
        call: the method, for errors.
        message: a message, or the topic of a new one; empty if ``options`` names the topic.
        body: the body of a new message.
        options: the other fields of a new message.

    Raises:
        InvalidMessageError: it is not a message to send, or the body is no bytes.
        TypeError: there is no such option.
    """
    unknown = next((name for name in options if name not in MessageOptions.__annotations__), None)
    if unknown is not None:
        near = difflib.get_close_matches(unknown, MessageOptions.__annotations__, n=1)
        meant = _MEANT.get(unknown) or (f"{near[0]}=" if near else "")
        hint = f": did you mean {meant}?" if meant else ""
        raise TypeError(f"{call}() got an unexpected keyword argument {unknown!r}{hint}")
    if isinstance(message, Message):
        if body is None and not options:
            return message
        raise InvalidMessageError(
            f"{call}() of a Message takes no {', '.join(options) or 'body'}: expected it in the "
            f'Message, or {call}("orders", b"hello")'
        )
    fields = dict(options)
    named, topic = fields.pop("topic", ""), message
    if named and topic != "":
        raise InvalidMessageError(f"{call}() with topic={named!r} and another: expected one topic")
    topic = named if topic == "" else topic
    if not isinstance(topic, str) or not topic:
        raise InvalidMessageError(
            f"a message of type {type(topic).__name__}: Message(topic=..., body=...) is expected, "
            f'or a topic and a body: {call}("orders", b"hello")'
        )
    if body is None:
        raise InvalidMessageError(
            f'{call}({topic!r}) has no body, expected bytes: write {call}({topic!r}, b"hello")'
        )
    if not isinstance(body, bytes | bytearray | memoryview):
        encoded = "text.encode()" if isinstance(body, str) else "json.dumps(value).encode()"
        raise InvalidMessageError(
            f"{call}({topic!r}) with a body of type {type(body).__name__}, expected bytes: write "
            f"{call}({topic!r}, {encoded})"
        )
    return Message(topic=topic, body=body, **fields)
