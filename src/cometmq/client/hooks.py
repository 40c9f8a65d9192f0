"""Hooks: called around sends, deliveries and ends of transactions.

Trace, metrics and spans are made of these. Hooks are plain functions that must not block; what one
raises is logged and changes nothing, except in a `ForbiddenHook`. Hooks of one kind are called in
the order they were added.

Source: SendMessageHook, ConsumeMessageHook, FilterMessageHook, CheckForbiddenHook and
EndTransactionHook, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from cometmq.client._connection.security import Credentials, Signer
from cometmq.client.handlers import LocalState
from cometmq.client.receipt import SendReceipt
from cometmq.model.message import Message, StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.remoting import OutgoingCall, RpcHook

__all__ = [
    "SendHook",
    "SendContext",
    "SendKind",
    "ForbiddenHook",
    "ConsumeHook",
    "DeliveryContext",
    "ConsumeEnd",
    "FailedMessage",
    "FilterHook",
    "EndTransactionHook",
    "EndContext",
    "RpcHook",
    "OutgoingCall",
    "Signer",
    "Credentials",
]


class SendKind(IntEnum):
    """The kind of a sent message; traces contain the numbers.

    Example:
        class Delayed(SendHook):
            def before_send(self, context: SendContext) -> None:
                print(context.kind is SendKind.DELAYED)

        async with Producer(name_server, group="shop", hooks=[Delayed()]) as producer:
            await producer.send(Message(topic="orders", body=b"42", delay_level=1))
    """

    NORMAL = 0
    """None of the other kinds."""
    TRANSACTION_HALF = 1
    """A half message of a transaction."""
    TRANSACTION_COMMIT = 2
    """The commit of a transaction; only in traces."""
    DELAYED = 3
    """A delayed message."""
    ORDERED = 4
    """RocketMQ's kind for ordered messages; the client does not set it."""


@dataclass(slots=True)
class SendContext:
    """One send, from the call to its end, with all its attempts.

    Example:
        class Slow(SendHook):
            def after_send(self, context: SendContext) -> None:
                print(context.message_id, context.attempts, context.cost_ms)

        async with Producer(name_server, group="shop", hooks=[Slow()]) as producer:
            await producer.send(Message(topic="orders", body=b"42"))
    """

    group: str
    """The producer group."""
    client_id: str
    """The client id."""
    messages: Sequence[Message]
    """The message, or the messages of a batch. `before_send` may add properties, but neither add
    nor remove messages."""
    kind: SendKind = SendKind.NORMAL
    """The kind of the message."""
    oneway: bool = False
    """Whether the send expects no response."""
    message_id: str = ""
    """The unique id, for a batch all ids joined by commas; set before the first attempt."""
    namespace: str = ""
    """The client's namespace; empty for none."""
    queue: MessageQueue | None = None
    """The target queue of the current attempt."""
    address: str = ""
    """The broker's address in the current attempt."""
    attempts: int = 0
    """The number of attempts so far."""
    cost_ms: float = 0.0
    """Duration of the current attempt; in `after_send`, of the whole send."""
    receipt: SendReceipt | None = None
    """The receipt of the current attempt, or None; in `after_send`, of the send."""
    error: BaseException | None = None
    """The error of the current attempt, or None; in `after_send`, of the send."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Data that a hook stores for its later calls."""


class SendHook:
    """Runs around sends. Override the methods that you need.

    Example:
        class Counter(SendHook):
            sends = 0

            def after_send(self, context: SendContext) -> None:
                self.sends += 1

        async with Producer(name_server, group="shop", hooks=[Counter()]) as producer:
            await producer.send(Message(topic="orders", body=b"42"))
    """

    def before_send(self, context: SendContext) -> None:
        """Runs before a send is encoded; may add properties."""

    def after_attempt(self, context: SendContext) -> None:
        """Runs after each attempt, with a receipt or an error."""

    def after_send(self, context: SendContext) -> None:
        """Runs after the send, with a receipt or an error; a cancelled send has an error."""


class ForbiddenHook:
    """Forbids a send by raising a `CometError`, which the caller of the send receives.

    Example:
        class NoSecrets(ForbiddenHook):
            def check(self, context: SendContext) -> None:
                if b"password" in context.messages[0].body:
                    raise InvalidMessageError("a message contains a password")

        Producer(name_server, group="shop", hooks=[NoSecrets()])
    """

    def check(self, context: SendContext) -> None:
        """Raise to forbid the send."""


