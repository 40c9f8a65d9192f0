"""Spans, and the metrics of Prometheus beside them."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from cometmq.faststream import RocketBroker, TestRocketBroker
from cometmq.faststream.opentelemetry import RocketTelemetryMiddleware
from cometmq.faststream.prometheus import RocketPrometheusMiddleware


async def test_spans_and_metrics_name_the_topic() -> None:
    spans, registry = InMemorySpanExporter(), CollectorRegistry()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    broker = RocketBroker(
        logger=None,
        middlewares=[
            RocketTelemetryMiddleware(tracer_provider=provider),
            RocketPrometheusMiddleware(registry=registry),
        ],
    )

    @broker.subscriber("orders")
    async def bill(body: Any) -> None: ...

    @broker.subscriber("many", batch=True)
    async def many(bodies: list[Any]) -> None: ...

    @broker.transaction("placed", group="shop")
    async def place(body: str) -> None: ...

    place.check(place)

    async with TestRocketBroker(broker) as br:
        await br.publish("a", "orders")
        await place("a", keys=["1"])
        await br.publish_batch("a", "b", topic="many")
    by_name = {span.name: dict(span.attributes or {}) for span in spans.get_finished_spans()}
    assert by_name["orders publish"]["messaging.system"] == "rocketmq"
    assert by_name["orders process"]["messaging.destination_publish.name"] == "orders"
    assert by_name["many process"]["messaging.batch.message_count"] == 2
    assert by_name["placed publish"]["messaging.destination.name"] == "placed"
    text = generate_latest(registry).decode()
    labels = 'broker="rocketmq",handler="orders"'
    assert f"faststream_received_messages_total{{{'app_name='}" in text
    assert labels in text
