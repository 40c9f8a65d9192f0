"""Calls a handler with each message of the topics that a group subscribes to.

Source: DefaultMQPushConsumer, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Unpack

from cometmq.client._connection.instance import ClientInstance, acquire_instance
from cometmq.client._connection.name_servers import HasNameServers
from cometmq.client._consuming.callback_consumer import CallbackConsumer, check_handler
from cometmq.client._consuming.consumer import check_flag, check_parts, resolve, subscriptions_of
from cometmq.client._consuming.request_handlers import RequestHandlers
from cometmq.client._push.engine import PushEngine, PushSpec
from cometmq.client.allocation import AllocationStrategy, Averagely
from cometmq.client.errors import QueueNotFoundError, SendFailedError
from cometmq.client.filters import Filter
from cometmq.client.handlers import (
    BatchHandler,
    MessageHandler,
    OrderedBatchHandler,
    QueueListener,
)
from cometmq.client.hooks import ConsumeHook, FilterHook
from cometmq.client.offsets import OffsetStore, StartFrom, check_start
from cometmq.client.options import PushOptions
from cometmq.client.settings import ClientSettings, PushSettings
from cometmq.model.arguments import checks_arguments
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.client import ConsumerRunningInfo
from cometmq.protocol.bodies.heartbeat import MessageModel


@checks_arguments()
class PushConsumer(CallbackConsumer):
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
        topic: a topic to subscribe to, with all its messages.
        subscriptions: topic to tags such as ``a || b``, or to a `Filter`.
        start_from: where to start in a queue without a committed offset. A time (a
            `datetime` with a time zone, or ms since 1970) means the first message stored then or
            later. On a young store LAST and a time deliver the whole backlog, see `StartFrom`.
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
        ConfigError: there is not exactly one handler, it takes other arguments, or a setting is
            invalid.
        InvalidNameError: the group name is invalid.

    Example:
        async def bill(message: StoredMessage) -> None:
            print(message.body)

        consumer = PushConsumer(
            name_server, group="billing", handler=bill, subscriptions={"orders": "paid"}
        )
        await consumer.run()
    """

    _has_class_filters = True
    _settings: PushSettings

    def __init__(
        self,
        name_servers: str | Sequence[str] | HasNameServers = "",
        *,
        group: str,
        topic: str | None = None,
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
        # First, since it names a keyword that stands for a missing handler.
        self._settings, connecting, tables = resolve(
            PushSettings, options, settings=settings, client=client, config=config
        )
        check_handler(group, handler, batch_handler, options)
        check_start(group, start_from)
        check_flag(group, "ordered", ordered)
        check_flag(group, "broadcast", broadcast)
        check_parts(
            group, hooks=hooks, strategy=strategy, offset_store=offset_store, on_queues=on_queues
        )
        lease = acquire_instance(
            name_servers, settings=connecting, instance=instance, keep_name=broadcast
        )
        super().__init__(
            group,
            lease,
            self._settings,
            tables,
            subscriptions=subscriptions_of(group, topic, subscriptions),
            start_from=start_from,
            retries=not broadcast,
        )
        if broadcast:
            self._message_model = MessageModel.BROADCASTING
        spec = PushSpec(
            group=group,
            handler=handler,
            batch_handler=batch_handler,
            ordered=ordered,
            broadcast=broadcast,
            start_from=start_from,
            strategy=strategy or Averagely(),
            offset_store=offset_store,
            on_queues=on_queues,
            hooks=[*hooks, *self._trace_hooks],
        )
        self._engine: PushEngine = PushEngine(
            self._instance, spec, self._settings, self._subscriptions, self._tasks
        )
        self._requests = RequestHandlers(
            self._instance,
            self._wire_group,
            rebalance=self._engine.rebalance,
            running_info=self.running_info,
            offsets=self._engine.store.table,
            move=self._engine.move,
            handling=self._engine.handling,
        )

    @property
    def settings(self) -> PushSettings:
        """The settings that are in effect."""
        return self._settings

    async def start(self) -> None:
        """Join the group and start to consume. Returns before the first rebalance; see `ready`.

        A topic without a route is no error: the consumer reads its queues as soon as it has one.

        Raises:
            ClientError: the client already has a consumer of this group. The consumer is closed,
                as after all other errors.
            ClientClosedError: the consumer was closed before, or during the start.
            ConfigError: a broker does not support the filter of a subscription.
            ResponseError: a server refuses the account, or the account lacks a right.
            StoreError: the local offset file cannot be read.
        """
        await super().start()

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
        wanted = set(self._subscriptions.announced())
        if topic is not None:
            wanted = {self._instance.namespace.wrap_topic(topic)}
        queues = [queue for queue in self._engine.queues.queues() if queue.topic in wanted]
        if topic is not None and not queues:
            raise QueueNotFoundError(f"no queue of {topic} is assigned to this consumer")
        ends = [(await self._engine.offsets.bounds(queue)).max_offset for queue in queues]
        await self._engine.move(dict(zip(queues, ends, strict=True)))

    async def dead_letter(self, message: StoredMessage, error: BaseException | None = None) -> None:
        """Dead-letter one message of a batch, within its ``batch_handler``.

        The handler goes on with the others: what it returns or raises counts for all of them, this
        one included. A broadcast message is dropped instead, as one that fails.

        Args:
            message: the message.
            error: why; stored with the dead letter as ``CONSUME_ERROR``.

        Raises:
            SendFailedError: no broker has stored the dead letter.
        """
        is_kept = not self._engine.spec.broadcast
        if is_kept and not await self._engine.dead_letter(message, error):
            reason = f"no broker has stored the dead letter of message {message.message_id}"
            raise SendFailedError(message.topic, (), reason)

    def read_from(self, broker_id: int | None) -> None:
        """Pull all queues from this replica, if the broker has it.

        Args:
            broker_id: 0 for the master, a number above 0 for a slave; None to use the broker's
                suggestion.
        """
        self._engine.replica.forced = broker_id

    def queues(self) -> list[MessageQueue]:
        """Return the assigned queues, without the queues of the retry topic."""
        retry_topic = self._subscriptions.retry_topic
        owned = self._engine.queues.queues()
        unwrap = self._instance.namespace.unwrap_queue
        return [unwrap(each) for each in owned if each.topic != retry_topic]

    def running_info(self) -> ConsumerRunningInfo:
        """Return this consumer's settings, queues and rates, as administrators see them."""
        info, store = super().running_info(), self._engine.store
        info.mq_table = {
            fetched.queue: fetched.info(store.position(fetched.queue) or QueueOffset(0))
            for fetched in self._engine.queues.shown()
        }
        return info
