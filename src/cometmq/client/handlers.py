"""What an application gives a client to call: handlers of messages, and listeners.

Each may be an ``async def`` function, which runs in the event loop, or a plain one, which runs in a
pool of threads. A handler that returns None is done with its messages; one that raises is not, and
gets them again later. (In RocketMQ's Java client a result of null means later.)

Source: MessageListenerConcurrently, MessageListenerOrderly, TransactionListener and
MessageQueueListener, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from cometmq.model.message import Message, StoredMessage
from cometmq.model.queue import MessageQueue


class Consumed(Enum):
    """What a handler says of messages that may be consumed in any order."""

    SUCCESS = "CONSUME_SUCCESS"
    """Done with; the same as returning None."""
    LATER = "RECONSUME_LATER"
    """To be delivered again, after a delay that grows with every delivery."""


class ConsumedInOrder(Enum):
    """What a handler says of messages that are consumed in order."""

    SUCCESS = "SUCCESS"
    """Done with; the same as returning None."""
    SUSPEND = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    """To be delivered again, before any other message of the queue, after a pause."""
    COMMIT = "COMMIT"
    """Done with this and what was left open before; only without `OrderedContext.auto_commit`."""
    ROLLBACK = "ROLLBACK"
    """This and what was left open comes again; only without `OrderedContext.auto_commit`."""


@dataclass(slots=True)
class ConsumeContext:
    """Where the messages of one call come from, and how to say more than success or not."""

    group: str
    queue: MessageQueue
    delay_level: int = 0
    """For messages that come again: a level of the broker, 0 to let it choose, -1 to make dead
    letters of them at once."""
    done: int | None = None
    """How many messages, from the first on, are done with; None for all."""


@dataclass(slots=True)
class OrderedContext:
    """Where the messages of one ordered call come from, and how they count as done."""

    group: str
    queue: MessageQueue
    auto_commit: bool = True
    """False leaves messages open until a call returns COMMIT or ROLLBACK."""
    suspend_ms: int | None = None
    """Pause before the messages come again, 10 to 30,000; None for what the settings say."""


MessageHandler = Callable[[StoredMessage], Awaitable[object] | object]
"""Handles one message, in any order or in order; its result may be the enumeration's, or None."""

BatchHandler = Callable[
    [Sequence[StoredMessage], ConsumeContext], Awaitable[Consumed | None] | Consumed | None
]
"""Handles several messages of one queue at a time."""

OrderedBatchHandler = Callable[
    [Sequence[StoredMessage], OrderedContext],
    Awaitable[ConsumedInOrder | None] | ConsumedInOrder | None,
]
"""Handles several messages of one queue at a time, while no other call has messages of it."""

QueueListener = Callable[
    [str, Collection[MessageQueue], Collection[MessageQueue]], Awaitable[None] | None
]
"""Is told a topic, all its queues, and those that are now this consumer's."""


class LocalState(Enum):
    """What became of the local part of a transaction."""

    COMMIT = "COMMIT_MESSAGE"
    """The message is to be delivered."""
    ROLLBACK = "ROLLBACK_MESSAGE"
    """The message is to be forgotten."""
    UNKNOWN = "UNKNOW"
    """Not known yet: the broker asks again later."""


class TransactionListener(Protocol):
    """Does the local part of a transaction, and tells later what became of it.

    Either method may be ``async def`` or plain. One that raises, or returns anything else than a
    `LocalState`, counts as UNKNOWN. A check may come to any producer of the group, even after a
    restart: what it looks at must be stored where all of them see it.
    """

    def execute(self, message: Message, argument: object) -> Awaitable[LocalState] | LocalState:
        """Do the local part; the message is stored, and not visible yet."""

    def check(self, message: StoredMessage) -> Awaitable[LocalState] | LocalState:
        """Say what became of the local part."""
