"""Consumers for code without an event loop.

Source: ours.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
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
from cometmq.client.blocking.base import Blocking
from cometmq.client.blocking.instance import ClientInstance, inner_instance
from cometmq.client.consistency import Difference
from cometmq.client.subscription import Filter
from cometmq.model.offsets import QueueOffset
from cometmq.protocol.bodies import ConsumerRunningInfo

T = TypeVar("T")


class _Consumer(Blocking):
    """What all consumers have in common."""

    _inner: asynchronous.PushConsumer | asynchronous.PopConsumer | asynchronous.PullConsumer

    @property
    def group(self) -> str:
        """The consumer's group."""
        return self._inner.group

    @property
    def client_id(self) -> str:
        """The id by which brokers know this member."""
        return self._inner.client_id

    @property
    def running(self) -> bool:
        """Whether it was started and is not being closed."""
        return self._inner.running

    def disagreements(self) -> list[Difference]:
        """Give what other members of the group subscribe differently, as last seen."""
        return self._call(self._inner.disagreements)


class _Handling(_Consumer):
    """What consumers that call handlers have in common."""

    _inner: asynchronous.PushConsumer | asynchronous.PopConsumer

    def abort(self) -> None:
        """Stop at once: cancel handlers, and leave what is not finished to others."""
        if self._portal is not None:
            self._run(self._inner.abort())
        self.close()

    def until_failed(self) -> None:
        """Wait until the consumer breaks for good, and raise what broke it; never return."""
        self._run(self._inner.until_failed())

    def subscribe(self, topic: str, wanted: str | Filter = "*") -> None:
        """Consume a topic too, or filter it differently from now on."""
        self._run(self._inner.subscribe(topic, wanted))

    def set_concurrency(self, count: int) -> None:
        """Run this many handler calls at a time from now on; running ones go on."""
        self._call(self._inner.set_concurrency, count)

    def running_info(self) -> ConsumerRunningInfo:
        """Give what administrators are told: settings, queues, rates."""
        return self._call(self._inner.running_info)


class PushConsumer(_Handling):
    """Calls a handler with each message; as `cometmq.client.PushConsumer`.

    Handlers are plain functions, which run in threads and may use blocking objects; ``async def``
    ones run in the loop and must not. A handler does not close its own consumer, which would wait
    for the handler.

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
        """The settings in force, from wherever they came."""
        return self._inner.settings

    def unsubscribe(self, topic: str) -> None:
        """Consume a topic no longer; offsets of what was consumed are kept."""
        self._run(self._inner.unsubscribe(topic))

    @property
    def suspended(self) -> bool:
        """Whether nothing is pulled for now."""
        return self._inner.suspended

    def suspend(self) -> None:
        """Pull nothing more until `resume`; what was fetched is still consumed."""
        self._call(self._inner.suspend)

    def resume(self) -> None:
        """Pull again."""
        self._call(self._inner.resume)

    def skip_backlog(self, topic: str | None = None) -> None:
        """Go on at the end of the queues that are this consumer's, without what is in between."""
        self._run(self._inner.skip_backlog(topic))

    def read_from(self, broker_id: int | None) -> None:
        """Pull all queues from this replica, as far as there is one."""
        self._call(self._inner.read_from, broker_id)

    def queues(self) -> list[MessageQueue]:
        """Give the queues that are this consumer's now, those of retries left out."""
        return self._call(self._inner.queues)


class PopConsumer(_Handling):
    """Calls a handler with each message that brokers hand out; as `cometmq.client.PopConsumer`.

    Handlers are plain functions, which run in threads and may use blocking objects.
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
        """The settings in force, from wherever they came."""
        return self._inner.settings

    def unsubscribe(self, topic: str) -> None:
        """Consume a topic no longer."""
        self._run(self._inner.unsubscribe(topic))

    @property
    def suspended(self) -> bool:
        """Whether nothing is popped for now."""
        return self._inner.suspended

    def suspend(self) -> None:
        """Ask for nothing more until `resume`; what was taken is still consumed."""
        self._call(self._inner.suspend)

    def resume(self) -> None:
        """Ask again."""
        self._call(self._inner.resume)

    def queues(self) -> list[MessageQueue]:
        """Give the queues that brokers assign to this member; -1 stands for all of a broker's."""
        return self._call(self._inner.queues)


