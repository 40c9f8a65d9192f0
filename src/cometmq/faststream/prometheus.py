"""Metrics of Prometheus for a `RocketBroker`; needs ``faststream[prometheus]``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from faststream._internal.constants import EMPTY
from faststream.prometheus import ConsumeAttrs, MetricsSettingsProvider
from faststream.prometheus.middleware import PrometheusMiddleware

from cometmq.faststream.message import messages_of
from cometmq.faststream.response import RocketPublishCommand

if TYPE_CHECKING:
    from faststream.message import StreamMessage
    from prometheus_client import CollectorRegistry


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


class RocketPrometheusMiddleware(PrometheusMiddleware[Any, RocketPublishCommand]):
    """Counts what a broker consumes and publishes; arguments as for FastStream's."""

    def __init__(
        self,
        *,
        registry: CollectorRegistry,
        app_name: str = EMPTY,
        metrics_prefix: str = "faststream",
        received_messages_size_buckets: Sequence[float] | None = None,
        custom_labels: dict[str, str | Callable[[Any], str]] | None = None,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: SettingsProvider(),
            registry=registry,
            app_name=app_name,
            metrics_prefix=metrics_prefix,
            received_messages_size_buckets=received_messages_size_buckets,
            custom_labels=custom_labels,
        )
