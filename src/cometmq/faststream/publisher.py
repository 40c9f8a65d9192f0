"""Publishers, and the producer that sends what they, brokers and replies publish."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Unpack

from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
)
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream._internal.types import AsyncCallable, PublisherMiddleware
from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand, Response
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from cometmq import client as rocketmq
from cometmq.faststream import message as parts
from cometmq.faststream.connection import Connection, connected
from cometmq.faststream.options import PublisherOptions, PublishOptions, check_names
from cometmq.model.topic import check_topic_name

REQUEST_S = 0.5  # as in FastStream's other brokers
_numbers = itertools.count()
_FIELDS = ("tags", "keys", "delay", "deliver_at", "delay_level")


class RocketResponse(Response):
    """The result of a handler, with options of the message that it becomes.

    Example:
        @broker.subscriber("orders")
        @broker.publisher("invoices")
        async def bill(order: Order) -> RocketResponse:
            return RocketResponse(Invoice(order.id), tags="new", keys=[order.id])
    """

    def __init__(self, body: Any, **options: Unpack[PublishOptions]) -> None:
        check_names("RocketResponse", options, PublishOptions)
        headers, id = options.get("headers"), options.get("correlation_id")
        super().__init__(body, headers=headers, correlation_id=id)
        self.options = options

    def as_publish_command(self) -> RocketPublishCommand:
        """Return the command that publishes it."""
        id = self.correlation_id
        cmd = RocketPublishCommand.of(PublishType.PUBLISH, (self.body,), "", self.options, id)
        cmd.headers = dict(self.headers)
        return cmd


class RocketPublishCommand(BatchPublishCommand):
    """One or several messages to publish; arguments as for FastStream's commands."""

    options: PublishOptions = {}  # noqa: RUF012 - nothing changes it
    request: rocketmq.StoredMessage | None = None
    """The request of RocketMQ's kind that this replies to."""
    transaction: Callable[[rocketmq.Message], Awaitable[rocketmq.TransactionReceipt]] | None = None
    """Sends the message, and runs the transaction that decides whether it is delivered."""

    @classmethod
    def of(
        cls, kind: PublishType, bodies: tuple[Any, ...], topic: str, options: Any, id: str | None
    ) -> RocketPublishCommand:
        """Return the command of a publish."""
        cmd = cls(
            *(bodies or (None,)),
            destination=topic,
            headers=dict(options.get("headers") or {}),
            correlation_id=id,
            reply_to=options.get("reply_to", ""),
            _publish_type=kind,
        )
        cmd.options = options
        return cmd

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> RocketPublishCommand:
        """Make one of what other parts of FastStream hand over."""
        body, others = cls._parse_bodies(cmd.body, batch=batch)
        if isinstance(cmd, RocketPublishCommand):
            cmd.body, cmd.extra_bodies = body, (*others, *cmd.extra_bodies)
            return cmd
        options, id = {"headers": cmd.headers, "reply_to": cmd.reply_to}, cmd.correlation_id
        return cls.of(cmd.publish_type, (body, *others), cmd.destination, options, id)


@dataclass(kw_only=True)
class RocketBrokerConfig(BrokerConfig):
    """What all parts of a broker know; a router has one, too."""

    producer: RocketProducer = field(init=False)
    group: str = ""
    connection: Connection | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.producer = RocketProducer(self)

    def command(
        self, kind: PublishType, bodies: tuple[Any, ...], topic: str, options: PublishOptions
    ) -> RocketPublishCommand:
        """Return the command of a publish with these options."""
        check_names(f"publish to {topic}", options, PublishOptions)
        id = options.get("correlation_id") or self.id_generator()
        return RocketPublishCommand.of(kind, bodies, topic, options, id)


class RocketProducer(ProducerProto[RocketPublishCommand]):
    """Sends with the client of a connection; false while there is none."""

    def __init__(self, config: RocketBrokerConfig) -> None:
        self._config = config
        parser, decoder = config.broker_parser, config.broker_decoder
        self._parser: AsyncCallable = ParserComposition(parser, parts.parse_message)
        self._decoder: AsyncCallable = ParserComposition(decoder, parts.decode)
        self.codec: CodecProto = config.broker_codec or DefaultCodec()

    def __bool__(self) -> bool:
        return self._config.connection is not None

    @property
    def client(self) -> rocketmq.Producer:
        """The producer of the connection; without one it raises `IncorrectState`."""
        return connected(self._config.connection).producer

    async def publish(self, cmd: RocketPublishCommand) -> Any:
        """Send one message, a reply, or a message whose transaction runs in between."""
        client, message = self.client, await self.message_of(cmd)
        if cmd.transaction is not None:
            return await cmd.transaction(message)
        if cmd.request is not None:
            return await client.reply(cmd.request, message.body, properties=message.properties)
        key, timeout = cmd.options.get("key"), cmd.options.get("timeout")
        return await client.send(message, order_key=key, timeout=timeout)

    async def publish_batch(self, cmd: RocketPublishCommand) -> rocketmq.SendReceipt | None:
        """Send messages as one batch: all of them are stored, or none."""
        client, serializer = self.client, self._config.fd_config._serializer
        if isinstance(self.codec, BatchCodecProto):
            encoded = await self.codec.encode_batch(cmd.batch_bodies, serializer)
        else:
            encoded = [await self.codec.encode(body, serializer) for body in cmd.batch_bodies]
        if not encoded:
            return None
        messages = [_message(cmd, *each) for each in encoded]
        key, timeout = cmd.options.get("key"), cmd.options.get("timeout")
        return await client.send_batch(messages, order_key=key, timeout=timeout)

    async def request(self, cmd: RocketPublishCommand) -> rocketmq.StoredMessage:
        """Send a request of RocketMQ's kind, and return the reply, or raise `TimeoutError`."""
        client, message = self.client, await self.message_of(cmd)
        key, given_s = cmd.options.get("key"), cmd.options.get("timeout")
        time_s = max(REQUEST_S if given_s is None else given_s, 0.001)
        try:
            return await client.request(message, order_key=key, timeout=time_s)
        except rocketmq.ReplyTimeoutError as late:
            raise TimeoutError(str(late)) from late

    async def message_of(self, cmd: RocketPublishCommand) -> rocketmq.Message:
        """Return the message that a command describes."""
        encoded = await self.codec.encode(cmd.body, self._config.fd_config._serializer)
        return _message(cmd, *encoded)


