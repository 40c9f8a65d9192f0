"""Count sends and deliveries in metrics, and trace a message with spans.

It prints both after Ctrl-C. Needs ``pip install '.[otel,prometheus]' opentelemetry-sdk``.
"""

import asyncio
import sys

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY

from cometmq.client import Message, Producer, PushConsumer, StartFrom, StoredMessage
from cometmq.client.telemetry import MetricHooks, TracingHooks

TOPIC = "measured"


async def measure(message: StoredMessage) -> None:
    print(f"measured {message.body.decode()}")


async def main(name_server: str = "127.0.0.1:9876") -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    hooks = (TracingHooks(provider), MetricHooks())

    async with Producer(name_server, group="shop", hooks=hooks) as producer:
        await producer.send(Message(topic=TOPIC, body=b"a hat"))
    consumer = PushConsumer(
        name_server,
        group="museum",
        handler=measure,
        subscriptions={TOPIC: "*"},
        start_from=StartFrom.FIRST,
        hooks=hooks,
    )
    await consumer.run()

    sent, processed = spans.get_finished_spans()
    linked = processed.links[0].context.span_id == sent.context.span_id
    print(f"{processed.name!r} is linked to {sent.name!r}: {linked}")
    labels = {"group": "shop", "topic": TOPIC, "outcome": "SEND_OK"}
    print(f"sends: {REGISTRY.get_sample_value('cometmq_client_sends_total', labels):.0f}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
