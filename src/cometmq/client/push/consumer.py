"""Calls a handler with each message of the topics that a group subscribes to.

Source: DefaultMQPushConsumer, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from cometmq.client.config import ClientSettings, PushSettings, layered, read_tables, shared_out
from cometmq.client.consistency import Difference, SubscriptionWatch
from cometmq.client.errors import ClientClosedError, QueueNotFoundError
from cometmq.client.handlers import (
    BatchHandler,
    MessageHandler,
    OrderedBatchHandler,
    QueueListener,
)
from cometmq.client.hooks import ConsumeHook, FilterHook
from cometmq.client.instance import ClientInstance, Membership
from cometmq.client.lifetime import Lifetime
from cometmq.client.offsets.start import StartFrom, consume_from_where
from cometmq.client.offsets.store import OffsetStore
from cometmq.client.push.ending import Ending
from cometmq.client.push.engine import Engine, Wish
from cometmq.client.push.filters import check_filter
from cometmq.client.push.questions import Questions
from cometmq.client.push.running import running_info
from cometmq.client.push.subscriptions import Subscriptions
from cometmq.client.rebalance.contracts import AllocationStrategy
from cometmq.client.rebalance.strategies import Averagely
from cometmq.client.registry import lease
from cometmq.client.subscription import Filter
from cometmq.client.trace import ConsumeTrace, TraceDispatcher
from cometmq.model.errors import ConfigError
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import check_group_name
from cometmq.protocol.bodies import ConsumerData, ConsumerRunningInfo, ConsumeType, MessageModel

log = logging.getLogger(__name__)

CONCURRENCY_MAX = 1000


class PushConsumer(Lifetime):
    """Calls a handler with each message, as a member of a group that shares the queues.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses; empty for what the
            settings or the environment say.
        group: the members with this name share the queues; each keeps the same subscriptions.
        handler: is called with one message; an ``async def`` function, or a plain one, which runs
            in a thread. Returning means done; raising means that the message comes again later.
        batch_handler: is called with several messages of one queue, and a context.
        ordered: consume each queue in order: one call at a time, and after a failure the same
            message again. Without it calls run side by side.
        broadcast: every member gets all messages; failures are dropped, and offsets are kept in a
            local file.
        subscriptions: by topic, tags like ``a || b`` or a `Filter`.
        start_from: where to begin in a queue of which the group has committed nothing; a time means
            the first message stored then or later.
        strategy: divides the queues; all members must use the same. By default in equal runs.
        offset_store: keeps offsets elsewhere than the brokers, or the local file.
        on_queues: is told when the queues of a topic are divided anew.
        hooks: watch the handler's calls, or take messages out before.
        settings: the consumer's settings.
        client: settings of its connections.
        instance: share these connections; the caller starts and closes them.
        config: a TOML file with settings.
        options: single settings of either kind, by name; they win over all others.

    Delivery is at least once. A message whose handler raised comes again after 10 s, 30 s, 1 min
    and so on, and becomes a dead letter after 16 retries; its property ``CONSUME_ERROR`` says why.

    Raises:
        ConfigError: not just one handler was given, or a setting makes no sense.
        InvalidNameError: the group's name breaks the rules.

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
        check_group_name(group)
        if (handler is None) == (batch_handler is None):
            raise ConfigError(f"consumer {group}: give either a handler or a batch_handler")
        tables = read_tables(config) if config else None
        own, conn = shared_out(options, PushSettings, ClientSettings)
        self._settings = layered(PushSettings, keywords=own, given=settings, tables=tables)
        connecting = layered(ClientSettings, keywords=conn, given=client, tables=tables)
        self._group = group
        self._lease = lease(
            name_servers, settings=connecting, instance=instance, keep_name=broadcast
        )
        self._instance = self._lease.instance
        self._traces = TraceDispatcher.of(self._instance, tables) if self._settings.trace else None
        wish = Wish(
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
        self._questions = Questions(self._instance, self._engine, self.running_info)
        self._watch = SubscriptionWatch(self._instance, group, self._subscriptions.shown)
        self._running = False
        self._opened = False
        self._retained = False
        self._ending = Ending(f"push consumer {group}.stop")

    def _consume_hooks(self, hooks: Sequence[ConsumeHook | FilterHook]) -> list[ConsumeHook]:
        watching = [hook for hook in hooks if isinstance(hook, ConsumeHook)]
        if self._traces is not None:
            watching.append(ConsumeTrace(self._traces, self._settings.trace_topic))
        return watching

    # --- life ---------------------------------------------------------------------------------

    @property
    def group(self) -> str:
        """The consumer's group."""
        return self._group

    @property
    def client_id(self) -> str:
        """The id by which brokers know this member."""
        return self._instance.client_id

    @property
    def settings(self) -> PushSettings:
        """The settings in force, from wherever they came."""
        return self._settings

    @property
    def running(self) -> bool:
        """Whether it was started and is not being closed."""
        return self._running

    def membership(self) -> Membership:
        """Say what the heartbeat tells of this consumer."""
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
        """Join the group and begin to consume; returns before the queues are divided.

        A topic without a route is no error: its queues are taken once there is one.

        Raises:
            ClientError: the client has a consumer of this group already.
            ClientClosedError: it was closed before.
            ConfigError: a broker cannot filter as a subscription asks for; the consumer is closed.
            StoreError: the local offsets cannot be read.
        """
        if self._running:
            return
        if self._ending.begun:
            raise ClientClosedError(f"consumer {self._group} was closed: make a new one")
        await self._lease.open(self)
        self._opened = True
        try:
            await self._begin()
        except BaseException:
            await self.abort()
            raise

    async def _begin(self) -> None:
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
        """Stop in good order; further calls do nothing but wait for the end.

        Pulls end, handlers that run may end within ``stop_ms`` and are cancelled then, offsets are
        kept, locks are given back, and the brokers are told goodbye. What was fetched and not begun
        is delivered to other members. Cancelling stops the waiting, not the stopping.
        """
        await self._ending.come(self._stop(graceful=True))

    async def abort(self) -> None:
        """Stop at once: handlers are cancelled, and what they were at is delivered again."""
        if self._ending.under_way:
            await self._engine.service.stop(grace_s=0)
        await self._ending.come(self._stop(graceful=False))

    async def _stop(self, *, graceful: bool) -> None:
        self._running = False
        self._questions.close()
        self._engine.tasks.end(f"consumer {self._group} was closed")
        if graceful and self._opened:
            persist_s = self._instance.settings.call_timeout_ms / 1000
            await self._engine.stop(grace_s=self._settings.stop_ms / 1000, persist_s=persist_s)
        else:
            await self._engine.abort()
        if self._retained and self._traces is not None:
            self._retained = False
            await self._traces.release()
        if self._opened:
            self._opened = False
            await self._lease.close(self)

    async def until_failed(self) -> None:
        """Wait until the consumer breaks for good, and raise what broke it; never return.

        Raises:
            ClientClosedError: it was closed.
        """
        await self._engine.tasks.until_failed()

    # --- subscriptions ------------------------------------------------------------------------

    async def subscribe(self, topic: str, wanted: str | Filter = "*") -> None:
        """Consume a topic too, or filter it differently from now on.

        Args:
            topic: the topic.
            wanted: tags like ``a || b``, or a `Filter`.

        Raises:
            ClientClosedError: the consumer was closed.
            InvalidNameError: the topic's name breaks the rules.
            ConfigError: the filter makes no sense, or a broker cannot filter like this; nothing has
                changed.
        """
        self._check_open()
        if self._running:
            name = self._instance.namespace.wrap_topic(topic)
            await self._instance.routes.refresh(name)
            await check_filter(self._instance, self._engine.group, name, Filter.of(wanted))
        self._subscriptions.add(topic, wanted)
        await self._tell_subscriptions()

    async def unsubscribe(self, topic: str) -> None:
        """Consume a topic no longer; offsets of what was consumed are kept.

        Raises:
            ClientClosedError: the consumer was closed.
        """
        self._check_open()
        if self._subscriptions.remove(topic):
            await self._tell_subscriptions()

    def disagreements(self) -> list[Difference]:
        """Give what other members of the group subscribe differently, as last seen."""
        return self._watch.disagreements()

    async def _tell_subscriptions(self) -> None:
        if self._running:
            await self._instance.heartbeat()
            self._subscriptions.adopt()
            self._watch.wake()
            self._engine.rebalancer.wake()

    # --- orders -------------------------------------------------------------------------------

    @property
    def suspended(self) -> bool:
        """Whether nothing is pulled for now."""
        return self._engine.suspended

    def suspend(self) -> None:
        """Pull nothing more until `resume`; what was fetched is still consumed."""
        self._check_open()
        self._engine.suspend()

    def resume(self) -> None:
        """Pull again."""
        self._check_open()
        self._engine.resume()

    def set_concurrency(self, count: int) -> None:
        """Run this many handler calls at a time from now on; running ones go on.

        Raises:
            ConfigError: it is not from 1 to 1,000.
        """
        if not 1 <= count <= CONCURRENCY_MAX:
            raise ConfigError(f"concurrency {count}: expected 1 to {CONCURRENCY_MAX}")
        self._engine.set_concurrency(count)

    async def skip_backlog(self, topic: str | None = None) -> None:
        """Go on at the end of the queues that are this consumer's, without what is in between.

        Args:
            topic: only the queues of this topic; None for those of all topics but the retries.

        Raises:
            ClientClosedError: the consumer is not running.
            QueueNotFoundError: no queue of the topic is this consumer's.
            ResponseError, RemotingError: a broker was no help; nothing has changed.
        """
        self._check_running()
        wanted = set(self._subscriptions.asked_for())
        if topic is not None:
            wanted = {self._instance.namespace.wrap_topic(topic)}
        queues = [queue for queue in self._engine.queues.queues() if queue.topic in wanted]
        if topic is not None and not queues:
            raise QueueNotFoundError(f"no queue of {topic} is this consumer's")
        ends = [(await self._engine.offsets.bounds(queue)).max_offset for queue in queues]
        await self._engine.move(dict(zip(queues, ends, strict=True)))

    def read_from(self, broker_id: int | None) -> None:
        """Pull all queues from this replica, as far as there is one.

        Args:
            broker_id: 0 for masters, above for slaves; None to follow the brokers' advice.
        """
        self._engine.replica.forced = broker_id

    # --- questions ----------------------------------------------------------------------------

    def queues(self) -> list[MessageQueue]:
        """Give the queues that are this consumer's now, those of retries left out."""
        retry_topic = self._subscriptions.retry_topic
        owned = self._engine.queues.queues()
        return [self._engine.handling.shown(each) for each in owned if each.topic != retry_topic]

    def running_info(self) -> ConsumerRunningInfo:
        """Give what administrators are told: settings, queues, rates."""
        return running_info(self._instance, self._engine, self._subscriptions)

    def _check_open(self) -> None:
        if self._ending.begun:
            raise ClientClosedError(f"consumer {self._group} was closed")

    def _check_running(self) -> None:
        if not self._running:
            raise ClientClosedError(f"consumer {self._group} is not running: start it first")
