"""Prometheus metrics of sends and deliveries, and of what consumers hold.

    cometmq_client_sends_total{group,topic,outcome}             by status, or by the error's class
    cometmq_client_sent_messages_total{group,topic}             stored, as responses confirm
    cometmq_client_send_seconds{group,topic}                    whole sends, all attempts together
    cometmq_client_send_attempts_total{group,topic}             one or more for each send
    cometmq_client_handled_messages_total{group,topic,outcome}  by how the handler's call ended
    cometmq_client_handler_seconds{group,topic}                 calls of the handler
    cometmq_client_delivery_seconds{group,topic}                from last storing to handler's call
    cometmq_client_redelivered_messages_total{group,topic}      delivered again
    cometmq_client_retried_messages_total{group,topic}          failed, and to be delivered again
    cometmq_client_dead_letters_total{group,topic}              failed for the last time
    cometmq_client_queues{group,topic}                          a watched consumer's queues
    cometmq_client_buffered_messages{group,topic}               fetched and not consumed yet
    cometmq_client_lag_messages{group,topic}                    stored after what was consumed last

Times are in seconds. The topic is the one that a message was sent to, for redeliveries too; only
the last three metrics have the retry topic of a group, which has queues of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter as Sums
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from typing import Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from cometmq.client._connection.identity import Namespace
from cometmq.client.errors import ClientError
from cometmq.client.hooks import (
    ConsumeHook,
    DeliveryContext,
    FailedMessage,
    SendContext,
    SendHook,
)
from cometmq.model import property_names as names
from cometmq.model.errors import CometError, ConfigError
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.model.times import now_ms
from cometmq.protocol.bodies.client import ConsumerRunningInfo

try:
    from prometheus_client import REGISTRY, Counter, Histogram
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector, CollectorRegistry
except ImportError as error:
    raise ConfigError(
        "metrics need prometheus-client: install CometMQ with the extra 'prometheus'"
    ) from error

log = logging.getLogger(__name__)

LABELS = ("group", "topic")
BY_OUTCOME = (*LABELS, "outcome")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
STATE_S = 1.0
"""Time for a consumer's loop to return its state to another thread."""


@runtime_checkable
class Watched(Protocol):
    """A consumer with gauges: its queues and its fetched messages."""

    @property
    def group(self) -> str:
        """Its group."""

    def queues(self) -> Collection[MessageQueue]:
        """The queues it has now."""

    def running_info(self) -> ConsumerRunningInfo:
        """Return the state of each queue."""


