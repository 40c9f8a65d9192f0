"""Spans and metrics say what became of sends and deliveries, and nothing of bodies."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from cometmq.client import PullConsumer, SimpleConsumer
from cometmq.client.errors import ClientError
from cometmq.client.hooks import (
    ConsumeEnd,
    DeliveryContext,
    FailedMessage,
    SendContext,
    SendKind,
)
from cometmq.client.receipt import SendReceipt, SendStatus
from cometmq.client.telemetry import MetricHooks, TracingHooks, prometheus
from cometmq.model.errors import ResponseError
from cometmq.model.message import Message, StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.client import ConsumerRunningInfo, ProcessQueueInfo
from unit.client.idempotent.test_consumer import message as stored

QUEUE = MessageQueue("orders", "broker-a", 3)


def sending(*messages: Message, **changes: object) -> SendContext:
    sent = messages or (Message("orders", b"secret body", tags="new", keys=["order-1"]),)
    return SendContext(group="shop", client_id="me@1", messages=sent, **changes)  # type: ignore[arg-type]


def receipt(status: SendStatus = SendStatus.SEND_OK) -> SendReceipt:
    return SendReceipt(status, "the-id", "an-offset-id", QUEUE, QueueOffset(7))


def delivery(*messages: StoredMessage) -> DeliveryContext:
    return DeliveryContext(
        group="shop", client_id="me@1", queue=QUEUE, messages=messages or (stored(),)
    )


def test_metrics_count_retries_and_dead_letters_by_the_topic_of_the_message() -> None:
    registry = CollectorRegistry()
    hooks = MetricHooks(registry)
    failed = FailedMessage("shop", "me@1", stored(), 2, ValueError("no"))
    hooks.retried(failed)
    hooks.dead_lettered(failed)
    again = DeliveryContext(
        group="shop",
        client_id="me@1",
        queue=MessageQueue("%RETRY%shop", "broker-a", 0),
        messages=[stored()],
        end=ConsumeEnd.SUCCESS,
    )
    hooks.before(again)
    hooks.after(again)

    shown = generate_latest(registry).decode()
    labels = f'{{group="shop",topic="{stored().topic}"}} 1.0'
    assert f"cometmq_client_retried_messages_total{labels}" in shown
    assert f"cometmq_client_dead_letters_total{labels}" in shown
    assert "%RETRY%" not in shown


class Spans:
    """The hooks, and what they recorded."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.hooks = TracingHooks(provider)

    def ended(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def send(self, context: SendContext, error: BaseException | None = None) -> ReadableSpan:
        """What a sender does."""
        self.hooks.before_send(context)
        context.queue, context.address, context.attempts = QUEUE, "10.0.0.1:10911", 1
        context.message_id = "the-id"
        context.receipt, context.error = (None, error) if error else (receipt(), None)
        self.hooks.after_attempt(context)
        self.hooks.after_send(context)
        return self.ended()[-1]

    def deliver(
        self, context: DeliveryContext, end: ConsumeEnd, error: BaseException | None = None
    ) -> ReadableSpan:
        """What a consumer does."""
        self.hooks.before(context)
        context.end, context.error = end, error
        self.hooks.after(context)
        return self.ended()[-1]


@pytest.fixture
def spans() -> Spans:
    return Spans()


def test_span_of_a_send_follows_the_conventions(spans: Spans) -> None:
    span = spans.send(sending(kind=SendKind.ORDERED, namespace="north"))

    assert (span.name, span.kind) == ("send orders", trace.SpanKind.PRODUCER)
    assert span.status.status_code is trace.StatusCode.UNSET
    assert dict(span.attributes or {}) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "broker-a/3",
        "messaging.client.id": "me@1",
        "messaging.message.id": "the-id",
        "messaging.message.body.size": 11,
        "messaging.rocketmq.client_group": "shop",
        "messaging.rocketmq.message.type": "fifo",
        "messaging.rocketmq.message.tag": "new",
        "messaging.rocketmq.message.keys": ("order-1",),
        "messaging.rocketmq.namespace": "north",
        "server.address": "10.0.0.1",
        "server.port": 10911,
        "cometmq.send.status": "SEND_OK",
    }


def test_body_is_in_no_span(spans: Spans) -> None:
    spans.send(sending())
    spans.deliver(delivery(), ConsumeEnd.SUCCESS)

    assert not any("secret" in span.to_json() for span in spans.ended())


