"""Calls a handler with each message that brokers hand out one by one, whoever asks.

Queues are not owned: brokers divide them, and may let all members of a group take messages of the
same queue. What a member took and did not acknowledge is handed out again after a while.

Source: DefaultMQPushConsumer with clientRebalance off, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

from cometmq.client._connection.instance import ClientInstance, Membership
from cometmq.client._connection.leases import acquire_instance
from cometmq.client._consuming.direct_consumption import consume_directly
from cometmq.client._consuming.ending import Ending
from cometmq.client._consuming.group_requests import check_filter
from cometmq.client._consuming.subscriptions import Subscriptions
from cometmq.client._lifecycle import Lifecycle, Starting
from cometmq.client._pop.engine import PopConsumerSpec, PopEngine
from cometmq.client._push.request_handlers import common_properties, stacks
from cometmq.client.errors import ClientClosedError
from cometmq.client.filters import Filter
from cometmq.client.handlers import BatchHandler, MessageHandler, QueueListener
from cometmq.client.hooks import ConsumeHook, FilterHook
from cometmq.client.offsets import StartFrom, check_start, consume_from_where
from cometmq.client.options import PopOptions
from cometmq.client.settings import (
    ClientSettings,
    PopSettings,
    read_tables,
    resolve_settings,
    split_options,
)
from cometmq.client.subscription_check import Difference, SubscriptionCheck
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
from cometmq.remoting import Request, RequestHandler, Response
from cometmq.remoting.tasks import is_call_failure

CONCURRENCY_MAX = 1000

_CODES = (
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
)


class PopConsumer(Lifecycle):
    """Calls a handler with messages that brokers of RocketMQ 5 hand out one by one.

    CometMQ's broker refuses pop consumption.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses. If empty, the setting
            ``name_servers`` is used.
        group: the consumer group. Its members share the messages; all should be pop consumers.
        handler: called with one message. When it returns, the message is acknowledged. When it
            raises, the message is redelivered after 10 s, and later each time.
        batch_handler: called with several messages of one queue, and a context.
        subscriptions: topic to tags such as ``a || b``, or to a `Filter`.
        start_from: where a new group starts.
        on_queues: called with the queues that the brokers assign to this member. Queue -1 stands
            for all queues of a broker.
        hooks: run around handler calls, or remove messages before them.
        settings: the settings of the consumer.
        client: the settings of its connections.
        instance: a shared instance to use. The caller starts and closes it.
        config: a TOML file with settings.
        options: single settings of either kind, by name. They override all others.

    Delivery is at least once. If a handler runs longer than the invisible time
    (``invisible_ms``), the message is redelivered meanwhile.

    Raises:
        ConfigError: there is not exactly one handler, or a setting is invalid.
        InvalidNameError: the group name is invalid.

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
        **options: Unpack[PopOptions],
    ) -> None:
        check_group_name(group)
        if (handler is None) == (batch_handler is None):
            raise ConfigError(f"consumer {group}: give either a handler or a batch_handler")
        check_start(group, start_from, times=False)
        tables = read_tables(config) if config else None
        own, conn = split_options(options, PopSettings, ClientSettings)
        self._settings = resolve_settings(PopSettings, keywords=own, given=settings, tables=tables)
        connecting = resolve_settings(ClientSettings, keywords=conn, given=client, tables=tables)
        self._group = group
        self._lease = acquire_instance(name_servers, settings=connecting, instance=instance)
        self._instance = self._lease.instance
        self._traces = TraceDispatcher.of(self._instance, tables) if self._settings.trace else None
        wish = PopConsumerSpec(
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
        self._watch = SubscriptionCheck(self._instance, group, self._subscriptions.shown)
        self._running = False
        self._opened = False
        self._retained = False
        self._starting = Starting(self._begin, f"pop consumer {group}.start")
        self._ending = Ending(f"pop consumer {group}.stop")

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
    def settings(self) -> PopSettings:
        """The settings that are in effect."""
        return self._settings

    @property
    def running(self) -> bool:
        """Whether the consumer is started and not closing."""
        return self._running

    def membership(self) -> Membership:
        """Return this consumer's entry in the heartbeat."""
        data = ConsumerData(
            group_name=self._engine.group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=consume_from_where(self._engine.wish.start_from),
            subscription_data_set=self._subscriptions.data(),
        )
        return Membership(consumers=[data])

    async def start(self) -> None:
        """Join the group and start to consume.

        Raises:
            ClientError: the client already has a consumer of this group.
            ClientClosedError: the consumer was closed before, or during the start. Cancelling one
                of several calls closes it, too.
            ConfigError: a broker does not support the filter of a subscription. The consumer is
                closed.
            ResponseError: a broker is older than RocketMQ 5.0 or does not serve pop. The consumer
                is closed.
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
                await self._ending.come(self._stop(0.0))
            if interrupted:
                raise ClientClosedError(
                    f"consumer {self._group} was closed while it started: create a new one"
                ) from error
            raise

    async def _begin(self) -> None:
        await self._lease.open(self)
        self._opened = True
        if self._traces is not None:
            self._traces.retain()
            self._retained = True
        for topic, wanted in self._subscriptions.asked_for().items():
            await self._instance.routes.refresh(topic)
            await check_filter(self._instance, self._engine.group, topic, wanted)
        answers: list[RequestHandler] = [self._changed, self._answer_running, self._consume]
        for code, answer in zip(_CODES, answers, strict=True):
            self._instance.requests.answer(code, self._engine.group, answer)
        await self._instance.heartbeat()
        self._subscriptions.adopt()
        await self._engine.start()
        self._watch.start(self._engine.tasks)
        self._running = True

    async def close(self) -> None:
        """Stop consuming and leave the group. Further calls only wait for the end.

        Running handlers have ``stop_ms`` to return and are cancelled after that. Messages that no
        handler has received are redelivered when their invisible time is over. Cancelling stops the
        waiting, not the closing.
        """
        await self._ending.come(self._stop(self._settings.stop_ms / 1000))

    async def abort(self) -> None:
        """Stop at once: cancel the handlers. Their messages are redelivered."""
        if self._ending.under_way:
            await self._engine.service.stop(grace_s=0)
        await self._ending.come(self._stop(0.0))

    async def _stop(self, grace_s: float) -> None:
        await self._starting.interrupt()
        self._running = False
        if self._opened:
            self._instance.requests.forget(self._engine.group, *_CODES)
        self._engine.tasks.end(f"consumer {self._group} was closed")
        try:
            await self._engine.stop(grace_s=grace_s)
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

    # --- orders -------------------------------------------------------------------------------

    async def subscribe(self, topic: str, wanted: str | Filter = "*") -> None:
        """Subscribe to a topic, or change its filter.

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
        """Unsubscribe from a topic.

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

    def subscription_mismatches(self) -> list[Difference]:
        """Return the subscriptions of other members that differ, as last seen."""
        return self._watch.subscription_mismatches()

    @property
    def suspended(self) -> bool:
        """Whether popping is suspended."""
        return self._engine.suspended

    def suspend(self) -> None:
        """Stop popping until `resume`. Messages that are already received are consumed."""
        self._check_open()
        self._engine.suspended = True

    def resume(self) -> None:
        """Pop again."""
        self._check_open()
        self._engine.suspended = False
        self._engine.assignment.wake()

    def set_concurrency(self, count: int) -> None:
        """Change the number of handler calls that run at a time. Running calls continue.

        Raises:
            ConfigError: the number is not from 1 to 1,000.
        """
        if not 1 <= count <= CONCURRENCY_MAX:
            raise ConfigError(f"concurrency {count}: expected 1 to {CONCURRENCY_MAX}")
        self._engine.set_concurrency(count)

    def _check_open(self) -> None:
        if self._ending.begun:
            raise ClientClosedError(f"consumer {self._group} was closed")

    # --- questions ----------------------------------------------------------------------------

    def queues(self) -> list[MessageQueue]:
        """Return the queues that brokers assign to this member; -1 stands for all of a broker."""
        return [self._engine.handling.shown(queue) for queue in self._engine.assignment.queues()]

    def running_info(self) -> ConsumerRunningInfo:
        """Return this consumer's settings, queues and rates, as administrators see them."""
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
