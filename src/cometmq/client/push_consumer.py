"""Calls a handler with each message of the topics that a group subscribes to.

Source: DefaultMQPushConsumer, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Unpack

from cometmq.client._connection.instance import ClientInstance, Membership
from cometmq.client._connection.leases import acquire_instance
from cometmq.client._consuming.ending import Ending
from cometmq.client._consuming.group_requests import check_filter
from cometmq.client._consuming.subscriptions import Subscriptions
from cometmq.client._lifecycle import Lifecycle, Starting
from cometmq.client._push.engine import ConsumerSpec, Engine
from cometmq.client._push.request_handlers import PushRequestHandlers, running_info
from cometmq.client.allocation import AllocationStrategy, Averagely
from cometmq.client.errors import ClientClosedError, QueueNotFoundError
from cometmq.client.filters import Filter
from cometmq.client.handlers import (
    BatchHandler,
    MessageHandler,
    OrderedBatchHandler,
    QueueListener,
)
from cometmq.client.hooks import ConsumeHook, FilterHook
from cometmq.client.offsets import OffsetStore, StartFrom, check_start, consume_from_where
from cometmq.client.options import PushOptions
from cometmq.client.settings import (
    ClientSettings,
    PushSettings,
    read_tables,
    resolve_settings,
    split_options,
)
from cometmq.client.subscription_check import Difference, SubscriptionCheck
from cometmq.client.trace import ConsumeTrace, TraceDispatcher
from cometmq.model.errors import ConfigError
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import check_group_name
from cometmq.protocol.bodies import ConsumerData, ConsumerRunningInfo, ConsumeType, MessageModel
from cometmq.remoting.tasks import is_call_failure

log = logging.getLogger(__name__)

CONCURRENCY_MAX = 1000


class PushConsumer(Lifecycle):
    """Calls a handler with each message, as a member of a group that shares the queues.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses. If empty, the setting
            ``name_servers`` is used.
        group: the consumer group. Its members share the queues and must have the same
            subscriptions.
        handler: called with one message: an ``async def`` function, or a plain function, which
            runs in a thread. When it returns, the message is consumed. When it raises, the message
            is redelivered later.
        batch_handler: called with several messages of one queue, and a context.
        ordered: consume each queue in order: one call at a time, and a failed message again before
            the next one. If False, calls run in parallel.
        broadcast: every member receives every message. Failed messages are dropped, and offsets
            are stored in a local file.
        subscriptions: topic to tags such as ``a || b``, or to a `Filter`.
        start_from: where to start in a queue without a committed offset. A time (a
            `datetime` with a time zone, or ms since 1970) means the first message stored then or
            later.
        strategy: allocates the queues to members. All members must use the same strategy; the
            default is `Averagely`.
        offset_store: stores offsets elsewhere than the brokers or the local file.
        on_queues: called when the queues of a topic are rebalanced.
        hooks: run around handler calls, or remove messages before them.
        settings: the settings of the consumer.
        client: the settings of its connections.
        instance: a shared instance to use. The caller starts and closes it.
        config: a TOML file with settings.
        options: single settings of either kind, by name. They override all others.

    Delivery is at least once. If the handler raises, the message is redelivered after 10 s, 30 s,
    1 min and so on, and dead-lettered after 16 retries. Its property ``CONSUME_ERROR`` has the
    class and text of the last exception.

    Raises:
        ConfigError: there is not exactly one handler, or a setting is invalid.
        InvalidNameError: the group name is invalid.

    Example:
        ``async with PushConsumer("127.0.0.1:9876", group="billing", handler=bill,``
        ``                        subscriptions={"orders": "paid"}) as consumer:``
        ``    await consumer.until_failed()``
    """

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
        start_from: StartFrom | datetime | int = StartFrom.LAST,
        strategy: AllocationStrategy | None = None,
        offset_store: OffsetStore | None = None,
        on_queues: QueueListener | None = None,
        hooks: Sequence[ConsumeHook | FilterHook] = (),
        settings: PushSettings | None = None,
        client: ClientSettings | None = None,
        instance: ClientInstance | None = None,
        config: Path | None = None,
        **options: Unpack[PushOptions],
    ) -> None:
        check_group_name(group)
        if (handler is None) == (batch_handler is None):
            raise ConfigError(f"consumer {group}: give either a handler or a batch_handler")
        check_start(group, start_from)
        tables = read_tables(config) if config else None
        own, conn = split_options(options, PushSettings, ClientSettings)
        self._settings = resolve_settings(PushSettings, keywords=own, given=settings, tables=tables)
        connecting = resolve_settings(ClientSettings, keywords=conn, given=client, tables=tables)
        self._group = group
        self._lease = acquire_instance(
            name_servers, settings=connecting, instance=instance, keep_name=broadcast
        )
        self._instance = self._lease.instance
        self._traces = TraceDispatcher.of(self._instance, tables) if self._settings.trace else None
        wish = ConsumerSpec(
            group=group,
            handler=handler,
            batch_handler=batch_handler,
            ordered=ordered,
            broadcast=broadcast,
            start_from=start_from,
            strategy=strategy or Averagely(),
            offset_store=offset_store,
            on_queues=on_queues,
            consume_hooks=self._consume_hooks(hooks),
            filter_hooks=[hook for hook in hooks if isinstance(hook, FilterHook)],
        )
        self._subscriptions = Subscriptions(
            self._instance.namespace,
            self._instance.namespace.wrap_group(group),
            retries=not broadcast,
        )
        for topic, wanted in (subscriptions or {}).items():
            self._subscriptions.add(topic, wanted)
        self._engine = Engine(self._instance, wish, self._settings, self._subscriptions)
        self._questions = PushRequestHandlers(self._instance, self._engine, self.running_info)
        self._watch = SubscriptionCheck(self._instance, group, self._subscriptions.shown)
        self._running = False
        self._opened = False
        self._retained = False
        self._starting = Starting(self._begin, f"push consumer {group}.start")
        self._ending = Ending(f"push consumer {group}.stop")

    def _consume_hooks(self, hooks: Sequence[ConsumeHook | FilterHook]) -> list[ConsumeHook]:
        watching = [hook for hook in hooks if isinstance(hook, ConsumeHook)]
        if self._traces is not None:
            watching.append(ConsumeTrace(self._traces, self._settings.trace_topic))
        return watching

    # --- life ---------------------------------------------------------------------------------

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._group

    @property
    def client_id(self) -> str:
        """The id of this member at the brokers."""
        return self._instance.client_id

    @property
    def settings(self) -> PushSettings:
        """The settings that are in effect."""
        return self._settings

    @property
    def running(self) -> bool:
        """Whether the consumer is started and not closing."""
        return self._running

    def membership(self) -> Membership:
        """Return this consumer's entry in the heartbeat."""
        wish = self._engine.wish
        data = ConsumerData(
            group_name=self._engine.group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=MessageModel.BROADCASTING if wish.broadcast else MessageModel.CLUSTERING,
            consume_from_where=consume_from_where(wish.start_from),
            subscription_data_set=self._subscriptions.data(),
        )
        return Membership(consumers=[data])

    async def start(self) -> None:
        """Join the group and start to consume. Returns before the first rebalance.

        A topic without a route is no error: the consumer reads its queues as soon as it has one.

        Raises:
            ClientError: the client already has a consumer of this group.
            ClientClosedError: the consumer was closed before, or during the start. Cancelling one
                of several calls closes it, too.
            ConfigError: a broker does not support the filter of a subscription. The consumer is
                closed.
            StoreError: the local offset file cannot be read.
        """
        if self._running:
            return
        if self._ending.begun:
            raise ClientClosedError(f"consumer {self._group} is closed: create a new one")
        try:
            await self._starting.run()
            self._check_open()
        except BaseException as error:
            interrupted = is_call_failure(error) and (
                self._starting.interrupted or isinstance(error, asyncio.CancelledError)
            )
            await self._starting.interrupt()
            if self._opened or self._ending.begun or interrupted:
                await self._ending.come(self._stop(graceful=False))
            if interrupted:
                raise ClientClosedError(
                    f"consumer {self._group} was closed while it started: create a new one"
                ) from error
            raise

    async def _begin(self) -> None:
        await self._lease.open(self)
        self._opened = True
        await self._engine.store.load()
        if self._traces is not None:
            self._traces.retain()
            self._retained = True
        for topic in self._subscriptions.asked_for():
            await self._instance.routes.refresh(topic)
        for topic, wanted in self._subscriptions.asked_for().items():
            await check_filter(self._instance, self._engine.group, topic, wanted)
        self._questions.open()
        await self._instance.heartbeat()
        self._subscriptions.adopt()
        self._engine.start()
        self._watch.start(self._engine.tasks)
        self._running = True

    async def close(self) -> None:
        """Stop consuming and leave the group. Further calls only wait for the end.

        Pulls stop. Running handlers have ``stop_ms`` to return and are cancelled after that. The
        consumer commits offsets, releases queue locks and unregisters. Messages that no handler has
        received are delivered to other members. Cancelling stops the waiting, not the closing.

        An error of the ``offset_store`` is raised once, after everything else is closed.
        """
        await self._ending.come(self._stop(graceful=True))
        error, self._engine.store_error = self._engine.store_error, None
        if error is not None:
            raise error

    async def abort(self) -> None:
        """Stop at once: cancel the handlers. Their messages are redelivered."""
        if self._ending.under_way:
            await self._engine.service.stop(grace_s=0)
        await self._ending.come(self._stop(graceful=False))

    async def _stop(self, *, graceful: bool) -> None:
        await self._starting.interrupt()
        self._running = False
        if self._opened:
            self._questions.close()
        self._engine.tasks.end(f"consumer {self._group} was closed")
        try:
            if graceful and self._opened:
                persist_s = self._instance.settings.call_timeout_ms / 1000
                await self._engine.stop(grace_s=self._settings.stop_ms / 1000, persist_s=persist_s)
            else:
                await self._engine.abort()
        finally:
            await self._release()

    async def _release(self) -> None:
        try:
            if self._retained and self._traces is not None:
                self._retained = False
                await self._traces.release()
        finally:
            if self._opened:
                self._opened = False
                await self._lease.close(self)

    async def until_failed(self) -> None:
        """Wait until the consumer fails permanently, and raise the error. It never returns.

        Raises:
            ClientClosedError: the consumer was closed.
        """
        await self._engine.tasks.until_failed()

    # --- subscriptions ------------------------------------------------------------------------

    async def subscribe(self, topic: str, wanted: str | Filter = "*") -> None:
        """Subscribe to a topic, or change its filter.

        Args:
            topic: the topic.
            wanted: tags such as ``a || b``, or a `Filter`.

        Raises:
            ClientClosedError: the consumer was closed.
            InvalidNameError: the topic name is invalid.
            ConfigError: the filter is invalid, or a broker does not support it. The subscription
                is unchanged.
        """
        self._check_open()
        if self._running:
            name = self._instance.namespace.wrap_topic(topic)
            await self._instance.routes.refresh(name)
            await check_filter(self._instance, self._engine.group, name, Filter.of(wanted))
        self._subscriptions.add(topic, wanted)
        await self._tell_subscriptions()

    async def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic. The committed offsets remain.

        Raises:
            ClientClosedError: the consumer was closed.
        """
        self._check_open()
        if self._subscriptions.remove(topic):
            await self._tell_subscriptions()

    def subscription_mismatches(self) -> list[Difference]:
        """Return the subscriptions of other members that differ, as last seen."""
        return self._watch.subscription_mismatches()

    async def _tell_subscriptions(self) -> None:
        if self._running:
            await self._instance.heartbeat()
            self._subscriptions.adopt()
            self._watch.wake()
            self._engine.rebalancer.wake()

    # --- orders -------------------------------------------------------------------------------

    @property
    def suspended(self) -> bool:
        """Whether pulling is suspended."""
        return self._engine.suspended

    def suspend(self) -> None:
        """Stop pulling until `resume`. Messages that are already fetched are consumed."""
        self._check_open()
        self._engine.suspend()

    def resume(self) -> None:
        """Pull again."""
        self._check_open()
        self._engine.resume()

    def set_concurrency(self, count: int) -> None:
        """Change the number of handler calls that run at a time. Running calls continue.

        Raises:
            ConfigError: the number is not from 1 to 1,000.
        """
        if not 1 <= count <= CONCURRENCY_MAX:
            raise ConfigError(f"concurrency {count}: expected 1 to {CONCURRENCY_MAX}")
        self._engine.set_concurrency(count)

    async def skip_backlog(self, topic: str | None = None) -> None:
        """Skip the backlog: continue at the end of the assigned queues.

        Args:
            topic: only the queues of this topic. None means all topics but the retry topic.

        Raises:
            ClientClosedError: the consumer is not running.
            QueueNotFoundError: no queue of the topic is assigned to this consumer.
            ResponseError, RemotingError: a broker refused or did not respond; nothing has changed.
        """
        self._check_running()
        wanted = set(self._subscriptions.asked_for())
        if topic is not None:
            wanted = {self._instance.namespace.wrap_topic(topic)}
        queues = [queue for queue in self._engine.queues.queues() if queue.topic in wanted]
        if topic is not None and not queues:
            raise QueueNotFoundError(f"no queue of {topic} is assigned to this consumer")
        ends = [(await self._engine.offsets.bounds(queue)).max_offset for queue in queues]
        await self._engine.move(dict(zip(queues, ends, strict=True)))

    def read_from(self, broker_id: int | None) -> None:
        """Pull all queues from this replica, if the broker has it.

        Args:
            broker_id: 0 for the master, a number above 0 for a slave; None to use the broker's
                suggestion.
        """
        self._engine.replica.forced = broker_id

    # --- questions ----------------------------------------------------------------------------

    def queues(self) -> list[MessageQueue]:
        """Return the assigned queues, without those of the retry topic."""
        retry_topic = self._subscriptions.retry_topic
        owned = self._engine.queues.queues()
        return [self._engine.handling.shown(each) for each in owned if each.topic != retry_topic]

    def running_info(self) -> ConsumerRunningInfo:
        """Return this consumer's settings, queues and rates, as administrators see them."""
        return running_info(self._instance, self._engine, self._subscriptions)

    def _check_open(self) -> None:
        if self._ending.begun:
            raise ClientClosedError(f"consumer {self._group} was closed")

    def _check_running(self) -> None:
        if not self._running:
            raise ClientClosedError(f"consumer {self._group} is not running: start it first")