def test_context_of_the_send_travels_with_every_message_of_a_batch(spans: Spans) -> None:
    shared = {"a": "1"}
    messages = [Message("orders", b"x", properties=shared) for _ in range(2)]
    span = spans.send(sending(*messages))
    made = span.context
    expected = f"00-{made.trace_id:032x}-{made.span_id:016x}-{int(made.trace_flags):02x}"

    assert [m.properties for m in messages] == [{"a": "1", "traceparent": expected}] * 2
    assert shared == {"a": "1"}
    assert (span.attributes or {})["messaging.batch.message_count"] == 2


def test_send_is_a_child_of_the_callers_span(spans: Spans) -> None:
    with trace.get_tracer("test", tracer_provider=TracerProvider()).start_as_current_span("caller"):
        outer = trace.get_current_span().get_span_context()
        span = spans.send(sending())

    assert span.parent is not None
    assert span.parent.span_id == outer.span_id


def test_failed_send_is_an_error_with_its_tries(spans: Spans) -> None:
    span = spans.send(sending(), ResponseError(14, "no space"))

    assert span.status.status_code is trace.StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "14"
    assert [event.name for event in span.events] == ["attempt failed", "exception"]


def test_span_of_a_delivery_links_to_the_sends(spans: Spans) -> None:
    sent = [Message("orders", b"x"), Message("orders", b"y")]
    sends = [spans.send(sending(message)) for message in sent]
    got = [stored(f"order-{n}", **message.properties) for n, message in enumerate(sent)]
    span = spans.deliver(delivery(*got, stored("without")), ConsumeEnd.SUCCESS)

    assert (span.name, span.kind) == ("process orders", trace.SpanKind.CONSUMER)
    assert [link.context.span_id for link in span.links] == [s.context.span_id for s in sends]
    assert (span.attributes or {})["messaging.consumer.group.name"] == "shop"
    assert (span.attributes or {})["messaging.batch.message_count"] == 3


def test_span_is_current_while_the_handler_runs_and_not_after(spans: Spans) -> None:
    context = delivery()
    spans.hooks.before(context)
    inside = trace.get_current_span().get_span_context()
    context.end = ConsumeEnd.SUCCESS
    spans.hooks.after(context)

    assert inside.span_id == spans.ended()[-1].context.span_id
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.parametrize("end", [ConsumeEnd.FAILED, ConsumeEnd.TIMEOUT])
def test_delivery_that_is_not_done_is_an_error(spans: Spans, end: ConsumeEnd) -> None:
    span = spans.deliver(delivery(), end)

    assert span.status.status_code is trace.StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == end.name


def test_handlers_exception_is_recorded(spans: Spans) -> None:
    span = spans.deliver(delivery(), ConsumeEnd.EXCEPTION, KeyError("stock"))

    assert (span.attributes or {})["error.type"] == "KeyError"
    assert [event.name for event in span.events] == ["exception"]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"cometmq_client_{name}", {"group": "shop"} | labels)


@pytest.mark.parametrize(
    ("result", "outcome", "messages"),
    [
        (receipt(), "SEND_OK", 2.0),
        (receipt(SendStatus.FLUSH_DISK_TIMEOUT), "FLUSH_DISK_TIMEOUT", 2.0),
        (ResponseError(14, "full"), "ResponseError", None),
        (None, "ONEWAY", 2.0),
    ],
)
def test_sends_are_counted_by_their_outcome(
    registry: CollectorRegistry, result: object, outcome: str, messages: float | None
) -> None:
    hooks = MetricHooks(registry)
    context = sending(Message("orders", b"x"), Message("orders", b"y"), attempts=3, cost_ms=20.0)
    if isinstance(result, SendReceipt):
        context.receipt = result
    elif isinstance(result, BaseException):
        context.error = result
    hooks.after_send(context)

    assert value(registry, "sends_total", topic="orders", outcome=outcome) == 1
    assert value(registry, "sent_messages_total", topic="orders") == messages
    assert value(registry, "send_attempts_total", topic="orders") == 3
    assert value(registry, "send_seconds_sum", topic="orders") == pytest.approx(0.02)


def test_deliveries_are_counted_and_timed(registry: CollectorRegistry) -> None:
    hooks = MetricHooks(registry)
    again = stored()
    again.reconsume_times = 2
    context = delivery(stored(), again)
    hooks.before(context)
    context.end, context.cost_ms = ConsumeEnd.FAILED, 1500.0
    hooks.after(context)

    assert value(registry, "handled_messages_total", topic="orders", outcome="FAILED") == 2
    assert value(registry, "handler_seconds_sum", topic="orders") == pytest.approx(1.5)
    assert value(registry, "redelivered_messages_total", topic="orders") == 1
    assert value(registry, "delivery_seconds_count", topic="orders") == 2


