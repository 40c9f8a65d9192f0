"""Metrics of Prometheus for a `RocketBroker`; needs ``faststream[prometheus]``."""

from __future__ import annotations

from functools import partial
from typing import Any

from faststream.message import StreamMessage
from faststream.prometheus import ConsumeAttrs, MetricsSettingsProvider
from faststream.prometheus.middleware import PrometheusMiddleware

from cometmq.faststream.message import messages_of
from cometmq.faststream.publisher import RocketPublishCommand


class SettingsProvider(MetricsSettingsProvider[Any, RocketPublishCommand]):
    """Says what metrics count."""

    messaging_system = "rocketmq"

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> ConsumeAttrs:
        """Return topic, bytes and number of what is consumed."""
        messages = messages_of(msg.raw_message)
        return {
            "destination_name": messages[0].topic,
            "message_size": sum(len(each.body) for each in messages),
            "messages_count": len(messages),
        }

    def get_publish_destination_name_from_cmd(self, cmd: RocketPublishCommand) -> str:
        """Return the topic."""
        return cmd.destination


RocketPrometheusMiddleware = partial(
    PrometheusMiddleware[Any, RocketPublishCommand],
    settings_provider_factory=lambda _: SettingsProvider(),
)
"""Counts what a broker consumes and publishes; arguments as for FastStream's."""