class ConsumeEnd(IntEnum):
    """The result of a handler call; traces contain the numbers.

    Example:
        class Failures(ConsumeHook):
            def after(self, context: DeliveryContext) -> None:
                print(context.end is ConsumeEnd.EXCEPTION)

        PullConsumer(name_server, group="audit", hooks=[Failures()])
    """

    SUCCESS = 0
    """The messages are consumed."""
    TIMEOUT = 1
    """The handler ran longer than the setting ``consume_minutes_max``."""
    EXCEPTION = 2
    """The handler raised an exception other than `ConsumeLater`."""
    RETURNED_NOTHING = 3
    """RocketMQ's result for a listener that returns null; the client does not set it."""
    FAILED = 4
    """The handler requested a redelivery, by its result or with `ConsumeLater`."""


@dataclass(slots=True)
class DeliveryContext:
    """One handler call.

    Example:
        class Failures(ConsumeHook):
            def after(self, context: DeliveryContext) -> None:
                if context.error is not None:
                    print(context.messages[0].message_id, context.error)

        PullConsumer(name_server, group="audit", hooks=[Failures()])
    """

    group: str
    """The consumer group."""
    client_id: str
    """The client id."""
    queue: MessageQueue
    """The queue of the messages."""
    messages: Sequence[StoredMessage]
    """The messages of the call."""
    ordered: bool = False
    """Whether the consumer keeps the order of each queue."""
    namespace: str = ""
    """The client's namespace; empty for none."""
    cost_ms: float = 0.0
    """Duration of the call; set in `after`."""
    end: ConsumeEnd | None = None
    """The result of the call; set in `after`."""
    error: BaseException | None = None
    """The error that the handler raised, or None; set in `after`."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Data that a hook stores for its later calls."""


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message that a handler did not consume, and that is retried or dead-lettered.

    Example:
        class DeadLetters(ConsumeHook):
            def dead_lettered(self, failed: FailedMessage) -> None:
                print(failed.message.message_id, failed.retries, failed.error)

        PullConsumer(name_server, group="audit", hooks=[DeadLetters()])
    """

    group: str
    """The consumer group."""
    client_id: str
    """The client id."""
    message: StoredMessage
    """The message, with the topic that it was sent to."""
    retries: int
    """The number of its retries so far."""
    error: BaseException | None
    """The error of the handler, or the cause of its `ConsumeLater`; None without an error."""


class ConsumeHook:
    """Runs around handler calls. Override the methods that you need.

    ``before`` and ``after`` run in the task that calls the handler, so the handler sees a context
    variable that ``before`` sets.

    Example:
        class Timer(ConsumeHook):
            def after(self, context: DeliveryContext) -> None:
                print(context.queue, context.cost_ms)

        PullConsumer(name_server, group="audit", hooks=[Timer()])
    """

    def before(self, context: DeliveryContext) -> None:
        """Runs before the handler."""

    def after(self, context: DeliveryContext) -> None:
        """Runs after the handler."""

    def retried(self, failed: FailedMessage) -> None:
        """Runs when a message that failed will be redelivered."""

    def dead_lettered(self, failed: FailedMessage) -> None:
        """Runs when a message that failed has become a dead letter."""


class FilterHook:
    """Removes fetched messages before the handler; removed messages count as consumed.

    Example:
        class OnlyTagged(FilterHook):
            def keep(self, group, queue, messages):
                return [message for message in messages if message.tags]

        PullConsumer(name_server, group="audit", hooks=[OnlyTagged()])
    """

    def keep(
        self, group: str, queue: MessageQueue, messages: list[StoredMessage]
    ) -> list[StoredMessage]:
        """Return the messages that are to be consumed.

        If it raises, or returns anything else, the error is logged and all are consumed.
        """
        return messages


@dataclass(slots=True)
class EndContext:
    """The end of a transaction, as this client reported it to the broker.

    Example:
        class Ends(EndTransactionHook):
            def ended(self, context: EndContext) -> None:
                print(context.message_id, context.state, context.from_check)

        TransactionProducer(name_server, group="books", listener=listener, hooks=[Ends()])
    """

    group: str
    """The producer group."""
    message: Message | StoredMessage
    """The message that was sent; after a check, the half message from the broker."""
    message_id: str
    """The unique id of the message."""
    transaction_id: str
    """The id of the transaction."""
    address: str
    """The broker's address."""
    state: LocalState
    """The state of the local transaction."""
    from_check: bool = False
    """Whether the broker requested the state with a check."""
    namespace: str = ""
    """The client's namespace; empty for none."""


class EndTransactionHook:
    """Runs at the end of each transaction.

    Example:
        class Ends(EndTransactionHook):
            def ended(self, context: EndContext) -> None:
                print(context.transaction_id, context.state)

        TransactionProducer(name_server, group="books", listener=listener, hooks=[Ends()])
    """

    def ended(self, context: EndContext) -> None:
        """Runs after the client has sent the state of a transaction to the broker."""
