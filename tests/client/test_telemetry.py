"""A message is followed from its send to its handler, and both are counted."""

from __future__ import annotations

import asyncio
import threading

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from cometmq.client import (
    ClientInstance,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    StoredMessage,
    blocking,
)
from cometmq.client.telemetry import MetricHooks, TracingHooks
from support.clients.consumer_inputs import from_the_first

CAME_S = 120.0


class Recorder:
    """Hooks, and what they recorded."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = MetricHooks(self.registry)
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")
        self.hooks = [TracingHooks(provider), self.metrics]

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"cometmq_client_{name}", labels)


async def test_handlers_spans_are_linked_to_the_send(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    recorder, topic, came = Recorder(), queues[0].topic, asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        with recorder.tracer.start_as_current_span("work"):
            came.set()

    async with Producer(instance=instance, group="shop", hooks=recorder.hooks) as producer:
        receipt = await producer.send(Message(topic=topic, body=b"a hat", keys=["order-1"]))
    async with PushConsumer(
        instance=instance, handler=handle, **from_the_first(group, topic), hooks=recorder.hooks
    ):
        async with asyncio.timeout(CAME_S):
            await came.wait()

    (sent,), (processed,) = recorder.spans(f"send {topic}"), recorder.spans(f"process {topic}")
    (work,) = recorder.spans("work")
    assert [link.context.span_id for link in processed.links] == [sent.context.span_id]
    assert work.parent is not None
    assert work.parent.span_id == processed.context.span_id
    for span in (sent, processed):
        assert (span.attributes or {})["messaging.message.id"] == receipt.message_id
        assert span.status.status_code is trace.StatusCode.UNSET


async def test_spans_of_failures_say_what_failed(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    recorder, topic, came = Recorder(), queues[0].topic, asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        came.set()
        raise KeyError("stock")

    async with Producer(instance=instance, group="shop") as producer:
        await producer.send(Message(topic=topic, body=b"a hat"))
    async with PushConsumer(
        instance=instance, handler=handle, **from_the_first(group, topic), hooks=recorder.hooks
    ):
        async with asyncio.timeout(CAME_S):
            await came.wait()

    (span,) = recorder.spans(f"process {topic}")
    assert (span.attributes or {})["error.type"] == "KeyError"
    assert (
        recorder.value("handled_messages_total", group=group, topic=topic, outcome="EXCEPTION") == 1
    )


async def test_sends_and_deliveries_are_counted(
    instance: ClientInstance, queues: list[MessageQueue], group: str
) -> None:
    recorder, topic, came = Recorder(), queues[0].topic, asyncio.Semaphore(0)

    def handle(message: StoredMessage) -> None:
        loop.call_soon_threadsafe(came.release)

    loop = asyncio.get_running_loop()
    async with Producer(instance=instance, group="shop", hooks=recorder.hooks) as producer:
        for _ in range(3):
            await producer.send(Message(topic=topic, body=b"a hat"))
        await producer.send_batch([Message(topic=topic, body=b"a hat") for _ in range(5)])
        await producer.send_oneway(Message(topic=topic, body=b"a hat"))
        await producer.send_nowait(Message(topic=topic, body=b"a hat"))
    async with PushConsumer(
        instance=instance, handler=handle, **from_the_first(group, topic), hooks=recorder.hooks
    ) as consumer:
        recorder.metrics.watch(consumer)
        async with asyncio.timeout(CAME_S):
            for _ in range(10):
                await came.acquire()
        queues_held = recorder.value("queues", group=group, topic=topic)

    assert recorder.value("sends_total", group="shop", topic=topic, outcome="SEND_OK") == 5
    assert recorder.value("sends_total", group="shop", topic=topic, outcome="ONEWAY") == 1
    assert recorder.value("sent_messages_total", group="shop", topic=topic) == 10
    assert recorder.value("send_seconds_count", group="shop", topic=topic) == 6
    success = {"group": group, "topic": topic, "outcome": "SUCCESS"}
    assert recorder.value("handled_messages_total", **success) == 10
    assert recorder.value("delivery_seconds_count", group=group, topic=topic) == 10
    assert queues_held == 4


def test_blocking_consumer_is_watched_from_any_thread(name_servers: str, group: str) -> None:
    recorder, came, topic = Recorder(), threading.Semaphore(0), f"{group}-topic"
    with blocking.AdminClient(name_servers) as admin:
        admin.create_topic(topic, queues=3)
    with blocking.Producer(name_servers, group="shop", hooks=recorder.hooks) as producer:
        producer.send(Message(topic=topic, body=b"a hat"))
    with blocking.PushConsumer(
        name_servers,
        handler=lambda message: came.release(),
        **from_the_first(group, topic),
        hooks=recorder.hooks,
    ) as consumer:
        recorder.metrics.watch(consumer)
        assert came.acquire(timeout=CAME_S)

        assert recorder.value("queues", group=group, topic=topic) == 3
