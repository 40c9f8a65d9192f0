"""Messages as handlers get them, and what becomes of each.

FastStream swallows the exceptions of handlers, and those of acknowledgements. So a consumer does
not go by what the call of a handler returns, but by the settlement of its message. A message of
which nothing was said is redelivered.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from traceback import walk_tb
from typing import Any

from fast_depends.exceptions import ValidationError as FastDependsValidationError
from faststream.exceptions import FeatureNotSupportedException
from faststream.message import StreamMessage, decode_message
from faststream.message.message import AckStatus
from pydantic import ValidationError
from pydantic_core import from_json

from cometmq.client import CometError, ConfigError, ConsumeLater, SimpleConsumer, StoredMessage
from cometmq.client.retry_policies import DEAD_LETTER, Retry
from cometmq.model import property_names as names
from cometmq.model.times import timeout_s

CONTENT_TYPE, CORRELATION_ID, REPLY_TO = "content-type", "correlation_id", "reply_to"
"""Properties that FastStream's parts of a message travel in."""
EMPTY, EMPTY_BODY = "empty-body", b"\0"
"""The property of a message with no body, and the byte it has: RocketMQ needs one."""
_HIDDEN = names.RESERVED | {names.SHARDING_KEY, EMPTY}


class RejectedError(CometError):
    """A handler has rejected the message."""


class UndecodableError(CometError):
    """A payload cannot be decoded: a dead letter at once, since it would fail each time."""


class Settlement:
    """The verdict over one delivery: a message, or the messages of a batch from the first one on.

    With a consumer it is a popped message: the broker is told at once.
    """

    __slots__ = ("_retry", "_settled", "consumer", "delay", "error", "message", "verdict")

    def __init__(
        self, message: StoredMessage, retry: Retry | None, consumer: SimpleConsumer | None = None
    ) -> None:
        self.message = message
        self.consumer = consumer
        self.verdict: AckStatus | None = None
        self.delay: float | timedelta | None = None
        """Until the redelivery, if there is one; None for when the brokers like."""
        self.error: BaseException | None = None  # why it is not acknowledged
        self._retry = retry
        self._settled: asyncio.Event | None = None

    async def settle(
        self, verdict: AckStatus, delay: float | timedelta | None = None, reason: str = ""
    ) -> None:
        """Say what becomes of it; only the first call counts. No delay is negative."""
        if self.verdict is not None:
            return
        if delay is not None and timeout_s(delay, "delay") < 0:
            raise ConfigError(f"nack with delay={delay!r}: expected 0 seconds or more")
        if verdict is not AckStatus.ACKED:
            error = RejectedError(reason) if reason else sys.exception()  # that of a handler
            if self.error is None or self.error.__cause__ is not error:  # a decoder says more
                self.error = error
        if verdict is AckStatus.NACKED and delay is None:
            if is_undecodable(self.error):
                verdict = AckStatus.REJECTED
            elif self._retry is not None:
                delay = self._retry.delay_s(self.message.reconsume_times + 1)
                verdict = AckStatus.REJECTED if delay is None else verdict
        self.verdict, self.delay = verdict, delay
        if self._settled is not None:
            self._settled.set()
        if self.consumer is not None:
            await self._tell(self.consumer)

    async def _tell(self, consumer: SimpleConsumer) -> None:
        try:
            if self.verdict is AckStatus.ACKED:
                await consumer.ack(self.message)
            elif self.verdict is AckStatus.REJECTED:
                await consumer.dead_letter(self.message, self.error)
            else:
                await consumer.nack(self.message, self.delay)
        except CometError:
            with suppress(CometError):  # else it would stay invisible until the consumer closes
                await consumer.nack(self.message)
            raise

    def raise_unless_consumed(self) -> None:
        """End the handler call of a push consumer; `ConsumeLater` means that it comes again."""
        if self.verdict is AckStatus.REJECTED:
            raise ConsumeLater(delay_level=DEAD_LETTER) from self.error
        if self.verdict is not AckStatus.ACKED:
            raise ConsumeLater(delay=self.delay) from self.error

    async def wait(self) -> None:
        """Wait until it is settled."""
        if self.verdict is None:
            self._settled = self._settled or asyncio.Event()
            await self._settled.wait()


CURRENT: ContextVar[Settlement | None] = ContextVar("cometmq_settlement", default=None)


