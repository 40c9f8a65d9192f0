"""OpenTelemetry spans: one for each send, one for each call of a handler, linked by the message.

    send orders     PRODUCER   its context travels as message properties (``traceparent``)
    process orders  CONSUMER   links to the sends of its messages; current while the handler runs

Names and attributes follow OpenTelemetry's conventions for messaging; bodies are never recorded.
Source: semantic conventions 1.30, messaging spans and RocketMQ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cometmq import __version__
from cometmq.client.hooks import (
    ConsumeEnd,
    ConsumeHook,
    DeliveryContext,
    SendContext,
    SendHook,
    SendKind,
)
from cometmq.model.errors import ConfigError, ResponseError
from cometmq.model.message import Message, StoredMessage
from cometmq.protocol.lazy_record import body_or_stored

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.util.types import AttributeValue
except ImportError as error:
    raise ConfigError("spans need OpenTelemetry: install CometMQ with the extra 'otel'") from error

LINKS_MAX = 128
"""Links of one span; what a batch has beyond is left out."""
_SPAN, _TOKEN = "otel.span", "otel.token"
_KINDS = {
    SendKind.NORMAL: "normal",
    SendKind.DELAYED: "delay",
    SendKind.ORDERED: "fifo",
    SendKind.TRANSACTION_HALF: "transaction",
    SendKind.TRANSACTION_COMMIT: "transaction",
}


class TracingHooks(SendHook, ConsumeHook):
    """Records spans. One object serves any number of producers and consumers.

    Args:
        tracer_provider: the provider of the spans; None for the process's provider.

    The process's propagators write contexts into messages and read them: by default
    ``traceparent`` and ``baggage``.

    Example: ``Producer("127.0.0.1:9876", group="shop", hooks=[TracingHooks()])``
    """

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("cometmq.client", __version__, tracer_provider)

    def before_send(self, context: SendContext) -> None:
        """Start a span, and add its context to the messages."""
        topic = context.messages[0].topic
        span = self._tracer.start_span(
            f"send {topic}", kind=trace.SpanKind.PRODUCER, attributes=_of_send(context, topic)
        )
        context.notes[_SPAN] = span
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        for message in context.messages:
            # A dictionary of its own: the application may share one among messages.
            message.properties = {**message.properties, **carrier}

    def after_attempt(self, context: SendContext) -> None:
        """Record a failed attempt."""
        span = context.notes.get(_SPAN)
        if span is not None and context.error is not None:
            span.add_event(
                "attempt failed",
                {"server.address": context.address, "error.type": _error_type(context.error)},
            )

    def after_send(self, context: SendContext) -> None:
        """End the span."""
        span = context.notes.pop(_SPAN, None)
        if span is None:
            return
        span.set_attributes(_of_queue(context))
        _end(span, context.error)

    def before(self, context: DeliveryContext) -> None:
        """Start a span that is current while the handler runs."""
        span = self._tracer.start_span(
            f"process {context.queue.topic}",
            kind=trace.SpanKind.CONSUMER,
            attributes=_of_delivery(context),
            links=_links(context.messages),
        )
        context.notes[_SPAN] = span
        context.notes[_TOKEN] = contexts.attach(trace.set_span_in_context(span))

    def after(self, context: DeliveryContext) -> None:
        """End the span, as an error unless the messages are consumed."""
        span, token = context.notes.pop(_SPAN, None), context.notes.pop(_TOKEN, None)
        if token is not None:
            contexts.detach(token)
        if span is None:
            return
        failed = context.end not in (None, ConsumeEnd.SUCCESS)
        _end(span, context.error, failure=context.end.name if failed and context.end else "")


def _of_send(context: SendContext, topic: str) -> dict[str, AttributeValue]:
    found = _common("send", topic, context.client_id, context.namespace)
    found["messaging.rocketmq.client_group"] = context.group
    found["messaging.rocketmq.message.type"] = _KINDS[context.kind]
    found |= _of_messages(context.messages)
    if len(context.messages) == 1 and context.messages[0].delay_level:
        found["messaging.rocketmq.message.delay_time_level"] = context.messages[0].delay_level
    return found


def _of_queue(context: SendContext) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {}
    if context.message_id and len(context.messages) == 1:
        found["messaging.message.id"] = context.message_id
    if context.queue is not None:
        found["messaging.destination.partition.id"] = (
            f"{context.queue.broker_name}/{context.queue.queue_id}"
        )
    host, _, port = context.address.rpartition(":")
    if host:
        found["server.address"] = host
        found["server.port"] = int(port)
    if context.receipt is not None:
        found["cometmq.send.status"] = context.receipt.status.name
    return found


def _of_delivery(context: DeliveryContext) -> dict[str, AttributeValue]:
    found = _common("process", context.queue.topic, context.client_id, context.namespace)
    found["messaging.consumer.group.name"] = context.group
    found["messaging.destination.partition.id"] = (
        f"{context.queue.broker_name}/{context.queue.queue_id}"
    )
    found |= _of_messages(context.messages)
    if len(context.messages) == 1:
        found["messaging.message.id"] = context.messages[0].message_id
        found["cometmq.message.reconsume_times"] = context.messages[0].reconsume_times
    return found


def _common(
    operation: str, topic: str, client_id: str, namespace: str
) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
        "messaging.client.id": client_id,
    }
    if namespace:
        found["messaging.rocketmq.namespace"] = namespace
    return found


def _body(message: Message | StoredMessage) -> bytes | bytearray | memoryview:
    return body_or_stored(message) if isinstance(message, StoredMessage) else message.body


def _of_messages(
    messages: Sequence[Message] | Sequence[StoredMessage],
) -> dict[str, AttributeValue]:
    if len(messages) != 1:
        return {"messaging.batch.message_count": len(messages)}
    message = messages[0]
    found: dict[str, AttributeValue] = {"messaging.message.body.size": len(_body(message))}
    if message.tags:
        found["messaging.rocketmq.message.tag"] = message.tags
    keys = [message.keys] if isinstance(message.keys, str) else list(message.keys)
    if keys:
        found["messaging.rocketmq.message.keys"] = keys
    return found


def _links(messages: Sequence[StoredMessage]) -> list[trace.Link]:
    found = (_sent_in(message.properties) for message in messages[:LINKS_MAX])
    return [trace.Link(context) for context in found if context.is_valid]


def _sent_in(properties: Mapping[str, str]) -> trace.SpanContext:
    extracted = propagate.extract(properties, contexts.Context())
    return trace.get_current_span(extracted).get_span_context()


def _end(span: trace.Span, error: BaseException | None, *, failure: str = "") -> None:
    if error is not None:
        failure = _error_type(error)
        span.record_exception(error)
    if failure:
        span.set_attribute("error.type", failure)
        span.set_status(trace.StatusCode.ERROR, failure)
    span.end()


def _error_type(error: BaseException) -> str:
    """The response code when a broker refused, else the name of the class."""
    return str(error.code) if isinstance(error, ResponseError) else type(error).__qualname__
