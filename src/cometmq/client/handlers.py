"""Types of message handlers and listeners.

Each may be an ``async def`` function, which runs in the event loop, or a plain one, which runs in a
pool of threads. A handler that returns None is done with its messages; one that raises is not, and
gets them again later. (In RocketMQ's Java client a result of null means later.)

Source: MessageListenerConcurrently, MessageListenerOrderly, TransactionListener and
MessageQueueListener, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Protocol, TypeVar

from cometmq.model.message import Message, StoredMessage
from cometmq.model.queue import MessageQueue


class Consumed(Enum):
    """The result of a handler that consumes messages in any order.

    Example:
        async def bill(messages: Sequence[StoredMessage], context: ConsumeContext) -> Consumed:
            return Consumed.SUCCESS if messages[0].tags else Consumed.LATER

        async with PushConsumer(name_server, group="billing", batch_handler=bill) as consumer:
            await consumer.subscribe("orders")
    """

    SUCCESS = "CONSUME_SUCCESS"
    """The messages are consumed; None means that, too."""
    LATER = "RECONSUME_LATER"
    """Redeliver the messages after a delay, which grows with each redelivery."""


class ConsumedInOrder(Enum):
    """The result of a handler that consumes messages in order.

    Example:
        async def bill(message: StoredMessage) -> ConsumedInOrder:
            return ConsumedInOrder.SUCCESS if message.tags else ConsumedInOrder.SUSPEND

        async with PushConsumer(
            name_server, group="billing", handler=bill, ordered=True
        ) as consumer:
            await consumer.subscribe("orders")
    """

    SUCCESS = "SUCCESS"
    """The message is consumed; None means that, too."""
    SUSPEND = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    """Redeliver the message after a pause, before any other message of the queue."""
    COMMIT = "COMMIT"
    """Commit this message and all uncommitted ones; only with `auto_commit` off."""
    ROLLBACK = "ROLLBACK"
    """Redeliver this message and all uncommitted ones; only with `auto_commit` off."""


@dataclass(slots=True)
class ConsumeContext:
    """The group and queue of one handler call, and options for its result.

    Example:
        async def bill(messages: Sequence[StoredMessage], context: ConsumeContext) -> Consumed:
            context.done = 1  # the first message is consumed, the others are redelivered
            return Consumed.SUCCESS

        async with PushConsumer(name_server, group="billing", batch_handler=bill) as consumer:
            await consumer.subscribe("orders")
    """

    group: str
    """The consumer group."""
    queue: MessageQueue
    """The queue of the messages."""
    delay_level: int = 0
    """Delay level for redelivery: a level of the broker, 0 for the broker's choice, -1 to
    dead-letter the messages at once."""
    done: int | None = None
    """Number of consumed messages, counted from the first; None for all."""


@dataclass(slots=True)
class OrderedContext:
    """The group and queue of one ordered handler call, and options for its result.

    Example:
        async def bill(
            messages: Sequence[StoredMessage], context: OrderedContext
        ) -> ConsumedInOrder:
            context.delay = 5.0
            return ConsumedInOrder.SUSPEND

        async with PushConsumer(
            name_server, group="billing", batch_handler=bill, ordered=True
        ) as consumer:
            await consumer.subscribe("orders")
    """

    group: str
    """The consumer group."""
    queue: MessageQueue
    """The queue of the messages."""
    auto_commit: bool = True
    """If False, messages stay uncommitted until a call returns COMMIT or ROLLBACK."""
    delay: float | timedelta | None = None
    """Pause before redelivery, in seconds or as a `timedelta`, 10 ms to 30 s; None for the setting
    ``suspend_ms``."""


MessageHandler = Callable[[StoredMessage], Awaitable[object] | object]
"""Handles one message; returns a `Consumed` or `ConsumedInOrder`, or None."""

BatchHandler = Callable[
    [Sequence[StoredMessage], ConsumeContext], Awaitable[Consumed | None] | Consumed | None
]
"""Handles several messages of one queue in one call."""

OrderedBatchHandler = Callable[
    [Sequence[StoredMessage], OrderedContext],
    Awaitable[ConsumedInOrder | None] | ConsumedInOrder | None,
]
"""Handles several messages of one queue in one call; calls for a queue never overlap."""

QueueListener = Callable[
    [str, Collection[MessageQueue], Collection[MessageQueue]], Awaitable[None] | None
]
"""Runs after a rebalance, with a topic, all its queues, and the assigned queues."""


class LocalState(Enum):
    """The state of a local transaction.

    Example:
        result = await transactions.send_in_transaction(Message(topic="orders", body=b"42"))
        delivered = result.state is LocalState.COMMIT
    """

    COMMIT = "COMMIT_MESSAGE"
    """Deliver the message."""
    ROLLBACK = "ROLLBACK_MESSAGE"
    """Drop the message."""
    UNKNOWN = "UNKNOW"
    """Not known yet: the broker checks again later."""


Argument_contra = TypeVar("Argument_contra", contravariant=True)
"""The type of the argument that a `TransactionProducer` passes to its listener."""


class TransactionListener(Protocol[Argument_contra]):
    """Runs local transactions, and returns their state when the broker checks it.

    Either method may be ``async def`` or plain. An exception, or a result that is no `LocalState`,
    counts as UNKNOWN; ``rollback_on`` of `TransactionProducer` names the exceptions that prove a
    rollback. The broker may check with any producer of the group, even after a restart: store the
    state where all of them can read it, by an id that only this transaction has.

    Example:
        class Orders:
            async def execute(self, message: Message, order: int) -> LocalState:
                return LocalState.COMMIT

            async def check(self, message: StoredMessage) -> LocalState:
                return LocalState.UNKNOWN

        listener: TransactionListener[int] = Orders()
    """

    def execute(
        self, message: Message, argument: Argument_contra, /
    ) -> Awaitable[LocalState] | LocalState:
        """Run the local transaction. The half message is stored; consumers do not see it yet."""

    def check(self, message: StoredMessage, /) -> Awaitable[LocalState] | LocalState:
        """Return the state of the local transaction, within a minute: later it counts as UNKNOWN.

        An ``async def`` method is cancelled then; a plain one runs on in its thread.
        """


QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Selects one of a topic's queues for a message."""
