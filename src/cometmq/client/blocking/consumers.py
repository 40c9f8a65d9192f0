"""Consumers for programs without an event loop."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import cometmq.client as asynchronous
from cometmq.client import (
    AllocationStrategy,
    BatchHandler,
    ClientSettings,
    ConsumeHook,
    FilterHook,
    MessageHandler,
    MessageQueue,
    OffsetStore,
    OrderedBatchHandler,
    PopSettings,
    PullResult,
    PullSettings,
    PushSettings,
    QueueBounds,
    QueueListener,
    StartFrom,
    StoredMessage,
)
from cometmq.client._pull.positions import read_as
from cometmq.client.blocking.base import Blocking
from cometmq.client.blocking.instance import ClientInstance, inner_instance
from cometmq.client.filters import Filter
from cometmq.client.subscription_check import Difference
from cometmq.model.offsets import QueueOffset
from cometmq.protocol.bodies import ConsumerRunningInfo

T = TypeVar("T")


class _Consumer(Blocking):
    """The base of all consumers."""

    _inner: asynchronous.PushConsumer | asynchronous.PopConsumer | asynchronous.PullConsumer

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._inner.group

    @property
    def client_id(self) -> str:
        """The id of this member at the brokers."""
        return self._inner.client_id

    @property
    def running(self) -> bool:
        """Whether the consumer is started and not closing."""
        return self._inner.running

    def subscription_mismatches(self) -> list[Difference]:
        """Return the subscriptions of other members that differ, as last seen."""
        return self._call(self._inner.subscription_mismatches)


class _Handling(_Consumer):
    """The base of consumers with handlers."""

    _inner: asynchronous.PushConsumer | asynchronous.PopConsumer

    def abort(self) -> None:
        """Stop at once: cancel the handlers. Their messages are redelivered."""
        if self._portal is not None:
            self._run(self._inner.abort())
        self.close()

    def until_failed(self) -> None:
        """Wait until the consumer fails permanently, and raise the error. It never returns."""
        self._run(self._inner.until_failed())

    def subscribe(self, topic: str, wanted: str | Filter = "*") -> None:
        """Subscribe to a topic, or change its filter."""
        self._run(self._inner.subscribe(topic, wanted))

    def set_concurrency(self, count: int) -> None:
        """Change the number of handler calls that run at a time. Running calls continue."""
        self._call(self._inner.set_concurrency, count)

    def running_info(self) -> ConsumerRunningInfo:
        """Return this consumer's settings, queues and rates, as administrators see them."""
        return self._call(self._inner.running_info)


