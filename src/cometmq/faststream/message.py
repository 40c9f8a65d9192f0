"""Messages as handlers get them, and how they are made of those of the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from faststream.exceptions import FeatureNotSupportedException
from faststream.message import StreamMessage, decode_message
from faststream.message.message import AckStatus

from cometmq.client import CometError, Message, StoredMessage
from cometmq.faststream.settlement import Delay, Settlement
from cometmq.model import property_names as names
from cometmq.model.offsets import LogOffset, QueueOffset
from cometmq.model.times import now_ms

if TYPE_CHECKING:
    from faststream._internal.basic_types import DecodedMessage

CONTENT_TYPE, CORRELATION_ID, REPLY_TO = "content-type", "correlation_id", "reply_to"
"""Properties that FastStream's parts of a message travel in."""
EMPTY = "empty-body"
"""A property of a message with no body: RocketMQ has none without, so it has one zero byte."""
EMPTY_BODY = b"\0"
CLIENT_REPLY = "rocketmq-client:"
"""The prefix of the reply address of a request of RocketMQ's kind; a topic has no colon."""
_HIDDEN = names.RESERVED | {names.SHARDING_KEY, EMPTY}


class UndecodableError(CometError):
    """The payload of a message cannot be decoded, or does not fit the handler.

    It becomes a dead letter at once: it would fail each time.
    """


class RocketMessage(StreamMessage[Any]):
    """A message of a topic; ``raw_message`` is the `StoredMessage`, or a sequence for a batch."""

    settlement: Settlement | None = None

    @property
    def tags(self) -> str | None:
        """The tag of the message; of a batch, that of the first one."""
        return _first(self.raw_message).tags

    @property
    def keys(self) -> list[str]:
        """The keys of the message; of a batch, those of the first one."""
        return _first(self.raw_message).keys

    @property
    def attempt(self) -> int:
        """How often the message was delivered, with this time."""
        return _first(self.raw_message).reconsume_times + 1

    async def ack(self) -> None:
        """Acknowledge the message: it is consumed."""
        await self._settle(AckStatus.ACKED)
        await super().ack()

    async def nack(self, delay: Delay = None) -> None:
        """Have the message redelivered.

        Args:
            delay: seconds, or a timedelta; None for the subscriber's ``retry``, or else the
                brokers. With ``pop`` it is kept to; otherwise a delay level that is not shorter is
                taken, and an ordered queue pauses for 10 ms to 30 s.
        """
        await self._settle(AckStatus.NACKED, delay)
        await super().nack()

    async def reject(self, reason: str = "") -> None:
        """Dead-letter the message.

        Args:
            reason: stored with the dead letter as ``CONSUME_ERROR``.
        """
        await self._settle(AckStatus.REJECTED, error=RejectedError(reason) if reason else None)
        await super().reject()

    async def extend(self, invisible: float | timedelta) -> None:
        """Begin the invisible time of a popped message anew.

        Args:
            invisible: seconds, or a timedelta.

        Raises:
            FeatureNotSupportedException: the subscriber does not pop.
        """
        if self.settlement is None or self.settlement.extend is None:
            raise FeatureNotSupportedException(
                "extend is for popped messages: subscriber(..., pop=True)"
            )
        await self.settlement.extend(invisible)

    async def _settle(
        self, verdict: AckStatus, delay: Delay = None, error: BaseException | None = None
    ) -> None:
        if self.committed is None and self.settlement is not None:
            await self.settlement.settle(verdict, delay, error)


class RejectedError(CometError):
    """A handler has rejected the message."""


class Parser:
    """Makes FastStream's messages.

    Args:
        settlements: of the deliveries that handlers work on, by the `id` of the raw message: two
            handlers of a subscriber with parsers of their own have a message each.
    """

    def __init__(self, settlements: Mapping[int, Settlement]) -> None:
        self._settlements = settlements

    async def parse_message(self, message: StoredMessage) -> RocketMessage:
        """Parse one message."""
        headers = headers_of(message)
        return self._made(message, _body_of(message), headers)

    async def decode_message(self, msg: StreamMessage[Any]) -> DecodedMessage:
        """Decode by the content type, or as JSON if it looks so."""
        return decode_message(msg)

    def _made(self, raw: Any, body: Any, headers: dict[str, str], **more: Any) -> RocketMessage:
        first = _first(raw)
        client = first.properties.get(names.REPLY_TO_CLIENT)
        made = RocketMessage(
            raw_message=raw,
            body=body,
            headers=headers,
            content_type=headers.get(CONTENT_TYPE),
            reply_to=headers.get(REPLY_TO) or (f"{CLIENT_REPLY}{client}" if client else ""),
            correlation_id=headers.get(CORRELATION_ID),
            message_id=first.message_id,
            **more,
        )
        made.settlement = self._settlements.get(id(raw))
        return made


class BatchParser(Parser):
    """Makes FastStream's messages of batches."""

    async def parse_message(self, message: Any) -> RocketMessage:
        """Parse the messages of a batch."""
        messages: Sequence[StoredMessage] = message
        all_headers = [headers_of(each) for each in messages]
        bodies = [_body_of(each) for each in messages]
        return self._made(message, bodies, all_headers[0], batch_headers=all_headers)

    async def decode_batch(self, msg: StreamMessage[Any]) -> list[DecodedMessage]:
        """Decode each message. FastStream knows a subscriber of batches by this name."""
        single = Parser({})
        return [decode_message(await single.parse_message(each)) for each in msg.raw_message]


def headers_of(message: StoredMessage) -> dict[str, str]:
    """Return the properties of an application."""
    return {name: text for name, text in message.properties.items() if name not in _HIDDEN}


def _body_of(message: StoredMessage) -> bytes:
    return b"" if EMPTY in message.properties else message.body


def _first(raw: StoredMessage | Sequence[StoredMessage]) -> StoredMessage:
    return messages_of(raw)[0]


def messages_of(raw: StoredMessage | Sequence[StoredMessage]) -> Sequence[StoredMessage]:
    """Return the messages of a raw message: one, or those of a batch."""
    return [raw] if isinstance(raw, StoredMessage) else raw


def as_stored(message: Message, *, queue_offset: int = 0) -> StoredMessage:
    """Return a message as if a broker had stored it, for a handler that runs without one."""
    properties = dict(message.properties)
    if message.tags:
        properties[names.TAGS] = message.tags
    if keys := names.KEY_SEPARATOR.join(message.keys):
        properties[names.KEYS] = keys
    time_ms = now_ms()
    return StoredMessage(
        topic=message.topic,
        body=message.body,
        properties=properties,
        queue_id=0,
        queue_offset=QueueOffset(queue_offset),
        log_offset=LogOffset(0),
        flag=message.flag,
        sys_flag=0,
        born_time_ms=time_ms,
        born_host="",
        store_time_ms=time_ms,
        store_host="",
        reconsume_times=0,
        prepared_offset=0,
        body_crc=0,
        size_bytes=len(message.body),
        offset_message_id=uuid4().hex,
    )