def is_undecodable(problem: BaseException | None) -> bool:
    """Return whether a payload cannot be decoded, or does not fit the parameters of a handler."""
    if not isinstance(problem, ValidationError):
        return isinstance(problem, UndecodableError | FastDependsValidationError)
    frames = walk_tb(problem.__traceback__)  # what a handler itself validates is its own affair
    callers = [str(frame.f_globals.get("__name__", "")) for frame, _ in frames]
    ours = [name for name in callers if not name.startswith("pydantic")]
    return ours[-1:] != [] and ours[-1].startswith("fast_depends.")


class RocketMessage(StreamMessage[Any]):
    """A message of a topic; ``raw_message`` is the `StoredMessage`, or a sequence for a batch."""

    def __init__(
        self, raw_message: Any, body: Any, *, headers: dict[str, str], **parts: Any
    ) -> None:
        current = CURRENT.get()
        if current is None or current.message is not raw_message:  # a batch, or a reply
            first = messages_of(raw_message)[0]
            if current is None or current.message is not first:
                current = Settlement(first, None)
        self.settlement = current
        named = {
            "reply_to": headers.get(REPLY_TO) or client_reply_of(current.message),
            "content_type": headers.get(CONTENT_TYPE),
            "correlation_id": headers.get(CORRELATION_ID),
            "message_id": current.message.message_id,
        }
        super().__init__(raw_message, body, headers=headers, **named | parts)

    @property
    def tags(self) -> str | None:
        """The tag of the message; of a batch, that of the first one."""
        return self.settlement.message.tags

    @property
    def keys(self) -> list[str]:
        """The keys of the message; of a batch, those of the first one."""
        return self.settlement.message.keys

    @property
    def attempt(self) -> int:
        """How often the message was delivered, with this time."""
        return self.settlement.message.reconsume_times + 1

    async def ack(self) -> None:
        """Acknowledge the message: it is consumed."""
        await self.settlement.settle(AckStatus.ACKED)
        await super().ack()

    async def nack(self, delay: float | timedelta | None = None) -> None:
        """Have the message redelivered after a delay, in seconds or as a timedelta.

        Without one the subscriber's ``retry`` decides, or else the brokers. With ``pop`` the delay
        is kept to; otherwise the next longer delay level is taken. A queue in order pauses for
        10 ms to 30 s.
        """
        await self.settlement.settle(AckStatus.NACKED, delay)
        await super().nack()

    async def reject(self, reason: str = "") -> None:
        """Dead-letter the message; the reason is stored with it as ``CONSUME_ERROR``."""
        await self.settlement.settle(AckStatus.REJECTED, reason=reason)
        await super().reject()

    async def extend(self, invisible: float | timedelta) -> None:
        """Begin the invisible time of a popped message anew, in seconds or as a timedelta."""
        if self.settlement.consumer is None:
            raise FeatureNotSupportedException(
                "extend is for popped messages: subscriber(..., pop=True)"
            )
        await self.settlement.consumer.extend(self.raw_message, invisible)


async def parse_message(message: StoredMessage) -> RocketMessage:
    """Parse one message."""
    return RocketMessage(message, _body_of(message), headers=_headers_of(message))


async def parse_batch(message: Sequence[StoredMessage]) -> RocketMessage:
    """Parse the messages of a batch."""
    headers = [_headers_of(each) for each in message]
    bodies = [_body_of(each) for each in message]
    return RocketMessage(message, bodies, headers=headers[0], batch_headers=headers)


async def decode(msg: StreamMessage[Any]) -> Any:
    """Decode by the content type, or as JSON if it looks so."""
    if msg.content_type == "application/json":
        try:
            return from_json(msg.body)  # in a fifth of the time
        except ValueError:
            pass  # the general way accepts more, and has the errors that applications know
    return decode_message(msg)


async def decode_batch(msg: StreamMessage[Any]) -> list[Any]:
    """Decode each message. FastStream knows a subscriber of batches by this name."""
    return [await decode(await parse_message(each)) for each in msg.raw_message]


def client_reply_of(message: StoredMessage) -> str:
    """Return the reply address of a request of RocketMQ's kind; it has a colon, unlike a topic."""
    client = message.properties.get(names.REPLY_TO_CLIENT)
    return f"rocketmq-client:{client}" if client else ""


def _headers_of(message: StoredMessage) -> dict[str, str]:
    return {name: text for name, text in message.properties.items() if name not in _HIDDEN}


def _body_of(message: StoredMessage) -> bytes:
    return b"" if EMPTY in message.properties else message.body


def messages_of(raw: StoredMessage | Sequence[StoredMessage]) -> Sequence[StoredMessage]:
    """Return the messages of a raw message: one, or those of a batch."""
    return [raw] if isinstance(raw, StoredMessage) else raw