class PushConsumer(_Handling):
    """Calls a handler with each message, like `cometmq.client.PushConsumer`.

    Plain handlers run in threads and may use blocking objects. ``async def`` handlers run in the
    event loop and must not use them. A handler must not close its own consumer, because closing
    waits for the handler.

    Example:
        ``with PushConsumer("127.0.0.1:9876", group="billing", handler=bill,``
        ``                  subscriptions={"orders": "paid"}) as consumer:``
        ``    consumer.until_failed()``
    """

    _inner: asynchronous.PushConsumer

    def __init__(
        self,
        name_servers: str | Sequence[str] = "",
        *,
        group: str,
        handler: MessageHandler | None = None,
        batch_handler: BatchHandler | OrderedBatchHandler | None = None,
        ordered: bool = False,
        broadcast: bool = False,
        subscriptions: Mapping[str, str | Filter] | None = None,
        start_from: StartFrom | datetime = StartFrom.LAST,
        strategy: AllocationStrategy | None = None,
        offset_store: OffsetStore | None = None,
        on_queues: QueueListener | None = None,
        hooks: Sequence[ConsumeHook | FilterHook] = (),
        settings: PushSettings | None = None,
        client: ClientSettings | None = None,
        instance: ClientInstance | None = None,
        config: Path | None = None,
        **options: Any,
    ) -> None:
        Blocking.__init__(
            self,
            asynchronous.PushConsumer(
                name_servers,
                group=group,
                handler=handler,
                batch_handler=batch_handler,
                ordered=ordered,
                broadcast=broadcast,
                subscriptions=subscriptions,
                start_from=start_from,
                strategy=strategy,
                offset_store=offset_store,
                on_queues=on_queues,
                hooks=hooks,
                settings=settings,
                client=client,
                instance=inner_instance(instance),
                config=config,
                **options,
            ),
        )

    @property
    def settings(self) -> PushSettings:
        """The settings that are in effect."""
        return self._inner.settings

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic. The committed offsets remain."""
        self._run(self._inner.unsubscribe(topic))

    @property
    def suspended(self) -> bool:
        """Whether pulling is suspended."""
        return self._inner.suspended

    def suspend(self) -> None:
        """Stop pulling until `resume`. Messages that are already fetched are consumed."""
        self._call(self._inner.suspend)

    def resume(self) -> None:
        """Pull again."""
        self._call(self._inner.resume)

    def skip_backlog(self, topic: str | None = None) -> None:
        """Skip the backlog: continue at the end of the assigned queues."""
        self._run(self._inner.skip_backlog(topic))

    def read_from(self, broker_id: int | None) -> None:
        """Pull all queues from this replica, if the broker has it."""
        self._call(self._inner.read_from, broker_id)

    def queues(self) -> list[MessageQueue]:
        """Return the assigned queues, without those of the retry topic."""
        return self._call(self._inner.queues)


class PopConsumer(_Handling):
    """Calls a handler with messages of RocketMQ 5, like `cometmq.client.PopConsumer`.

    Plain handlers run in threads and may use blocking objects.
    """

    _inner: asynchronous.PopConsumer

    def __init__(
        self,
        name_servers: str | Sequence[str] = "",
        *,
        group: str,
        handler: MessageHandler | None = None,
        batch_handler: BatchHandler | None = None,
        subscriptions: Mapping[str, str | Filter] | None = None,
        start_from: StartFrom = StartFrom.LAST,
        on_queues: QueueListener | None = None,
        hooks: Sequence[ConsumeHook | FilterHook] = (),
        settings: PopSettings | None = None,
        client: ClientSettings | None = None,
        instance: ClientInstance | None = None,
        config: Path | None = None,
        **options: Any,
    ) -> None:
        Blocking.__init__(
            self,
            asynchronous.PopConsumer(
                name_servers,
                group=group,
                handler=handler,
                batch_handler=batch_handler,
                subscriptions=subscriptions,
                start_from=start_from,
                on_queues=on_queues,
                hooks=hooks,
                settings=settings,
                client=client,
                instance=inner_instance(instance),
                config=config,
                **options,
            ),
        )

    @property
    def settings(self) -> PopSettings:
        """The settings that are in effect."""
        return self._inner.settings

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic."""
        self._run(self._inner.unsubscribe(topic))

    @property
    def suspended(self) -> bool:
        """Whether popping is suspended."""
        return self._inner.suspended

    def suspend(self) -> None:
        """Stop popping until `resume`. Messages that are already received are consumed."""
        self._call(self._inner.suspend)

    def resume(self) -> None:
        """Pop again."""
        self._call(self._inner.resume)

    def queues(self) -> list[MessageQueue]:
        """Return the queues that brokers assign to this member; -1 stands for all of a broker."""
        return self._call(self._inner.queues)


