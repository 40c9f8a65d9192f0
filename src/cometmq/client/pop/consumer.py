"""Calls a handler with each message that brokers hand out one by one, whoever asks.

Queues are not owned: brokers divide them, and may let all members of a group take messages of the
same queue. What a member took and did not acknowledge is handed out again after a while.

Source: DefaultMQPushConsumer with clientRebalance off, RocketMQ 5.3.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cometmq.client.config import ClientSettings, PopSettings, layered, read_tables, shared_out
from cometmq.client.consistency import Difference, SubscriptionWatch
from cometmq.client.errors import ClientClosedError
from cometmq.client.handlers import BatchHandler, MessageHandler, QueueListener
from cometmq.client.hooks import ConsumeHook, FilterHook
from cometmq.client.instance import ClientInstance, Membership
from cometmq.client.lifetime import Lifetime
from cometmq.client.offsets.start import StartFrom, consume_from_where
from cometmq.client.pop.engine import PopEngine, PopWish
from cometmq.client.push.direct import consume_directly
from cometmq.client.push.ending import Ending
from cometmq.client.push.filters import check_filter
from cometmq.client.push.running import common_properties, stacks
from cometmq.client.push.subscriptions import Subscriptions
from cometmq.client.registry import lease
from cometmq.client.subscription import Filter
from cometmq.client.trace import ConsumeTrace, TraceDispatcher
from cometmq.model.errors import ConfigError
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import check_group_name
from cometmq.protocol.bodies import (
    ConsumerData,
    ConsumerRunningInfo,
    ConsumeType,
    MessageModel,
    PopProcessQueueInfo,
)
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import GetConsumerRunningInfoRequest
from cometmq.remoting import Processor, Request, Response

CONCURRENCY_MAX = 1000

_CODES = (
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
)


class PopConsumer(Lifetime):
    """Calls a handler with each message that brokers of 5.0 and later hand out.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses; empty for what the
            settings or the environment say.
        group: the members with this name share the messages; all of them should be pop consumers.
        handler: is called with one message. Returning means done; raising means that the message
            comes again, after 10 s first and later each time.
        batch_handler: is called with several messages of one queue, and a context.
        subscriptions: by topic, tags like ``a || b`` or a `Filter`.
        start_from: where a group begins that has consumed nothing.
        on_queues: is told which queues brokers assign to this member; number -1 stands for all of
            a broker's.
        hooks: watch the handler's calls, or take messages out before.
        settings: the consumer's settings.
        client: settings of its connections.
        instance: share these connections; the caller starts and closes them.
        config: a TOML file with settings.
        options: single settings of either kind, by name; they win over all others.

    Delivery is at least once: a handler that takes longer than ``invisible_ms`` has its message
    handed out again meanwhile.

    Raises:
        ConfigError: not just one handler was given, or a setting makes no sense.
        InvalidNameError: the group's name breaks the rules.

    Example:
        ``async with PopConsumer("127.0.0.1:9876", group="billing", handler=bill,``
        ``                       subscriptions={"orders": "*"}) as consumer:``
        ``    await consumer.until_failed()``
    """

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
        check_group_name(group)
        if (handler is None) == (batch_handler is None):
            raise ConfigError(f"consumer {group}: give either a handler or a batch_handler")
        if not isinstance(start_from, StartFrom):
            raise ConfigError(f"consumer {group}: pops begin at the first or the last message")
        tables = read_tables(config) if config else None
        own, conn = shared_out(options, PopSettings, ClientSettings)
        self._settings = layered(PopSettings, keywords=own, given=settings, tables=tables)
        connecting = layered(ClientSettings, keywords=conn, given=client, tables=tables)
        self._group = group
        self._lease = lease(name_servers, settings=connecting, instance=instance)
        self._instance = self._lease.instance
        self._traces = TraceDispatcher.of(self._instance, tables) if self._settings.trace else None
        wish = PopWish(
            group=group,
            handler=handler,
            batch_handler=batch_handler,
            start_from=start_from,
            on_queues=on_queues,
            consume_hooks=self._consume_hooks(hooks),
            filter_hooks=[hook for hook in hooks if isinstance(hook, FilterHook)],
        )
        wire_group = self._instance.namespace.wrap_group(group)
        self._subscriptions = Subscriptions(self._instance.namespace, wire_group, retries=False)
        for topic, wanted in (subscriptions or {}).items():
            self._subscriptions.add(topic, wanted)
        self._engine = PopEngine(self._instance, wish, self._settings, self._subscriptions)
        self._watch = SubscriptionWatch(self._instance, group, self._subscriptions.shown)
        self._running = False
        self._opened = False
        self._retained = False
        self._ending = Ending(f"pop consumer {group}.stop")

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
    def settings(self) -> PopSettings:
        """The settings in force, from wherever they came."""
        return self._settings

    @property
    def running(self) -> bool:
        """Whether it was started and is not being closed."""
        return self._running

    def membership(self) -> Membership:
        """Say what the heartbeat tells of this consumer."""
        data = ConsumerData(
            group_name=self._engine.group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=consume_from_where(self._engine.wish.start_from),
            subscription_data_set=self._subscriptions.data(),
        )
        return Membership(consumers=[data])

    async def start(self) -> None:
        """Join the group and begin to consume.

        Raises:
            ClientError: the client has a consumer of this group already.
            ClientClosedError: it was closed before.
            ConfigError: a broker cannot filter as a subscription asks for; the consumer is closed.
            ResponseError: a broker cannot hand out messages like this: it is older than 5.0, or
                does not serve it; the consumer is closed.
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
        if self._traces is not None:
            self._traces.retain()
            self._retained = True
        for topic, wanted in self._subscriptions.asked_for().items():
            await self._instance.routes.refresh(topic)
            await check_filter(self._instance, self._engine.group, topic, wanted)
        answers: list[Processor] = [self._changed, self._answer_running, self._consume]
        for code, answer in zip(_CODES, answers, strict=True):
            self._instance.requests.answer(code, self._engine.group, answer)
        await self._instance.heartbeat()
        self._subscriptions.adopt()
        await self._engine.start()
        self._watch.start(self._engine.tasks)
        self._running = True

    async def close(self) -> None:
        """Stop in good order; further calls do nothing but wait for the end.

        Handlers that run may end within ``stop_ms`` and are cancelled then. What was taken and not
        begun is handed out again once its time is over. Cancelling stops the waiting, not the
        stopping.
        """
        await self._ending.come(self._stop(self._settings.stop_ms / 1000))

    async def abort(self) -> None:
        """Stop at once: handlers are cancelled, and what they were at is handed out again."""
        if self._ending.under_way:
            await self._engine.service.stop(grace_s=0)
        await self._ending.come(self._stop(0.0))

    async def _stop(self, grace_s: float) -> None:
        self._running = False
        self._instance.requests.forget(self._engine.group, *_CODES)
        self._engine.tasks.end(f"consumer {self._group} was closed")
        await self._engine.stop(grace_s=grace_s)
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

    # --- orders -------------------------------------------------------------------------------

    async def subscribe(self, topic: str, wanted: str | Filter = "*") -> None:
        """Consume a topic too, or filter it differently from now on.

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
        """Consume a topic no longer.

        Raises:
            ClientClosedError: the consumer was closed.
        """
        self._check_open()
        if self._subscriptions.remove(topic):
            await self._tell_subscriptions()

    async def _tell_subscriptions(self) -> None:
        if self._running:
            await self._instance.heartbeat()
            self._subscriptions.adopt()
            self._watch.wake()
            self._engine.assignment.call()

    def disagreements(self) -> list[Difference]:
        """Give what other members of the group subscribe differently, as last seen."""
        return self._watch.disagreements()

    @property
    def suspended(self) -> bool:
        """Whether nothing is popped for now."""
        return self._engine.suspended

    def suspend(self) -> None:
        """Ask for nothing more until `resume`; what was taken is still consumed."""
        self._check_open()
        self._engine.suspended = True

    def resume(self) -> None:
        """Ask again."""
        self._check_open()
        self._engine.suspended = False
        self._engine.assignment.wake()

    def set_concurrency(self, count: int) -> None:
        """Run this many handler calls at a time from now on; running ones go on.

        Raises:
            ConfigError: it is not from 1 to 1,000.
        """
        if not 1 <= count <= CONCURRENCY_MAX:
            raise ConfigError(f"concurrency {count}: expected 1 to {CONCURRENCY_MAX}")
        self._engine.set_concurrency(count)

    def _check_open(self) -> None:
        if self._ending.begun:
            raise ClientClosedError(f"consumer {self._group} was closed")

    # --- questions ----------------------------------------------------------------------------

    def queues(self) -> list[MessageQueue]:
        """Give the queues that brokers assign to this member; -1 stands for all of a broker's."""
        return [self._engine.handling.shown(queue) for queue in self._engine.assignment.queues()]

    def running_info(self) -> ConsumerRunningInfo:
        """Give what administrators are told: settings, queues, rates."""
        engine = self._engine
        now_s, now_ms = time.monotonic(), time.time_ns() // 1_000_000
        return ConsumerRunningInfo(
            properties=common_properties(
                self._instance,
                self._settings,
                group=engine.group,
                concurrency=engine.concurrency,
                started_ms=engine.started_ms,
                ordered=False,
            ),
            subscription_set=self._subscriptions.data(),
            mq_pop_table={
                source.queue: PopProcessQueueInfo(
                    wait_ack_count=source.waiting,
                    droped=source.dropped,
                    last_pop_timestamp=now_ms - int((now_s - source.popped_at) * 1000),
                )
                for source in engine.assignment.sources()
            },
            status_table={
                topic: engine.statistics.status(topic) for topic in self._subscriptions.topics()
            },
        )

    def _changed(self, request: Request) -> None:
        self._engine.assignment.call()

    def _answer_running(self, request: Request) -> Response:
        info = self.running_info()
        if request.header(GetConsumerRunningInfoRequest).jstack_enable:
            info.jstack = stacks()
        return Response(body=info.encode())

    async def _consume(self, request: Request) -> Response:
        return await consume_directly(
            request, self._engine.handling, self._instance.namespace, ordered=False
        )
