"""Sends what handlers return and applications publish: messages, batches, requests and replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Unpack

from faststream._internal.configs import BrokerConfig
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream._internal.types import AsyncCallable
from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand, Response

from cometmq.client import (
    Message,
    Producer,
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
from cometmq.faststream.options import PublishOptions, SendOptions

REQUEST_S = 0.5
"""The time for a request, as in FastStream's other brokers."""


class RocketResponse(Response):
    """The result of a handler, with options of the message that it becomes.

    Example:
        @broker.subscriber("orders")
        @broker.publisher("invoices")
        async def bill(order: Order) -> RocketResponse:
            return RocketResponse(Invoice(order.id), tags="new", keys=[order.id])
    """

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.options = options

    def as_publish_command(self) -> RocketPublishCommand:
        """Return the command that publishes it."""
        return RocketPublishCommand(
            self.body,
            headers=dict(self.headers),
            correlation_id=self.correlation_id,
            _publish_type=PublishType.PUBLISH,
            options=self.options,
        )

    def get_publish_key(self) -> str | None:
        """Return the order key."""
        return self.options.get("key")


class RocketPublishCommand(BatchPublishCommand):
    """One or several messages to publish; further arguments as for FastStream's commands."""

    request: StoredMessage | None = None
    """The request of RocketMQ's kind that this replies to."""
    transaction: Callable[[Message], Awaitable[TransactionReceipt]] | None = None
    """Sends the message, and runs the transaction that decides whether it is delivered."""

    def __init__(
        self,
        message: Any,
        /,
        *messages: Any,
        options: SendOptions | None = None,
        timeout: float | None = None,
        **command: Any,
    ) -> None:
        super().__init__(message, *messages, **command)
        self.options: SendOptions = options or {}
        self.timeout = timeout
        """Seconds for a request, or for the half message of a transaction."""

    @classmethod
    def of(
        cls,
        publish_type: PublishType,
        messages: tuple[Any, ...],
        topic: str,
        options: PublishOptions,
        config: BrokerConfig,
        timeout: float | None = None,
    ) -> RocketPublishCommand:
        """Return the command of a publish."""
        return cls(
            *(messages or (None,)),
            destination=topic,
            headers=dict(options.get("headers") or {}),
            correlation_id=options.get("correlation_id") or config.id_generator(),
            reply_to=options.get("reply_to", ""),
            timeout=timeout,
            options=options,
            _publish_type=publish_type,
        )

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> RocketPublishCommand:
        """Make one of what other parts of FastStream hand over."""
        body, others = cls._parse_bodies(cmd.body, batch=batch)
        if isinstance(cmd, RocketPublishCommand):
            cmd.body, cmd.extra_bodies = body, (*others, *cmd.extra_bodies)
            return cmd
        return cls(
            body,
            *others,
            destination=cmd.destination,
            headers=dict(cmd.headers),
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )


@dataclass(kw_only=True)
class RocketBrokerConfig(BrokerConfig):
    """What all parts of a broker know; a router has one, too."""

    producer: RocketProducer = field(init=False)
    group: str = ""
    """The prefix of groups that are not given."""
    connection: Connection | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.producer = RocketProducer(self)


class RocketProducer(ProducerProto[RocketPublishCommand]):
    """Sends with the client of a connection; false while there is none."""

    def __init__(self, config: RocketBrokerConfig) -> None:
        default = Parser({})
        self._config = config
        self._parser: AsyncCallable = ParserComposition(config.broker_parser, default.parse_message)
        self._decoder: AsyncCallable = ParserComposition(
            config.broker_decoder, default.decode_message
        )
        self.codec: CodecProto = config.broker_codec or DefaultCodec()

    def __bool__(self) -> bool:
        return self._config.connection is not None

    @property
    def client(self) -> Producer:
        """The producer of the connection; without one it raises `IncorrectState`."""
        return connected(self._config.connection).producer

    async def publish(self, cmd: RocketPublishCommand) -> SendReceipt | TransactionReceipt | None:
        """Send one message, a reply, or a message whose transaction runs in between."""
        client, message = self.client, await self.message_of(cmd)
        if cmd.transaction is not None:
            return await cmd.transaction(message)
        if cmd.request is not None:
            return await client.reply(cmd.request, message.body, properties=message.properties)
        return await client.send(message, order_key=cmd.options.get("key"))

    async def publish_batch(self, cmd: RocketPublishCommand) -> SendReceipt | None:
        """Send messages as one batch: all of them are stored, or none."""
        client, bodies, serializer = (
            self.client,
            cmd.batch_bodies,
            self._config.fd_config._serializer,
        )
        if isinstance(self.codec, BatchCodecProto):
            encoded = await self.codec.encode_batch(bodies, serializer)
        else:
            encoded = [await self.codec.encode(body, serializer) for body in bodies]
        messages = [_message(cmd, *each) for each in encoded]
        return (
            await client.send_batch(messages, order_key=cmd.options.get("key"))
            if messages
            else None
        )

    async def request(self, cmd: RocketPublishCommand) -> StoredMessage:
        """Send a request of RocketMQ's kind, and return the reply.

        Raises:
            TimeoutError: there is no reply in time.
        """
        client, message = self.client, await self.message_of(cmd)
        time_s = max(REQUEST_S if cmd.timeout is None else cmd.timeout, 0.001)
        try:
            return await client.request(message, order_key=cmd.options.get("key"), timeout=time_s)
        except ReplyTimeoutError as late:
            raise TimeoutError(str(late)) from late

    async def message_of(self, cmd: RocketPublishCommand) -> Message:
        """Return the message that a command describes."""
        encoded = await self.codec.encode(cmd.body, self._config.fd_config._serializer)
        return _message(cmd, *encoded)


def _message(cmd: RocketPublishCommand, payload: bytes, content_type: str | None) -> Message:
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