class PullConsumer(_Consumer):
    """Reads queues in the application's own loop, like `cometmq.client.PullConsumer`.

    Several threads may read. Each message goes to one of them, and each thread finishes its own.
    If a thread ends, its unfinished messages are redelivered, unless they are committed. Ctrl-C
    during a wait for messages loses no message.

    Example:
        ``with PullConsumer("127.0.0.1:9876", group="audit") as consumer:``
        ``    consumer.subscribe("orders")``
        ``    for message in consumer: print(message.body)``
    """

    _inner: asynchronous.PullConsumer

    def __init__(
        self,
        name_servers: str | Sequence[str] = "",
        *,
        group: str,
        subscriptions: Mapping[str, str | Filter] | None = None,
        start_from: StartFrom | datetime = StartFrom.LAST,
        broadcast: bool = False,
        strategy: AllocationStrategy | None = None,
        offset_store: OffsetStore | None = None,
        on_queues: QueueListener | None = None,
        hooks: Sequence[ConsumeHook | FilterHook] = (),
        settings: PullSettings | None = None,
        client: ClientSettings | None = None,
        instance: ClientInstance | None = None,
        config: Path | None = None,
        **options: Any,
    ) -> None:
        Blocking.__init__(
            self,
            asynchronous.PullConsumer(
                name_servers,
                group=group,
                subscriptions=subscriptions,
                start_from=start_from,
                broadcast=broadcast,
                strategy=strategy,
                offset_store=offset_store,
                on_queues=on_queues,
                hooks=hooks,
                settings=settings,
                client=client,
                instance=inner_instance(instance),
                config=config,
                **options,
            ),
        )

    def __iter__(self) -> Iterator[StoredMessage]:
        return self

    def __next__(self) -> StoredMessage:
        """Wait for the next message of any queue; each queue's come in order."""
        found = self._uninterrupted(_next, self._inner)
        if found is None:
            raise StopIteration
        return found

    def poll(self, timeout: float = 5.0) -> list[StoredMessage]:
        """Return the fetched messages of one queue, or wait for messages."""
        return self._uninterrupted(self._inner.poll, timeout)

    def _uninterrupted(self, call: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Wait for messages; what is handed out while the wait is interrupted comes again."""
        try:
            return self._read(call, *arguments)
        except KeyboardInterrupt:
            self.take_back()
            raise

    def _read(self, call: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Make a call that concerns what this thread has in hand."""
        return self._run(read_as(threading.current_thread(), call, *arguments))

    @property
    def settings(self) -> PullSettings:
        """The settings that are in effect."""
        return self._inner.settings

    def assignment(self) -> list[MessageQueue]:
        """Return the assigned queues."""
        return self._call(self._inner.assignment)

    def position(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the offset after the last delivered message of a queue, or None."""
        return self._call(self._inner.position, queue)

    def committed(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the group's committed offset of a queue, or None."""
        return self._run(self._inner.committed(queue))

    def commit(
        self, offsets: Mapping[MessageQueue, int] | Iterable[MessageQueue] | None = None
    ) -> None:
        """Commit offsets."""
        self._read(self._inner.commit, offsets)

    def bounds(self, queue: MessageQueue) -> QueueBounds:
        """Return a queue's minimum offset, and the offset of its next message."""
        return self._run(self._inner.bounds(queue))

    def offset_at_time(self, queue: MessageQueue, timestamp_ms: int) -> QueueOffset:
        """Return the offset of the first message stored at or after a time, in ms since 1970."""
        return self._run(self._inner.offset_at_time(queue, timestamp_ms))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at another offset of a queue. The next commit stores it."""
        self._run(self._inner.seek(queue, offset))

    def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Continue at the oldest message of these queues; without arguments, of all queues."""
        self._run(self._inner.seek_to_begin(*queues))

    def seek_to_end(self, *queues: MessageQueue) -> None:
        """Continue after the newest message of these queues; without arguments, of all queues."""
        self._run(self._inner.seek_to_end(*queues))

    def seek_to_time(self, timestamp_ms: int, *queues: MessageQueue) -> None:
        """Continue at the first message stored at or after a time."""
        self._run(self._inner.seek_to_time(timestamp_ms, *queues))

    def pause(self, *queues: MessageQueue) -> None:
        """Stop deliveries of these queues until `resume`. Their positions remain."""
        self._call(self._inner.pause, *queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Resume deliveries of these queues."""
        self._call(self._inner.resume, *queues)

    def paused(self) -> set[MessageQueue]:
        """Return the paused queues."""
        return self._call(self._inner.paused)

    def read_from(self, broker_id: int | None) -> None:
        """Pull all queues from this replica, if the broker has it."""
        self._call(self._inner.read_from, broker_id)

    def subscribe(self, topic: str, wanted: str | Filter = "*") -> None:
        """Subscribe to a topic; a second call replaces the filter of the first."""
        self._run(self._inner.subscribe(topic, wanted))

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic, and commit its consumed messages."""
        self._run(self._inner.unsubscribe(topic))

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic. `on_queues` then reports changes of this topic."""
        return self._run(self._inner.fetch_queues(topic))

    def assign(self, queues: Iterable[MessageQueue], *, wanted: str | Filter = "*") -> None:
        """Read these queues and no others."""
        self._run(self._inner.assign(queues, wanted=wanted))

    def take_back(self) -> None:
        """Redeliver the messages that this thread received last: they are not consumed."""
        self._read(_take_back, self._inner)

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        wanted: str | Filter = "*",
        max_messages: int = 32,
        wait: float = 0.0,
        timeout: float = 10.0,
    ) -> PullResult:
        """Pull messages of a queue once, from an offset. Assigns and commits nothing."""
        return self._run(
            self._inner.pull(
                queue, offset, wanted=wanted, max_messages=max_messages, wait=wait, timeout=timeout
            )
        )

    def send_back(self, message: StoredMessage, *, delay_level: int = 0) -> None:
        """Send a message to the group's retry topic, for redelivery after a delay."""
        self._run(self._inner.send_back(message, delay_level=delay_level))


async def _next(consumer: asynchronous.PullConsumer) -> StoredMessage | None:
    return await anext(consumer, None)


async def _take_back(consumer: asynchronous.PullConsumer) -> None:
    consumer.take_back()