def _message(cmd: RocketPublishCommand, body: bytes, content_type: str | None) -> rocketmq.Message:
    properties = {name: str(value) for name, value in cmd.headers.items()}
    if content_type:
        properties[parts.CONTENT_TYPE] = content_type
    if cmd.correlation_id:
        properties[parts.CORRELATION_ID] = cmd.correlation_id
    if cmd.reply_to:
        properties[parts.REPLY_TO] = cmd.reply_to
    if not body:
        properties[parts.EMPTY] = "1"
    named: Any = {name: value for name in _FIELDS if (value := cmd.options.get(name))}
    named["body"] = body or parts.EMPTY_BODY
    return rocketmq.Message(cmd.destination, properties=properties, **named)


class TopicConfig(PublisherSpecificationConfig):
    """A subscriber or a publisher in the AsyncAPI document."""

    def __init__(self, outer: RocketBrokerConfig, topic: str, options: Any) -> None:
        super().__init__(
            title_=options.get("title"),
            description_=options.get("description"),
            schema_=options.get("schema"),
            include_in_schema=options.get("include_in_schema", True),
        )
        self._outer, self._topic = outer, topic
        self.number = next(_numbers)
        """The order in which subscribers and publishers are declared."""

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return f"{self._outer.prefix}{self._topic}"

    def channel(self, kind: Any, name: str, about: str | None, payload: Any) -> Any:
        """Return its channel."""
        operation = Operation(Message(payload, f"{name}:Message"), None)
        return {name: kind(about, operation, None, self.topic)}


class _Specification(PublisherSpecification[RocketBrokerConfig, TopicConfig]):
    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.config.topic}:Publisher"

    def get_schema(self) -> Any:
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        return self.config.channel(PublisherSpec, self.name, self.config.description_, payload)


class Publisher(PublisherUsecase):
    """Publishes to one topic."""

    _outer_config: RocketBrokerConfig

    def __init__(self, outer: RocketBrokerConfig, topic: str, options: PublisherOptions) -> None:
        check_names(f"publisher to {topic}", options, PublisherOptions)
        self.options = options
        self._described = TopicConfig(outer, topic, options)
        specification: Any = _Specification(outer, self._described)
        super().__init__(PublisherUsecaseConfig(_outer_config=outer), specification)

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return self._described.topic

    async def start(self) -> None:
        """Check the topic."""
        check_topic_name(self.topic)
        await super().start()

    async def publish(
        self, message: Any, topic: str = "", **options: Unpack[PublishOptions]
    ) -> rocketmq.SendReceipt | None:
        """Publish one message, or with ``batch`` a sequence of them; see `RocketBroker.publish`."""
        messages = tuple(message) if self.options.get("batch") else (message,)
        return await self._send(self._command(PublishType.PUBLISH, messages, topic, options), ())

    async def request(
        self, message: Any, topic: str = "", **options: Unpack[PublishOptions]
    ) -> parts.RocketMessage:
        """Send a request, and wait for the reply; see `RocketBroker.request`."""
        cmd = self._command(PublishType.REQUEST, (message,), topic, options)
        return await self._basic_request(cmd, producer=self._outer_config.producer)  # type: ignore[no-any-return]

    def _command(
        self, kind: PublishType, messages: tuple[Any, ...], topic: str, options: PublishOptions
    ) -> RocketPublishCommand:
        check_names(f"publish to {topic or self.topic}", options, PublishOptions)
        merged: Any = {**self.options, **options}
        merged["headers"] = (self.options.get("headers") or {}) | (options.get("headers") or {})
        id = options.get("correlation_id") or self._outer_config.id_generator()
        return RocketPublishCommand.of(kind, messages, topic or self.topic, merged, id)

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        """Publish what a handler returned."""
        options: Any = self.options
        sent = RocketPublishCommand.from_cmd(cmd, batch=options.get("batch", False))
        sent.destination = self.topic
        sent.add_headers(options.get("headers") or {}, override=False)
        sent.reply_to = sent.reply_to or options.get("reply_to", "")
        sent.options = options | sent.options
        await self._send(sent, _extra_middlewares)

    async def _send(
        self, cmd: RocketPublishCommand, middlewares: Iterable[PublisherMiddleware]
    ) -> rocketmq.SendReceipt | None:
        is_batch = self.options.get("batch", False)
        publish = self._basic_publish_batch if is_batch else self._basic_publish
        producer: Any = self._outer_config.producer
        return await publish(cmd, producer=producer, _extra_middlewares=middlewares)  # type: ignore[no-any-return]


class ReplyPublisher(FakePublisher):
    """Sends the result of a handler to a topic, or to the client of RocketMQ's request."""

    def __init__(
        self, producer: RocketProducer, topic: str, request: rocketmq.StoredMessage | None = None
    ) -> None:
        super().__init__(producer=producer)
        self._topic, self._request = topic, request

    def patch_command(self, cmd: PublishCommand) -> RocketPublishCommand:
        """Address what the handler returned."""
        sent = RocketPublishCommand.from_cmd(super().patch_command(cmd))
        sent.destination, sent.request = self._topic, self._request
        return sent
