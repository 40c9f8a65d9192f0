"""Sends what publishers publish: messages, batches, requests and replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto

from cometmq.client import (
    Message,
    ReplyTimeoutError,
    SendReceipt,
    StoredMessage,
    TransactionReceipt,
)
from cometmq.faststream.connection import Connection, connected
from cometmq.faststream.message import (
    CONTENT_TYPE,
    CORRELATION_ID,
    EMPTY,
    EMPTY_BODY,
    REPLY_TO,
    Parser,
)
from cometmq.faststream.response import RocketPublishCommand

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import AsyncCallable, CustomCallable

REQUEST_S = 0.5
"""The time for a request, as in FastStream's other brokers."""


class RocketProducer(ProducerProto[RocketPublishCommand]):
    """Sends with the producer of a connection; false while there is none."""

    def __init__(
        self,
        *,
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
    ) -> None:
        default = Parser({})
        self._parser: AsyncCallable = ParserComposition(parser, default.parse_message)
        self._decoder: AsyncCallable = ParserComposition(decoder, default.decode_message)
        self.codec: CodecProto = DefaultCodec()
        self._serializer: SerializerProto | None = None
        self._connection: Connection | None = None

    def __bool__(self) -> bool:
        return self._connection is not None

    def connect(
        self,
        connection: Connection | None,
        serializer: SerializerProto | None,
        codec: CodecProto | None,
    ) -> None:
        """Use a connection, or none any more."""
        self._connection = connection
        self._serializer = serializer
        self.codec = codec or DefaultCodec()

    async def publish(self, cmd: RocketPublishCommand) -> SendReceipt | TransactionReceipt | None:
        """Send one message, a reply, or a message whose transaction runs in between."""
        producer = connected(self._connection).producer
        message = await self.message_of(cmd)
        if cmd.transaction is not None:
            return await cmd.transaction.send(message, cmd.timeout)
        if cmd.request is not None:
            body, properties = message.body, message.properties
            return await producer.reply(cmd.request, body, properties=properties)
        return await producer.send(message, order_key=cmd.options.get("key"))

    async def publish_batch(self, cmd: RocketPublishCommand) -> SendReceipt | None:
        """Send messages as one batch: all of them are stored, or none."""
        producer = connected(self._connection).producer
        messages = await self.messages_of(cmd)
        if not messages:
            return None
        return await producer.send_batch(messages, order_key=cmd.options.get("key"))

    async def request(self, cmd: RocketPublishCommand) -> StoredMessage:
        """Send a request of RocketMQ's kind, and return the reply.

        Raises:
            TimeoutError: there is no reply in time.
        """
        producer = connected(self._connection).producer
        message = await self.message_of(cmd)
        time_s = REQUEST_S if cmd.timeout is None else cmd.timeout
        try:
            key = cmd.options.get("key")
            return await producer.request(message, order_key=key, timeout=max(time_s, 0.001))
        except ReplyTimeoutError as late:
            raise TimeoutError(str(late)) from late

    async def recall(self, topic: str, handle: str) -> str:
        """Recall a delayed message; return its id."""
        return await connected(self._connection).producer.recall(topic, handle)

    async def messages_of(self, cmd: RocketPublishCommand) -> list[Message]:
        """Return the messages that a command of a batch describes."""
        bodies = cmd.batch_bodies
        if isinstance(self.codec, BatchCodecProto):
            encoded = await self.codec.encode_batch(bodies, self._serializer)
        else:
            encoded = [await self.codec.encode(body, self._serializer) for body in bodies]
        return [self._message(cmd, *each) for each in encoded]

    async def message_of(self, cmd: RocketPublishCommand) -> Message:
        """Return the message that a command describes."""
        return self._message(cmd, *await self.codec.encode(cmd.body, self._serializer))

    def _message(
        self, cmd: RocketPublishCommand, payload: bytes, content_type: str | None
    ) -> Message:
        properties = {name: str(value) for name, value in cmd.headers.items()}
        if content_type:
            properties[CONTENT_TYPE] = content_type
        if cmd.correlation_id:
            properties[CORRELATION_ID] = cmd.correlation_id
        if cmd.reply_to:
            properties[REPLY_TO] = cmd.reply_to
        if not payload:
            properties[EMPTY] = "1"
        options: Mapping[str, Any] = cmd.options
        return Message(
            topic=cmd.destination,
            body=payload or EMPTY_BODY,
            properties=properties,
            tags=options.get("tags"),
            keys=tuple(options.get("keys") or ()),
            delay=options.get("delay") or 0,
            deliver_at=options.get("deliver_at"),
            delay_level=options.get("delay_level") or 0,
        )
