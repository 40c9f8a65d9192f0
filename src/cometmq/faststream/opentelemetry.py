"""Spans and metrics of OpenTelemetry for a `RocketBroker`; needs ``faststream[otel]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faststream.opentelemetry import TelemetrySettingsProvider
from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME
from faststream.opentelemetry.middleware import TelemetryMiddleware
from opentelemetry.semconv.trace import SpanAttributes

from cometmq.faststream.message import messages_of
from cometmq.faststream.response import RocketPublishCommand

if TYPE_CHECKING:
    from faststream.message import StreamMessage
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import TracerProvider

SYSTEM = "rocketmq"
BATCH = SpanAttributes.MESSAGING_BATCH_MESSAGE_COUNT


class SettingsProvider(TelemetrySettingsProvider[Any, RocketPublishCommand]):
    """Says what spans have."""

    messaging_system = SYSTEM

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> dict[str, Any]:
        """Return the attributes of a consumed message or batch."""
        messages = messages_of(msg.raw_message)
        found = {
            SpanAttributes.MESSAGING_SYSTEM: SYSTEM,
            SpanAttributes.MESSAGING_MESSAGE_ID: msg.message_id,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: msg.correlation_id,
            SpanAttributes.MESSAGING_MESSAGE_PAYLOAD_SIZE_BYTES: sum(
                len(each.body) for each in messages
            ),
            MESSAGING_DESTINATION_PUBLISH_NAME: messages[0].topic,
        }
        return found if len(messages) == 1 else found | {BATCH: len(messages)}

    def get_consume_destination_name(self, msg: StreamMessage[Any]) -> str:
        """Return the topic."""
        return messages_of(msg.raw_message)[0].topic

    def get_publish_attrs_from_cmd(self, cmd: RocketPublishCommand) -> dict[str, Any]:
        """Return the attributes of what is published."""
        found = {
            SpanAttributes.MESSAGING_SYSTEM: SYSTEM,
            SpanAttributes.MESSAGING_DESTINATION_NAME: cmd.destination,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: cmd.correlation_id,
        }
        count = len(cmd.batch_bodies)
        return found if count < 2 else found | {BATCH: count}

    def get_publish_destination_name(self, cmd: RocketPublishCommand) -> str:
        """Return the topic."""
        return cmd.destination


class RocketTelemetryMiddleware(TelemetryMiddleware[RocketPublishCommand]):
    """Traces what a broker consumes and publishes; arguments as for FastStream's."""

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        meter: Meter | None = None,
        include_messages_counters: bool = True,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: SettingsProvider(),
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            meter=meter,
            include_messages_counters=include_messages_counters,
        )
