"""Publishers: decorators that send what handlers return, and objects that publish."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.response.publish_type import PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from cometmq.client import SendReceipt, StoredMessage
from cometmq.faststream.config import (
    RocketBrokerConfig,
    RocketPublisherConfig,
    RocketPublisherSpecificationConfig,
)
from cometmq.faststream.options import SEND_NAMES, PublishOptions, SendOptions
from cometmq.faststream.response import RocketPublishCommand
from cometmq.model.topic import check_topic_name

if TYPE_CHECKING:
    from faststream._internal.producer import ProducerProto
    from faststream._internal.types import PublisherMiddleware
    from faststream.response.response import PublishCommand

    from cometmq.faststream.message import RocketMessage


def command_of(
    publish_type: PublishType,
    messages: tuple[Any, ...],
    topic: str,
    options: PublishOptions,
    id_generator: Any,
    *,
    timeout: float | None = None,
) -> RocketPublishCommand:
    """Return the command of a publish."""
    sending: SendOptions = {name: options[name] for name in SEND_NAMES & options.keys()}  # type: ignore[literal-required,assignment]
    return RocketPublishCommand(
        *(messages or (None,)),
        topic=topic,
        headers=options.get("headers"),
        correlation_id=options.get("correlation_id") or id_generator(),
        reply_to=options.get("reply_to", ""),
        timeout=timeout,
        options=sending,
        _publish_type=publish_type,
    )


class RocketPublisherSpecification(
    PublisherSpecification[RocketBrokerConfig, RocketPublisherSpecificationConfig]
):
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
        payloads = self.get_payloads()
        message = Message(
            title=f"{self.name}:Message", payload=resolve_payloads(payloads, "Publisher")
        )
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class Publisher(PublisherUsecase):
    """Publishes to one topic."""

    _outer_config: RocketBrokerConfig

    def __init__(
        self, config: RocketPublisherConfig, specification: RocketPublisherSpecification
    ) -> None:
        super().__init__(config, specification)  # type: ignore[arg-type]
        self._topic = config.topic
        self.options = config.options

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def start(self) -> None:
        """Check the topic."""
        check_topic_name(self.topic)
        await super().start()

    async def publish(
        self, message: Any, topic: str = "", **options: Unpack[PublishOptions]
    ) -> SendReceipt | None:
        """Publish one message, or with ``batch`` a sequence of them; see `RocketBroker.publish`."""
        is_batch = self.options.get("batch", False)
        cmd = self._command(PublishType.PUBLISH, message, topic, options, batch=is_batch)
        publish = self._basic_publish_batch if is_batch else self._basic_publish
        receipt: SendReceipt | None = await publish(
            cmd, producer=self._outer_config.producer, _extra_middlewares=()
        )
        return receipt

    async def request(
        self,
        message: Any,
        topic: str = "",
        *,
        timeout: float | None = None,
        **options: Unpack[PublishOptions],
    ) -> RocketMessage:
        """Send a request, and wait for the reply; see `RocketBroker.request`."""
        cmd = self._command(PublishType.REQUEST, message, topic, options, timeout=timeout)
        reply: RocketMessage = await self._basic_request(cmd, producer=self._outer_config.producer)
        return reply

    def _command(
        self,
        publish_type: PublishType,
        message: Any,
        topic: str,
        options: PublishOptions,
        *,
        batch: bool = False,
        timeout: float | None = None,
    ) -> RocketPublishCommand:
        merged: Any = {**self.options, **options}
        merged["headers"] = {
            **(self.options.get("headers") or {}),
            **(options.get("headers") or {}),
        }
        messages = tuple(message) if batch else (message,)
        ids = self._outer_config.id_generator
        return command_of(publish_type, messages, topic or self.topic, merged, ids, timeout=timeout)

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        """Publish what a handler returned."""
        is_batch = self.options.get("batch", False)
        sent = RocketPublishCommand.from_cmd(cmd, batch=is_batch)
        if is_batch and sent is cmd:  # a RocketResponse of several messages
            sent.batch_bodies = (
                tuple(sent.body) if isinstance(sent.body, list | tuple) else sent.batch_bodies
            )
        sent.destination = self.topic
        sent.add_headers(self.options.get("headers") or {}, override=False)
        sent.reply_to = sent.reply_to or self.options.get("reply_to", "")
        own: Any = {name: self.options.get(name) for name in SEND_NAMES & self.options.keys()}
        sent.options = own | sent.options
        publish = self._basic_publish_batch if is_batch else self._basic_publish
        await publish(
            sent, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares
        )


class ReplyPublisher(FakePublisher):
    """Sends the result of a handler to who asked for it.

    Args:
        producer: that of the broker.
        topic: the topic of the replies; empty with ``request``.
        request: the request of RocketMQ's kind, whose client gets the reply.
    """

    def __init__(
        self, producer: ProducerProto[Any], *, topic: str = "", request: StoredMessage | None = None
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