class Holding:
    """A consumer as the hooks know it."""

    group = "shop"

    def queues(self) -> list[MessageQueue]:
        return [QUEUE, MessageQueue("orders", "broker-a", 4)]

    def running_info(self) -> ConsumerRunningInfo:
        asyncio.get_running_loop()
        return ConsumerRunningInfo(mq_table={QUEUE: ProcessQueueInfo(cached_msg_count=5)})


async def test_what_a_consumer_holds_is_asked_in_its_own_loop(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "STATE_S", 60.0)
    hooks, consumer = MetricHooks(registry), Holding()
    hooks.watch(consumer)
    hooks.before(delivery(stored(MAX_OFFSET="18")))

    for collect in (generate_latest, lambda r: asyncio.to_thread(generate_latest, r)):
        page = collect(registry)
        text = page if isinstance(page, bytes) else await page
        assert b'cometmq_client_queues{group="shop",topic="orders"} 2.0' in text
        assert b'cometmq_client_buffered_messages{group="shop",topic="orders"} 5.0' in text
        assert b'cometmq_client_lag_messages{group="shop",topic="orders"} 10.0' in text


def test_gauges_have_topics_without_the_namespace(registry: CollectorRegistry) -> None:
    class Inside(Holding):
        def running_info(self) -> ConsumerRunningInfo:
            wrapped = MessageQueue("north%orders", QUEUE.broker_name, QUEUE.queue_id)
            return ConsumerRunningInfo(
                properties={"namespace": "north"},
                mq_table={wrapped: ProcessQueueInfo(cached_msg_count=5)},
            )

    hooks, consumer = MetricHooks(registry), Inside()
    hooks.watch(consumer)

    assert value(registry, "buffered_messages", group="shop", topic="orders") == 5
    assert value(registry, "buffered_messages", group="shop", topic="north%orders") is None


async def test_a_pull_consumer_has_gauges(registry: CollectorRegistry) -> None:
    async with PullConsumer("127.0.0.1:1", group="shop") as consumer:
        MetricHooks(registry).watch(consumer)
        await consumer.assign([QUEUE])

        page = generate_latest(registry)

    assert b'cometmq_client_queues{group="shop",topic="orders"} 1.0' in page
    assert b'cometmq_client_buffered_messages{group="shop",topic="orders"} 0.0' in page


@pytest.mark.parametrize("watched", [SimpleConsumer, PullConsumer, "consumer"])
async def test_what_has_no_gauges_is_refused(registry: CollectorRegistry, watched: Any) -> None:
    if watched is SimpleConsumer:
        watched = SimpleConsumer("127.0.0.1:1", group="shop")
    with pytest.raises(TypeError, match=r"watch was given .*: expected a PushConsumer"):
        MetricHooks(registry).watch(watched)

    generate_latest(registry)


def test_consumer_with_a_loop_is_watched_inside_of_it(registry: CollectorRegistry) -> None:
    class Looping(Holding):
        async def close(self) -> None: ...

    with pytest.raises(ClientError, match="in its event loop"):
        MetricHooks(registry).watch(Looping())


async def test_consumer_that_is_gone_is_asked_no_more(registry: CollectorRegistry) -> None:
    hooks = MetricHooks(registry)
    hooks.watch(Holding())

    assert b"cometmq_client_queues{" not in generate_latest(registry)


def test_consumer_whose_loop_has_ended_does_not_break_the_page(registry: CollectorRegistry) -> None:
    hooks, consumer = MetricHooks(registry), Holding()

    async def watch() -> None:
        hooks.watch(consumer)

    asyncio.run(watch())

    assert b"cometmq_client_queues{" not in generate_latest(registry)


WITHOUT_EXTRAS = """
import sys, cometmq.client, cometmq.client.idempotent, cometmq.client.telemetry
from cometmq.model.errors import ConfigError
extras = ("opentelemetry", "prometheus_client", "sqlalchemy")
print([name for name in extras if name in sys.modules])
sys.modules.update(dict.fromkeys(extras))
for line in (
    "from cometmq.client.telemetry import TracingHooks",
    "from cometmq.client.telemetry import MetricHooks",
    "from cometmq.client.idempotent.sqlalchemy import SqlAlchemyMarks",
):
    try:
        exec(line)
        print("imported")
    except ConfigError as error:
        print(str(error).replace("\\n", " "))
"""


def test_client_loads_no_extra_and_names_a_missing_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip

    loaded, *errors = done.stdout.splitlines()
    assert loaded == "[]"
    assert [
        extra
        for extra, error in zip(("otel", "prometheus", "sql"), errors, strict=True)
        if f"install CometMQ with the extra {extra!r}" not in error
    ] == []