class MetricHooks(SendHook, ConsumeHook):
    """Counts and times sends and deliveries. One object serves all producers and consumers.

    Args:
        registry: the registry of the metrics; None for the process's registry. Make one object per
            registry: a second one has the same metric names.

    Example: ``PushConsumer("127.0.0.1:9876", group="shop", handler=pack, hooks=[MetricHooks()])``
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        where = REGISTRY if registry is None else registry
        self._sends = Counter(
            "cometmq_client_sends", "Sends by how they ended.", BY_OUTCOME, registry=where
        )
        self._sent = Counter(
            "cometmq_client_sent_messages", "Messages stored.", LABELS, registry=where
        )
        self._send_seconds = Histogram(
            "cometmq_client_send_seconds", "Time of sends.", LABELS, registry=where, buckets=SECONDS
        )
        self._attempts = Counter(
            "cometmq_client_send_attempts", "Attempts of sends.", LABELS, registry=where
        )
        self._handled = Counter(
            "cometmq_client_handled_messages",
            "Messages by how their handler's call ended.",
            BY_OUTCOME,
            registry=where,
        )
        self._handler_seconds = Histogram(
            "cometmq_client_handler_seconds",
            "Time of handlers' calls.",
            LABELS,
            registry=where,
            buckets=SECONDS,
        )
        self._delivery_seconds = Histogram(
            "cometmq_client_delivery_seconds",
            "Time from storing a message to its handler's call, by the clocks of two machines.",
            LABELS,
            registry=where,
            buckets=SECONDS,
        )
        self._redelivered = Counter(
            "cometmq_client_redelivered_messages",
            "Redelivered messages.",
            LABELS,
            registry=where,
        )
        self._retried = Counter(
            "cometmq_client_retried_messages",
            "Messages that failed and are redelivered.",
            LABELS,
            registry=where,
        )
        self._dead_letters = Counter(
            "cometmq_client_dead_letters",
            "Messages that became dead letters.",
            LABELS,
            registry=where,
        )
        self._consumers = _Consumers()
        where.register(self._consumers)

    def watch(self, consumer: Watched) -> None:
        """Export gauges of a consumer for as long as it exists.

        Call it in the consumer's event loop, before or after its start; for a blocking consumer, in
        any thread. Metrics may be
        collected in any thread.

        Args:
            consumer: a `PushConsumer`, `PopConsumer` or `PullConsumer`. A `SimpleConsumer` fetches
                nothing ahead and has no gauges.

        Raises:
            ClientError: a consumer with an event loop is passed outside of its loop.
            TypeError: it is no such consumer.
        """
        if isinstance(consumer, type) or not isinstance(consumer, Watched):
            met = getattr(consumer, "__name__", type(consumer).__name__)
            raise TypeError(
                f"watch was given {met}: expected a PushConsumer, PopConsumer or PullConsumer"
            )
        self._consumers.add(consumer)

    def after_send(self, context: SendContext) -> None:
        """Count and time a send."""
        topic = context.messages[0].topic
        self._sends.labels(context.group, topic, _outcome(context)).inc()
        if context.error is None:
            self._sent.labels(context.group, topic).inc(len(context.messages))
        self._attempts.labels(context.group, topic).inc(context.attempts)
        self._send_seconds.labels(context.group, topic).observe(context.cost_ms / 1000)

    def before(self, context: DeliveryContext) -> None:
        """Record the age and the redeliveries of the messages."""
        wall_ms = now_ms()
        for topic, messages in _by_topic(context):
            labels = (context.group, topic)
            delays = self._delivery_seconds.labels(*labels)
            for message in messages:
                delays.observe(max(0, wall_ms - message.store_time_ms) / 1000)
            if again := sum(message.reconsume_times > 0 for message in messages):
                self._redelivered.labels(*labels).inc(again)
        self._consumers.note(context.group, context.queue, context.messages)

    def after(self, context: DeliveryContext) -> None:
        """Count and time a handler call."""
        outcome = context.end.name if context.end is not None else "UNKNOWN"
        for topic, messages in _by_topic(context):
            self._handled.labels(context.group, topic, outcome).inc(len(messages))
        first = context.messages[0].topic
        self._handler_seconds.labels(context.group, first).observe(context.cost_ms / 1000)

    def retried(self, failed: FailedMessage) -> None:
        """Count a message that is redelivered."""
        self._retried.labels(failed.group, failed.message.topic).inc()

    def dead_lettered(self, failed: FailedMessage) -> None:
        """Count a dead letter."""
        self._dead_letters.labels(failed.group, failed.message.topic).inc()


def _by_topic(context: DeliveryContext) -> Iterable[tuple[str, Sequence[StoredMessage]]]:
    """Return the messages by their topics: messages of a retry topic come from several topics."""
    found: dict[str, list[StoredMessage]] = {}
    for message in context.messages:
        found.setdefault(message.topic, []).append(message)
    return found.items()


def _outcome(context: SendContext) -> str:
    if context.error is not None:
        return type(context.error).__qualname__
    return "ONEWAY" if context.receipt is None else context.receipt.status.name


class _Consumers(Collector):
    """Gauges of watched consumers, read when metrics are collected."""

    def __init__(self) -> None:
        self._loops: WeakKeyDictionary[Watched, asyncio.AbstractEventLoop | None]
        self._loops = WeakKeyDictionary()
        """Watched consumers, and the event loop that each is read in; None for any thread."""
        self._lags: dict[tuple[str, MessageQueue], int] = {}

    def add(self, consumer: Watched) -> None:
        loop = asyncio.get_running_loop() if _is_in_a_loop() else None
        close = getattr(consumer, "close", None)
        if loop is None and inspect.iscoroutinefunction(close):
            raise ClientError("watch a consumer in its event loop")
        is_blocking = close is not None and not inspect.iscoroutinefunction(close)
        self._loops[consumer] = None if is_blocking else loop

    def note(self, group: str, queue: MessageQueue, messages: Sequence[StoredMessage]) -> None:
        """Note how much was stored after the last of these messages when they were fetched."""
        newest = messages[-1].properties.get(names.MAX_OFFSET, "")
        if newest.isdecimal():
            behind = int(newest) - messages[-1].queue_offset - 1
            self._lags[group, queue] = max(0, behind)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the metrics' names, without calling the consumers."""
        return _families()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Read what each watched consumer holds."""
        queues, buffered, lag = _families()
        sums: tuple[Sums[tuple[str, str]], ...] = (Sums(), Sums(), Sums())
        owned: set[tuple[str, MessageQueue]] = set()
        for consumer, loop in list(self._loops.items()):
            try:
                self._sum_up(consumer, loop, sums, owned)
            except (TimeoutError, RuntimeError, CometError) as error:
                log.debug(
                    "cannot get the state of a consumer group=%s error=%r", consumer.group, error
                )
        for key in list(self._lags):
            if key not in owned:
                self._lags.pop(key, None)
        for family, values in zip((queues, buffered, lag), sums, strict=True):
            for labels, value in sorted(values.items()):
                family.add_metric(labels, value)
        return queues, buffered, lag

    def _sum_up(
        self,
        consumer: Watched,
        loop: asyncio.AbstractEventLoop | None,
        sums: Sequence[Sums[tuple[str, str]]],
        owned: set[tuple[str, MessageQueue]],
    ) -> None:
        queues, buffered, lag = sums
        held, info = _state_of(consumer, loop)
        for queue in held:
            labels = (consumer.group, queue.topic)
            owned.add((consumer.group, queue))
            queues[labels] += 1
            lag[labels] += self._lags.get((consumer.group, queue), 0)
            buffered[labels] += 0
        counts = [(queue, part.cached_msg_count) for queue, part in info.mq_table.items()]
        counts += [
            (queue, part.wait_ack_count) for queue, part in (info.mq_pop_table or {}).items()
        ]
        namespace = Namespace(info.properties.get("namespace", ""))
        for queue, count in counts:
            buffered[consumer.group, namespace.unwrap(queue.topic)] += count


def _state_of(
    consumer: Watched, loop: asyncio.AbstractEventLoop | None
) -> tuple[Collection[MessageQueue], ConsumerRunningInfo]:
    """Read a consumer's state in its own loop, which changes its tables.

    Raises:
        RuntimeError: its loop is closed.
        TimeoutError: its loop is busy.
    """

    def look() -> tuple[Collection[MessageQueue], ConsumerRunningInfo]:
        return list(consumer.queues()), consumer.running_info()

    def read() -> None:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(look())
            except Exception as error:
                future.set_exception(error)

    if loop is None or (_is_in_a_loop() and asyncio.get_running_loop() is loop):
        return look()
    if not loop.is_running():
        raise RuntimeError("the consumer's event loop does not run")
    future: Future[tuple[Collection[MessageQueue], ConsumerRunningInfo]] = Future()
    loop.call_soon_threadsafe(read)
    try:
        return future.result(STATE_S)
    finally:
        future.cancel()


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily("cometmq_client_queues", "Queues of watched consumers.", labels=LABELS),
        GaugeMetricFamily(
            "cometmq_client_buffered_messages", "Fetched and not consumed yet.", labels=LABELS
        ),
        GaugeMetricFamily(
            "cometmq_client_lag_messages", "Stored after what was consumed last.", labels=LABELS
        ),
    )
