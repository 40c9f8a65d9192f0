"""Calls a handler with messages that brokers of RocketMQ 5 deliver one by one.

Brokers allocate the queues, and may let all members of a group receive from the same queue.
Messages that are not acknowledged are redelivered when their invisible time is over.

Source: DefaultMQPushConsumer with clientRebalance off, RocketMQ 5.3.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

from cometmq.client._connection.instance import ClientInstance, acquire_instance
from cometmq.client._connection.name_servers import HasNameServers
from cometmq.client._consuming.callback_consumer import CallbackConsumer, check_handler
from cometmq.client._consuming.consumer import check_parts, resolve, subscriptions_of
from cometmq.client._consuming.engine import ConsumerSpec
from cometmq.client._consuming.request_handlers import RequestHandlers
from cometmq.client._pop.engine import PopEngine
from cometmq.client.filters import Filter
from cometmq.client.handlers import BatchHandler, MessageHandler, QueueListener
from cometmq.client.hooks import ConsumeHook, FilterHook
from cometmq.client.offsets import StartFrom, check_start
from cometmq.client.options import PopOptions
from cometmq.client.settings import ClientSettings, PopSettings
from cometmq.model.arguments import checks_arguments
from cometmq.model.queue import MessageQueue
from cometmq.model.times import now_ms
from cometmq.protocol.bodies.client import ConsumerRunningInfo, PopProcessQueueInfo


@checks_arguments()
class PopConsumer(CallbackConsumer):
    """Calls a handler with messages that brokers hand out one by one.

    It works with CometMQ's brokers and with those of RocketMQ 5.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses. If empty, the setting
            ``name_servers`` is used.
        group: the consumer group. Its members share the messages; all should be pop consumers.
        handler: called with one message. When it returns, the message is acknowledged. When it
            raises, the message is redelivered after 10 s, and later each time.
        batch_handler: called with several messages of one queue, and a context.
        topic: a topic to subscribe to, with all its messages.
        subscriptions: topic to tags such as ``a || b``, or to a `Filter`.
        start_from: where a new group starts. On a young store LAST delivers the whole backlog,
            see `StartFrom`.
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
        ConfigError: there is not exactly one handler, it takes other arguments, or a setting is
            invalid.
        InvalidNameError: the group name is invalid.

    Example:
        async def bill(message: StoredMessage) -> None:
            print(message.body)

        consumer = PopConsumer(
            name_server, group="billing", handler=bill, subscriptions={"orders": "*"}
        )
        await consumer.run()
    """

    _settings: PopSettings

    def __init__(
        self,
        name_servers: str | Sequence[str] | HasNameServers = "",
        *,
        group: str,
        topic: str | None = None,
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
        # First, since it names a keyword that stands for a missing handler.
        self._settings, connecting, tables = resolve(
            PopSettings, options, settings=settings, client=client, config=config
        )
        check_handler(group, handler, batch_handler, options)
        check_start(group, start_from, times=False)
        check_parts(group, hooks=hooks, on_queues=on_queues)
        lease = acquire_instance(name_servers, settings=connecting, instance=instance)
        super().__init__(
            group,
            lease,
            self._settings,
            tables,
            subscriptions=subscriptions_of(group, topic, subscriptions),
            start_from=start_from,
            retries=False,
        )
        spec = ConsumerSpec(
            group=group,
            handler=handler,
            batch_handler=batch_handler,
            start_from=start_from,
            on_queues=on_queues,
            hooks=[*hooks, *self._trace_hooks],
        )
        self._engine: PopEngine = PopEngine(
            self._instance, spec, self._settings, self._subscriptions, self._tasks
        )
        self._requests = RequestHandlers(
            self._instance,
            self._wire_group,
            rebalance=self._engine.rebalance,
            running_info=self.running_info,
            handling=self._engine.handling,
        )

    @property
    def settings(self) -> PopSettings:
        """The settings that are in effect."""
        return self._settings

    async def start(self) -> None:
        """Join the group and start to consume.

        Raises:
            ClientError: the client already has a consumer of this group. The consumer is closed,
                as after all other errors.
            ClientClosedError: the consumer was closed before, or during the start.
            ConfigError: a broker does not support the filter of a subscription.
            ResponseError: a broker is older than RocketMQ 5.0 or does not serve pop, or refuses
                the account.
        """
        await super().start()

    def queues(self) -> list[MessageQueue]:
        """Return the queues that brokers assign to this member; -1 stands for all of a broker."""
        return list(map(self._instance.namespace.unwrap_queue, self._engine.queues.queues()))

    def running_info(self) -> ConsumerRunningInfo:
        """Return this consumer's settings, queues and rates, as administrators see them."""
        info = super().running_info()
        now_s, wall_ms = time.monotonic(), now_ms()
        info.mq_pop_table = {
            source.queue: PopProcessQueueInfo(
                wait_ack_count=source.waiting,
                droped=source.dropped,
                last_pop_timestamp=wall_ms - int((now_s - source.popped_at) * 1000),
            )
            for source in self._engine.queues.sources()
        }
        return info
