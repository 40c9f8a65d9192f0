"""The arguments of subscribers, publishers and publishes, under the names that FastStream has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from fast_depends import Provider
from fast_depends.dependencies import Dependant
from fast_depends.library.serializer import SerializerProto
from faststream._internal.basic_types import LoggerProto
from faststream._internal.context.repository import ContextRepo
from faststream._internal.parser import CodecProto
from faststream._internal.types import BrokerMiddleware, CustomCallable, IdGenerator
from faststream.middlewares import AckPolicy
from faststream.specification.schema.extra import Tag, TagDict

from cometmq.client.options import PushOnlyOptions, SimpleOnlyOptions
from cometmq.client.retry_policies import Retry
from cometmq.client.settings import near_names


class SendOptions(TypedDict, total=False):
    """How a message is sent."""

    tags: str | None
    """The tag, by which subscribers filter."""
    keys: Iterable[str]
    """Keys, by which operators find the message."""
    key: str | None
    """The order key: ``ordered`` subscribers consume messages with the same key in order."""
    delay: float | timedelta
    """Deliver this many seconds, or a timedelta, after the send; needs a broker's timers."""
    deliver_at: datetime | int | None
    """Deliver at this time: a datetime with a time zone, or ms since 1970."""
    delay_level: int
    """A delay level of the broker, for brokers without timers."""
    headers: dict[str, Any] | None
    """Properties of the message; values become text."""
    reply_to: str
    """The topic to which the consumer sends its result."""


class PublishOptions(SendOptions, total=False):
    """How one message is published."""

    correlation_id: str | None
    timeout: float | None
    """Seconds; by default the setting ``timeout_ms``, and 0.5 for the reply of a request."""


class PublisherOptions(SendOptions, total=False):
    """A publisher."""

    batch: bool
    """Whether what a handler returns is a sequence of messages, sent as one batch."""
    persistent: bool
    title: str | None
    description: str | None
    schema: Any
    include_in_schema: bool


class SubscriberOptions(TypedDict, total=False):
    """A subscriber."""

    group: str
    """The consumer group of this subscriber alone; by default of broker, topic and handler."""
    tags: str
    """Only messages with one of these tags: ``paid || sent``."""
    sql: str
    """Only messages whose properties match an SQL92 expression; needs ``enablePropertyFilter``."""
    auto_offset_reset: Literal["earliest", "latest"]
    """Where a new group starts; ``earliest`` by default, so that nothing is lost."""
    max_workers: int
    """Messages that are handled at a time, 20 by default; with ``ordered``, queues."""
    ordered: bool
    """Handle the messages of a queue one after the other; a failed one again before the next."""
    broadcast: bool
    """Every process gets every message. Failed ones are dropped."""
    batch: bool
    """The handler gets lists of up to ``max_records`` messages of a queue that are there."""
    max_records: int
    pop: bool
    """Let brokers hand out single messages: a slow one holds up no other, and each is acknowledged
    on its own. Needs brokers of RocketMQ 5, or CometMQ's."""
    invisible: float | timedelta
    """How long a popped message is for this process alone, 60 s by default; it begins anew."""
    retry: Retry | None
    """When a failed message is redelivered; None for the brokers' growing delays."""
    settings: PushOnlyOptions | SimpleOnlyOptions
    """Settings of the `PushConsumer`, or with ``pop`` of the `SimpleConsumer`, by name."""
    ack_policy: AckPolicy
    """``NACK_ON_ERROR`` by default."""
    no_reply: bool
    dependencies: Sequence[Dependant]
    parser: CustomCallable | None
    decoder: CustomCallable | None
    codec: CodecProto | None
    persistent: bool
    title: str | None
    description: str | None
    include_in_schema: bool


class IncludeOptions(TypedDict, total=False):
    """How a router is included."""

    prefix: str
    dependencies: Sequence[Dependant]
    middlewares: Sequence[BrokerMiddleware[Any, Any]]
    include_in_schema: bool | None


class RegistratorOptions(TypedDict, total=False):
    """What brokers and routers have for all their subscribers; as FastStream's other brokers."""

    dependencies: Sequence[Dependant]
    middlewares: Sequence[BrokerMiddleware[Any, Any]]
    parser: CustomCallable | None
    decoder: CustomCallable | None
    ack_policy: AckPolicy


class BrokerOptions(RegistratorOptions, total=False):
    """A broker; as FastStream's other brokers."""

    codec: CodecProto | None
    graceful_timeout: float | None
    """Seconds for which a stop waits for handlers, 15 by default."""
    id_generator: IdGenerator
    logger: LoggerProto | None
    log_level: int
    apply_types: bool
    serializer: SerializerProto | None
    provider: Provider | None
    context: ContextRepo | None
    specification_url: str | Iterable[str] | None
    protocol: str | None
    protocol_version: str | None
    description: str | None
    tags: Iterable[Tag | TagDict]


def check_names(where: str, options: Mapping[str, Any], kind: Any) -> None:
    """Refuse names that are no options of this kind: Python does not, and a filter may get lost."""
    for name in options.keys() - kind.__optional_keys__:
        near = near_names(name, kind.__optional_keys__)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise TypeError(f"{where}: there is no option {name!r}{hint}")
