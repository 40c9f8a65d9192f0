"""The broker of the service."""

from cometmq import embedded
from cometmq.faststream import RocketBroker
from cometmq.faststream.opentelemetry import RocketTelemetryMiddleware
from orders.settings import settings

kind, _, folder = settings.broker.partition(":")
servers = embedded.open(
    folder if kind == "embedded" else "data",
    name_servers="" if kind == "embedded" else settings.broker,
    settings={"recallMessageEnable": "true"},
)
"""Open it before the broker starts; it starts nothing if the setting names servers."""
broker = RocketBroker(
    servers, group="shop", middlewares=[RocketTelemetryMiddleware(include_messages_counters=True)]
)
