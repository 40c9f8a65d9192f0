"""Publishers: decorators that send what handlers return, and objects that publish."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.types import PublisherMiddleware
from faststream.response.publish_type import PublishType
from faststream.response.response import PublishCommand
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec, SubscriberSpec

from cometmq.client import SendReceipt, StoredMessage
from cometmq.faststream.message import RocketMessage
from cometmq.faststream.options import PublisherOptions, PublishOptions
from cometmq.faststream.producer import RocketBrokerConfig, RocketProducer, RocketPublishCommand
from cometmq.model.topic import check_topic_name

_Spec = TypeVar("_Spec", PublisherSpec, SubscriberSpec)


@dataclass(kw_only=True)
class TopicConfig(PublisherSpecificationConfig):
    """A subscriber or a publisher in the AsyncAPI document."""

    topic: str

    @classmethod
    def of(cls, topic: str, options: Any) -> TopicConfig:
        """Return what options say."""
        return cls(
            topic=topic,
            title_=options.get("title"),
            description_=options.get("description"),
            schema_=options.get("schema"),
            include_in_schema=options.get("include_in_schema", True),
        )


def channel(
    kind: type[_Spec], name: str, topic: str, description: str | None, payload: Any
) -> dict[str, _Spec]:
    """Return the channel of a subscriber or publisher."""
    message = Message(title=f"{name}:Message", payload=payload)
    operation = Operation(message=message, bindings=None)
    found = kind(address=topic, description=description, operation=operation, bindings=None)
    return {name: found}


class RocketPublisherSpecification(PublisherSpecification[RocketBrokerConfig, TopicConfig]):
    """A publisher in the AsyncAPI document."""

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """The key of its channel."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return its channel."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        return channel(PublisherSpec, self.name, self.topic, self.config.description_, payload)


class Publisher(PublisherUsecase):
    """Publishes to one topic."""

    specification: RocketPublisherSpecification  # type: ignore[assignment]
    _outer_config: RocketBrokerConfig

    def __init__(self, outer: RocketBrokerConfig, topic: str, options: PublisherOptions) -> None:
        described = RocketPublisherSpecification(outer, TopicConfig.of(topic, options))
        super().__init__(PublisherUsecaseConfig(_outer_config=outer), described)  # type: ignore[arg-type]
        self.options = options

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return self.specification.topic

    async def start(self) -> None:
        """Check the topic."""
        check_topic_name(self.topic)
        await super().start()

    async def publish(
        self, message: Any, topic: str = "", **options: Unpack[PublishOptions]
    ) -> SendReceipt | None:
        """Publish one message, or with ``batch`` a sequence of them; see `RocketBroker.publish`."""
        messages = tuple(message) if self.options.get("batch") else (message,)
        cmd = self._command(PublishType.PUBLISH, messages, topic, options)
        return await self._send(cmd, ())

    async def request(
        self,
        message: Any,
        topic: str = "",
        *,
        timeout: float | None = None,
        **options: Unpack[PublishOptions],
    ) -> RocketMessage:
        """Send a request, and wait for the reply; see `RocketBroker.request`."""
        cmd = self._command(PublishType.REQUEST, (message,), topic, options, timeout)
        reply: RocketMessage = await self._basic_request(cmd, producer=self._outer_config.producer)
        return reply

    def _command(
        self,
        publish_type: PublishType,
        messages: tuple[Any, ...],
        topic: str,
        options: PublishOptions,
        timeout: float | None = None,
    ) -> RocketPublishCommand:
        merged: Any = {**self.options, **options}
        merged["headers"] = (self.options.get("headers") or {}) | (options.get("headers") or {})
        config: Any = self._outer_config
        return RocketPublishCommand.of(
            publish_type, messages, topic or self.topic, merged, config, timeout
        )

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
    ) -> SendReceipt | None:
        is_batch = self.options.get("batch", False)
        publish = self._basic_publish_batch if is_batch else self._basic_publish
        producer = self._outer_config.producer
        receipt: SendReceipt | None = await publish(
            cmd, producer=producer, _extra_middlewares=middlewares
        )
        return receipt


class ReplyPublisher(FakePublisher):
    """Sends the result of a handler to who asked for it.

    Args:
        producer: that of the broker.
        topic: the topic of the replies; empty with ``request``.
        request: the request of RocketMQ's kind, whose client gets the reply.
    """

    def __init__(
        self, producer: RocketProducer, topic: str, request: StoredMessage | None = None
    ) -> None:
        super().__init__(producer=producer)
        self._topic = topic
        self._request = request

    def patch_command(self, cmd: PublishCommand) -> RocketPublishCommand:
        """Address what the handler returned."""
        sent = RocketPublishCommand.from_cmd(super().patch_command(cmd))
        sent.destination = self._topic
        sent.request = self._request
        return sent