class PullConsumer(_Consumer):
    """Reads queues when the application asks; as `cometmq.client.PullConsumer`.

    Ctrl-C while it waits for messages loses none of them.

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
        found = self._uninterrupted(_next(self._inner))
        if found is None:
            raise StopIteration
        return found

    def poll(self, timeout: float = 5.0) -> list[StoredMessage]:
        """Take the messages that wait, or wait for some; all are of one queue."""
        return self._uninterrupted(self._inner.poll(timeout))

    def _uninterrupted(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for messages; what is handed out while the wait is interrupted comes again."""
        try:
            return self._run(work)
        except KeyboardInterrupt:
            self._call(self._inner.take_back)
            raise

    @property
    def settings(self) -> PullSettings:
        """The settings in force, from wherever they came."""
        return self._inner.settings

    def assignment(self) -> list[MessageQueue]:
        """Give the queues that are being read."""
        return self._call(self._inner.assignment)

    def position(self, queue: MessageQueue) -> QueueOffset | None:
        """Give the offset behind the last message handed out of a queue, or None before one."""
        return self._call(self._inner.position, queue)

    def committed(self, queue: MessageQueue) -> QueueOffset | None:
        """Give the offset this group has committed of a queue, or None."""
        return self._run(self._inner.committed(queue))

    def commit(
        self, offsets: Mapping[MessageQueue, int] | Iterable[MessageQueue] | None = None
    ) -> None:
        """Commit how far the application has come."""
        self._run(self._inner.commit(offsets))

    def bounds(self, queue: MessageQueue) -> QueueBounds:
        """Give a queue's oldest offset and the one its next message will have."""
        return self._run(self._inner.bounds(queue))

    def offset_at_time(self, queue: MessageQueue, timestamp_ms: int) -> QueueOffset:
        """Give the offset of the first message stored at or after a time, in ms since 1970."""
        return self._run(self._inner.offset_at_time(queue, timestamp_ms))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on reading a queue at another offset, which becomes its place at once."""
        self._run(self._inner.seek(queue, offset))

    def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Go on at the oldest message of these queues, or of all that are read."""
        self._run(self._inner.seek_to_begin(*queues))

    def seek_to_end(self, *queues: MessageQueue) -> None:
        """Go on behind the newest message of these queues, or of all that are read."""
        self._run(self._inner.seek_to_end(*queues))

    def seek_to_time(self, timestamp_ms: int, *queues: MessageQueue) -> None:
        """Go on at the first message stored at or after a time."""
        self._run(self._inner.seek_to_time(timestamp_ms, *queues))

    def pause(self, *queues: MessageQueue) -> None:
        """Hand out nothing of these queues until they are resumed; they keep their places."""
        self._call(self._inner.pause, *queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Hand out messages of these queues again."""
        self._call(self._inner.resume, *queues)

    def paused(self) -> set[MessageQueue]:
        """Give the queues that are paused."""
        return self._call(self._inner.paused)

    def read_from(self, broker_id: int | None) -> None:
        """Pull all queues from this replica, as far as there is one."""
        self._call(self._inner.read_from, broker_id)

    def subscribe(self, topic: str, wanted: str | Filter = "*") -> None:
        """Read this consumer's share of a topic from soon on; a second time replaces the first."""
        self._run(self._inner.subscribe(topic, wanted))

    def unsubscribe(self, topic: str) -> None:
        """Read nothing of a topic any more; what is finished is committed."""
        self._run(self._inner.unsubscribe(topic))

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """Give the queues of a topic that can be read, and let ``on_queues`` hear of changes."""
        return self._run(self._inner.fetch_queues(topic))

    def assign(self, queues: Iterable[MessageQueue], *, wanted: str | Filter = "*") -> None:
        """Read these queues from now on, and no others."""
        self._run(self._inner.assign(queues, wanted=wanted))

    def take_back(self) -> None:
        """Hand out again, next time, what was handed out last: it is not finished."""
        self._call(self._inner.take_back)

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
        """Ask once for the messages of a queue from an offset on; assigns and commits nothing."""
        return self._run(
            self._inner.pull(
                queue, offset, wanted=wanted, max_messages=max_messages, wait=wait, timeout=timeout
            )
        )

    def send_back(self, message: StoredMessage, *, delay_level: int = 0) -> None:
        """Have a message delivered again, to the group's retry topic, after a delay."""
        self._run(self._inner.send_back(message, delay_level=delay_level))


async def _next(consumer: asynchronous.PullConsumer) -> StoredMessage | None:
    return await anext(consumer, None)
