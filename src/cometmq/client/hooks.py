"""What may watch a client's messages on their way: sends, deliveries, ends of transactions.

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

from cometmq.client.handlers import LocalState
from cometmq.client.receipt import SendReceipt
from cometmq.model.message import Message, StoredMessage
from cometmq.model.queue import MessageQueue


class SendKind(IntEnum):
    """The kind of a sent message; traces contain the numbers."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAYED = 3
    ORDERED = 4


@dataclass(slots=True)
class SendContext:
    """One send, from the call to its end, with all its attempts."""

    group: str
    client_id: str
    messages: Sequence[Message]
    """The message, or the messages of a batch. `before_send` may add properties."""
    kind: SendKind = SendKind.NORMAL
    oneway: bool = False
    message_id: str = ""
    """The unique id, for a batch all ids joined by commas; set before the first attempt."""
    namespace: str = ""
    queue: MessageQueue | None = None
    """The target queue of the current attempt."""
    address: str = ""
    """The broker's address in the current attempt."""
    tries: int = 0
    cost_ms: float = 0.0
    """Duration of the current attempt; in `after_send`, of the whole send."""
    receipt: SendReceipt | None = None
    error: BaseException | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    """Data that a hook stores for its later calls."""


class SendHook:
    """Runs around sends. Override the methods that you need."""

    def before_send(self, context: SendContext) -> None:
        """Runs before a send is encoded; may add properties."""

    def after_try(self, context: SendContext) -> None:
        """Runs after each attempt, with a receipt or an error."""

    def after_send(self, context: SendContext) -> None:
        """Runs after the send, with a receipt or an error; a cancelled send has an error."""


class ForbiddenHook:
    """Forbids a send by raising a `CometError`, which the caller of the send receives."""

    def check(self, context: SendContext) -> None:
        """Raise to forbid the send."""


class ConsumeEnd(IntEnum):
    """The result of a handler call; traces contain the numbers."""

    SUCCESS = 0
    TIMEOUT = 1
    EXCEPTION = 2
    RETURNED_NOTHING = 3
    FAILED = 4


@dataclass(slots=True)
class DeliveryContext:
    """One handler call."""

    group: str
    client_id: str
    queue: MessageQueue
    messages: Sequence[StoredMessage]
    ordered: bool = False
    namespace: str = ""
    cost_ms: float = 0.0
    end: ConsumeEnd | None = None
    error: BaseException | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    """Data that a hook stores for its later calls."""


class ConsumeHook:
    """Runs around handler calls. Override the methods that you need.

    Both methods run in the task that calls the handler, so the handler sees a context variable
    that ``before`` sets.
    """

    def before(self, context: DeliveryContext) -> None:
        """Runs before the handler."""

    def after(self, context: DeliveryContext) -> None:
        """Runs after the handler."""


class FilterHook:
    """Removes fetched messages before the handler; removed messages count as consumed."""

    def keep(
        self, group: str, queue: MessageQueue, messages: list[StoredMessage]
    ) -> list[StoredMessage]:
        """Return the messages to consume."""
        return messages


@dataclass(slots=True)
class EndContext:
    """The end of a transaction, as this client reported it to the broker."""

    group: str
    message: Message | StoredMessage
    message_id: str
    transaction_id: str
    address: str
    state: LocalState
    from_check: bool = False
    namespace: str = ""


class EndTransactionHook:
    """Runs at the end of each transaction."""

    def ended(self, context: EndContext) -> None:
        """Runs after the client has sent the state of a transaction to the broker."""
