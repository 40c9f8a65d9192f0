"""Messages as handlers get them, and what becomes of each.

FastStream swallows the exceptions of handlers, and those of acknowledgements. So a consumer does
not go by what the call of a handler returns, but by the settlement of its message. A message of
which nothing was said is redelivered.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from traceback import walk_tb
from typing import Any

from fast_depends.exceptions import ValidationError as FastDependsValidationError
from faststream.exceptions import FeatureNotSupportedException
from faststream.message import StreamMessage, decode_message
from faststream.message.message import AckStatus
from pydantic import ValidationError

from cometmq.client import CometError, ConfigError, SimpleConsumer, StoredMessage
from cometmq.faststream.retries import Retry
from cometmq.model import property_names as names
from cometmq.model.times import timeout_s

CONTENT_TYPE, CORRELATION_ID, REPLY_TO = "content-type", "correlation_id", "reply_to"
"""Properties that FastStream's parts of a message travel in."""
EMPTY = "empty-body"
"""A property of a message with no body: RocketMQ has none without, so it has one zero byte."""
EMPTY_BODY = b"\0"
CLIENT_REPLY = "rocketmq-client:"
"""The prefix of the reply address of a request of RocketMQ's kind; a topic has no colon."""
_HIDDEN = names.RESERVED | {names.SHARDING_KEY, EMPTY}

Delay = float | timedelta | None


class RejectedError(CometError):
    """A handler has rejected the message."""


class UndecodableError(CometError):
    """The payload of a message cannot be decoded, or does not fit the handler.

    It becomes a dead letter at once: it would fail each time.
    """


class Settlement:
    """The verdict over one delivery: a message, or the messages of a batch.

    Args:
        message: the message, or the first one of the batch.
        retry: of the subscriber.
        consumer: tells the broker at once, if the message was popped.
    """

    __slots__ = ("_retry", "_settled", "consumer", "delay", "error", "message", "verdict")

    def __init__(
        self, message: StoredMessage, retry: Retry | None, consumer: SimpleConsumer | None = None
    ) -> None:
        self.message = message
        self.consumer = consumer
        self.verdict: AckStatus | None = None
        self.delay: Delay = None
        """Until the redelivery, if there is one; None for when the brokers like."""
        self.error: BaseException | None = None
        """Why it is not acknowledged."""
        self._retry = retry
        self._settled: asyncio.Event | None = None

    async def settle(
        self, verdict: AckStatus, delay: Delay = None, error: BaseException | None = None
    ) -> None:
        """Say what becomes of it; only the first call counts.

        Raises:
            ConfigError: the delay is negative.
            CometError: the broker of a popped message did not take it; it is redelivered.
        """
        if self.verdict is not None:
            return
        if delay is not None and timeout_s(delay, "delay") < 0:
            raise ConfigError(f"nack with delay={delay!r}: expected 0 seconds or more")
        if verdict is not AckStatus.ACKED:
            self.error = self._reason(error or sys.exception())  # a middleware settles meanwhile
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

    def _reason(self, error: BaseException | None) -> BaseException | None:
        """Return why it is not acknowledged; of a failed decoder more than its exception."""
        noted = self.error
        return noted if noted is not None and noted.__cause__ is error else error

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

    async def wait(self) -> None:
        """Wait until it is settled."""
        if self.verdict is None:
            self._settled = self._settled or asyncio.Event()
            await self._settled.wait()


def is_undecodable(problem: BaseException | None) -> bool:
    """Return whether a payload cannot be decoded, or does not fit the parameters of a handler.

    What a handler itself validates is its own affair: only the frames of FastDepends tell apart
    where the same exception comes from.
    """
    if not isinstance(problem, ValidationError):
        return isinstance(problem, UndecodableError | FastDependsValidationError)
    frames = walk_tb(problem.__traceback__)
    callers = [str(frame.f_globals.get("__name__", "")) for frame, _ in frames]
    ours = [name for name in callers if not name.startswith("pydantic")]
    return bool(ours) and ours[-1].startswith("fast_depends.")


class RocketMessage(StreamMessage[Any]):
    """A message of a topic; ``raw_message`` is the `StoredMessage`, or a sequence for a batch."""

    settlement: Settlement | None = None

    @property
    def tags(self) -> str | None:
        """The tag of the message; of a batch, that of the first one."""
        return messages_of(self.raw_message)[0].tags

    @property
    def keys(self) -> list[str]:
        """The keys of the message; of a batch, those of the first one."""
        return messages_of(self.raw_message)[0].keys

    @property
    def attempt(self) -> int:
        """How often the message was delivered, with this time."""
        return messages_of(self.raw_message)[0].reconsume_times + 1

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
        consumer = None if self.settlement is None else self.settlement.consumer
        if consumer is None:
            raise FeatureNotSupportedException(
                "extend is for popped messages: subscriber(..., pop=True)"
            )
        await consumer.extend(self.raw_message, invisible)

    async def _settle(
        self, verdict: AckStatus, delay: Delay = None, error: BaseException | None = None
    ) -> None:
        if self.committed is None and self.settlement is not None:
            await self.settlement.settle(verdict, delay, error)


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
        return self._parsed(message, _body_of(message), headers_of(message))

    async def parse_batch(self, message: Sequence[StoredMessage]) -> RocketMessage:
        """Parse the messages of a batch."""
        headers = [headers_of(each) for each in message]
        bodies = [_body_of(each) for each in message]
        return self._parsed(message, bodies, headers[0], batch_headers=headers)

    async def decode_message(self, msg: StreamMessage[Any]) -> Any:
        """Decode by the content type, or as JSON if it looks so."""
        return decode_message(msg)

    async def decode_batch(self, msg: StreamMessage[Any]) -> list[Any]:
        """Decode each message. FastStream knows a subscriber of batches by this name."""
        return [decode_message(await self.parse_message(each)) for each in msg.raw_message]

    def _parsed(self, raw: Any, body: Any, headers: dict[str, str], **more: Any) -> RocketMessage:
        first = messages_of(raw)[0]
        client = first.properties.get(names.REPLY_TO_CLIENT)
        parsed = RocketMessage(
            raw_message=raw,
            body=body,
            headers=headers,
            content_type=headers.get(CONTENT_TYPE),
            reply_to=headers.get(REPLY_TO) or (f"{CLIENT_REPLY}{client}" if client else ""),
            correlation_id=headers.get(CORRELATION_ID),
            message_id=first.message_id,
            **more,
        )
        parsed.settlement = self._settlements.get(id(raw))
        return parsed


def headers_of(message: StoredMessage) -> dict[str, str]:
    """Return the properties of an application."""
    return {name: text for name, text in message.properties.items() if name not in _HIDDEN}


def _body_of(message: StoredMessage) -> bytes:
    return b"" if EMPTY in message.properties else message.body


def messages_of(raw: StoredMessage | Sequence[StoredMessage]) -> Sequence[StoredMessage]:
    """Return the messages of a raw message: one, or those of a batch."""
    return [raw] if isinstance(raw, StoredMessage) else raw
