"""Spans and metrics of OpenTelemetry for a `RocketBroker`; needs ``faststream[otel]``."""

from __future__ import annotations

from functools import partial
from typing import Any

from faststream.message import StreamMessage
from faststream.opentelemetry import TelemetrySettingsProvider
from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME
from faststream.opentelemetry.middleware import TelemetryMiddleware
from opentelemetry.semconv.trace import SpanAttributes

from cometmq.faststream.message import messages_of
from cometmq.faststream.publisher import RocketPublishCommand


class SettingsProvider(TelemetrySettingsProvider[Any, RocketPublishCommand]):
    """Says what spans have."""

    messaging_system = "rocketmq"

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> dict[str, Any]:
        """Return the attributes of a consumed message or batch."""
        messages = messages_of(msg.raw_message)
        size_bytes = sum(len(each.body) for each in messages)
        return _attributes(msg.correlation_id, len(messages)) | {
            SpanAttributes.MESSAGING_MESSAGE_ID: msg.message_id,
            SpanAttributes.MESSAGING_MESSAGE_PAYLOAD_SIZE_BYTES: size_bytes,
            MESSAGING_DESTINATION_PUBLISH_NAME: messages[0].topic,
        }

    def get_consume_destination_name(self, msg: StreamMessage[Any]) -> str:
        """Return the topic."""
        return messages_of(msg.raw_message)[0].topic

    def get_publish_attrs_from_cmd(self, cmd: RocketPublishCommand) -> dict[str, Any]:
        """Return the attributes of what is published."""
        attributes = _attributes(cmd.correlation_id, len(cmd.batch_bodies))
        return attributes | {SpanAttributes.MESSAGING_DESTINATION_NAME: cmd.destination}

    def get_publish_destination_name(self, cmd: RocketPublishCommand) -> str:
        """Return the topic."""
        return cmd.destination


def _attributes(correlation_id: str | None, count: int) -> dict[str, Any]:
    return {
        SpanAttributes.MESSAGING_SYSTEM: SettingsProvider.messaging_system,
        SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: correlation_id,
    } | ({SpanAttributes.MESSAGING_BATCH_MESSAGE_COUNT: count} if count > 1 else {})


RocketTelemetryMiddleware = partial(
    TelemetryMiddleware[RocketPublishCommand],
    settings_provider_factory=lambda _: SettingsProvider(),
    include_messages_counters=True,
)
"""Traces what a broker consumes and publishes; arguments as for FastStream's."""
